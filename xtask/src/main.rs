//! `cargo xtask`: the command for all developer tasks: tests, CI, benchmarks, fuzzing, docs and the XDR generator.

mod apt;
mod bench;
mod docs;
mod draw;
mod drills;
mod fuzz;
mod hostile;
mod sim;
mod suite;
mod xdr;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Run the developer tasks of the project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100, version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run all checks and tests: formatting, clippy, every test of the workspace, a thousand seeds of the simulator
    ///
    /// The last line is "N passed, N failed", summed over all test programs. The command fails when a check or a test
    /// fails.
    Test,
    /// Run the checks of the CI, which are the same as `test`
    Ci,
    /// Run an experiment of `bench/`, or list them
    Bench(bench::Options),
    /// Build the guide as a book (target/docs/book) and the manual pages (target/docs/man)
    ///
    /// The command installs mdBook below target/tools if it is absent, and fails when mdBook reports a warning.
    Docs(docs::Options),
    /// Draw random comments and sentences of the docs, to judge whether they are clear
    Draw(draw::Options),
    /// Copy a real directory tree into Weir and out again while daemons are killed and connections break
    ///
    /// Every round runs four drills: it kills an iod, the mgr, or both, or breaks connections, during a copy in and a
    /// copy out. Every drill compares the trees and reports what was killed and when. The command fails when a copy
    /// fails or a file differs.
    Drills(drills::Options),
    /// Fuzz one target of `fuzz/`, or all of them one after another (needs nightly and cargo-fuzz)
    Fuzz(fuzz::Options),
    /// Run seeds of the simulated cluster (docs/TESTING.md)
    Sim(sim::Options),
    /// Send random and damaged frames to a running mgr and iod while a good client works
    Hostile(hostile::Options),
    /// Generate the NFS types from the XDR descriptions in the RFCs
    Xdr(xdr::Options),
}

fn run(task: &Task, root: &Path) -> Result<(), Box<dyn Error>> {
    match task {
        Task::Test | Task::Ci => suite::run(root),
        Task::Bench(options) => bench::run(options, root),
        Task::Docs(options) => docs::run(options, root),
        Task::Draw(options) => draw::run(options, root),
        Task::Drills(options) => drills::run(options, root),
        Task::Fuzz(options) => fuzz::run(options, root),
        Task::Sim(options) => sim::run(options, root),
        Task::Hostile(options) => hostile::run(options, root),
        Task::Xdr(options) => xdr::run(options, root),
    }
}

/// Returns the path of the cargo that started this program (`CARGO`), or `cargo` from `PATH`.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn main() -> ExitCode {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default();
    match run(&Cli::parse().task, &root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
