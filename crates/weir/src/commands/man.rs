//! `weir man`: writes manual pages, one for each command.

use crate::failure::{Exit, Failure, Outcome};
use clap::CommandFactory;
use std::path::PathBuf;

/// Write manual pages
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir man ~/.local/share/man/man1 && man weir-cp
  sudo weir man /usr/local/share/man/man1")]
pub struct Args {
    /// Directory for the pages (weir.1, weir-cp.1, ...); made if it is missing
    directory: PathBuf,
}

/// Writes the manual pages into the directory.
pub fn run(args: Args) -> Outcome {
    let pages = || {
        std::fs::create_dir_all(&args.directory)?;
        clap_mangen::generate_to(crate::Cli::command().disable_help_subcommand(true), &args.directory)
    };
    let told = |error| Failure::new(format!("cannot write manual pages to {}: {error}", args.directory.display()));
    pages().map_err(|error: std::io::Error| told(error).next("choose a directory that you can write to"))?;
    Ok(Exit::Done)
}
