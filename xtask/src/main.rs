//! The one command door of the project: tests, CI, benches, fuzzing and the XDR generator.

mod xdr;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// The one command door of the project.
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Generate the NFS types from the XDR descriptions inside the RFCs
    Xdr(xdr::Options),
}

fn main() -> ExitCode {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default();
    let outcome = match Cli::parse().command {
        Task::Xdr(options) => xdr::run(&options, &root),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
