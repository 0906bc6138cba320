//! `cargo xtask hostile`: sends random and damaged RPC records to a running mgr and iod while a correct client works.

use std::error::Error;
use std::path::{Path, PathBuf};

/// Options of `cargo xtask hostile`.
#[derive(clap::Args)]
#[command(
    after_help = "Prints what was sent, memory before and after, panics, refusals, and how long a good client's \
    answers took before (quiet) and meanwhile (beside). Fails when something panicked, memory grew beyond its bound, or \
    the good client was not served."
)]
pub struct Options {
    /// Number of frames to send
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    frames: u64,
    /// Frames per second; 0: as many as possible
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    rate: u64,
    /// The seed that determines all sent frames (default: a random seed, which the command prints)
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Directory for the stores during the run; the default is in memory, so that flushes for one client do not delay
    /// another client
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print the summary as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the test `hostile` of the `mgr` package, which sends the random and damaged records. In `cargo test`, the same
/// test sends fewer records.
pub fn run(options: &Options, root: &Path) -> Result<(), Box<dyn Error>> {
    let mut command = crate::cargo();
    command.current_dir(root).args(["test", "--quiet", "--release", "-p", "mgr", "--test", "hostile", "--"]);
    command.args(["--nocapture", "--exact", "hostile_frames_harm_nobody"]);
    command.env("WEIR_HOSTILE_FRAMES", options.frames.to_string());
    command.env("WEIR_HOSTILE_RATE", options.rate.to_string());
    if options.dir.is_dir() {
        command.env("TMPDIR", std::path::absolute(&options.dir)?);
    }
    if let Some(seed) = options.seed {
        command.env("WEIR_TEST_SEED", seed.to_string());
    }
    if options.json {
        command.env("WEIR_HOSTILE_JSON", "1");
    }
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("hostile frames did harm: {status}").into()) }
}
