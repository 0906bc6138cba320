//! `weir guard`: the guard process that a mount starts for itself; see `fuse::stand_guard`.

use crate::failure::{Exit, Failure, Outcome};
use std::ffi::OsString;

/// Abort the FUSE connection of a mount whose process ends; mounts start this command
#[derive(clap::Args)]
pub struct Args {
    /// The id of the process that serves the mount
    process: i32,
    /// The id of the thread of that process that started the guard; the thread ends with the process
    thread: i32,
}

/// Returns the command line of a guard process. The mount appends the ids of its process and its thread, which the
/// guard watches.
pub fn command() -> Vec<OsString> {
    // Start the executable file of this process through `/proc`. So the guard starts even if an administrator has moved
    // or replaced this file.
    vec!["/proc/self/exe".into(), "guard".into()]
}

/// Waits until the process that serves the mount ends, and then aborts the FUSE connection of the mount.
pub fn run(args: Args) -> Outcome {
    fuse::stand_guard(args.process, args.thread).map(|()| Exit::Done).map_err(Failure::from)
}
