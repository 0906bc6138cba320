//! `weir guard`: the guard process that a mount starts for itself; see `fuse::stand_guard`.

use crate::failure::{Exit, Failure, Outcome};
use std::ffi::OsString;

/// Stand guard over a mount: started by mounts, for themselves
#[derive(clap::Args)]
pub struct Args {
    /// The process that serves the mount
    process: i32,
    /// Its thread whose end is the end of it
    thread: i32,
}

/// The command line of this, to which the numbers are added.
pub fn command() -> Vec<OsString> {
    // The program itself, wherever it is by now.
    vec!["/proc/self/exe".into(), "guard".into()]
}

/// Ends with what it guards.
pub fn run(args: Args) -> Outcome {
    fuse::stand_guard(args.process, args.thread).map(|()| Exit::Done).map_err(Failure::from)
}
