//! `weir guard`: what mounts start beside themselves; see `fuse::stand_guard`.

use crate::failure::{Exit, Failure, Outcome};
use std::ffi::OsString;

/// Stand guard over a mount: started by mounts, for themselves
#[derive(clap::Args)]
pub struct Args {}

/// The command line of this.
pub fn command() -> Vec<OsString> {
    // The program itself, wherever it is by now.
    vec!["/proc/self/exe".into(), "guard".into()]
}

/// Ends with what it guards.
pub fn run(_: Args) -> Outcome {
    fuse::stand_guard().map(|()| Exit::Done).map_err(Failure::from)
}
