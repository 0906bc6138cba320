//! The commands, one file each.

pub mod completions;
pub mod cp;

use crate::failure::Outcome;
use clap::Subcommand;

/// What `weir` can do.
#[derive(Subcommand)]
pub enum Command {
    /// Copy files and trees into, out of and within Weir
    Cp(cp::Args),
    /// Print shell completions
    Completions(completions::Args),
}

impl Command {
    /// Does it.
    pub fn run(self) -> Outcome {
        match self {
            Command::Cp(args) => cp::run(args),
            Command::Completions(args) => completions::run(args),
        }
    }
}
