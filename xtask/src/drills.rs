//! `cargo xtask drills`: copies a real tree with real processes while daemons crash and connections break.

use std::error::Error;
use std::path::{Path, PathBuf};

/// Options of `cargo xtask drills`.
#[derive(clap::Args)]
#[command(
    after_help = "The same seed kills the same daemons at the same points of the copy, as far as a real machine repeats itself."
)]
pub struct Options {
    /// Number of rounds; each round runs all drills
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    rounds: u64,
    /// The directory tree to copy
    #[arg(long, value_name = "DIRECTORY", default_value = "/usr/share/doc")]
    tree: PathBuf,
    /// The seed of the first round; each further round adds 1 to the seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Runs the drills, which are a test of the `weir` package that `cargo test` ignores by default.
pub fn run(options: &Options, root: &Path) -> Result<(), Box<dyn Error>> {
    let mut command = crate::cargo();
    command.current_dir(root).args(["test", "--quiet", "--release", "-p", "weir", "--test", "end_to_end", "--"]);
    command.args(["--ignored", "--nocapture", "--exact", "crashes::rounds_on_a_real_tree"]);
    command.env("WEIR_DRILLS_ROUNDS", options.rounds.to_string()).env("WEIR_DRILLS_SEED", options.seed.to_string());
    command.env("WEIR_DRILLS_TREE", std::path::absolute(&options.tree)?);
    if options.json {
        command.env("WEIR_DRILLS_JSON", "1");
    }
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("the drills failed: {status}").into()) }
}
