//! `weir guard`: the guard process that a mount starts for itself; see `fuse::stand_guard`.

use crate::failure::{Exit, Failure, Outcome};
use std::ffi::OsString;

/// Abort the FUSE connection of a mount whose process ends; mounts start this command
#[derive(clap::Args)]
pub struct Args {
    /// The process that serves the mount
    process: i32,
    /// The thread of that process that started the guard and ends with the process
    thread: i32,
}

/// Returns the command line of a guard. The mount appends the process and thread numbers.
pub fn command() -> Vec<OsString> {
    // Start this program's own file, even if it was moved or replaced.
    vec!["/proc/self/exe".into(), "guard".into()]
}

/// Waits until the process that serves the mount ends, and then aborts its FUSE connection.
pub fn run(args: Args) -> Outcome {
    fuse::stand_guard(args.process, args.thread).map(|()| Exit::Done).map_err(Failure::from)
}
