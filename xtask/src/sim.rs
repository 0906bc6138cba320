//! `cargo xtask sim`: runs seeds of the simulated cluster, in an optimised build for a large number of seeds.

use std::error::Error;
use std::path::Path;
use std::process::Command;

/// Minimum number of seeds for which an optimised build saves time.
const MANY: u64 = 3000;

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub struct Options {
    /// Run one seed
    #[arg(long, conflicts_with = "seeds", required_unless_present = "seeds")]
    seed: Option<u64>,
    /// Run the seeds A to B - 1, written as A..B, on all processors
    #[arg(long)]
    seeds: Option<String>,
    /// Further arguments for the simulator, such as --trace, --twice, --jobs N, --limit SECONDS and --json
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Builds the simulator and runs the given seeds.
///
/// # Errors
/// A seed failed, or the simulator could not run.
pub fn run(options: &Options, root: &Path) -> Result<(), Box<dyn Error>> {
    let optimised = options.seeds.as_deref().is_some_and(|seeds| count(seeds) >= MANY);
    let profile = if optimised { "sim" } else { "dev" };
    let mut command = crate::cargo();
    command.current_dir(root).args(["run", "--quiet", "--package", "sim", "--profile", profile, "--"]);
    match (options.seed, &options.seeds) {
        (Some(seed), _) => command.arg("--seed").arg(seed.to_string()),
        (None, Some(seeds)) => command.arg("--seeds").arg(seeds),
        (None, None) => return Err("give --seed or --seeds".into()),
    };
    let status = command.args(&options.more).env("WEIR_COMMIT", commit(root)).status()?;
    if status.success() { Ok(()) } else { Err("not every seed passed".into()) }
}

/// Returns the number of seeds in a range `A..B`; 0 for an invalid range, which the simulator reports.
fn count(seeds: &str) -> u64 {
    let ends = seeds.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    ends.map_or(0, |(from, to): (u64, u64)| to.saturating_sub(from))
}

/// Returns the commit of the working tree, with a suffix if the tree has uncommitted changes.
pub fn commit(root: &Path) -> String {
    let git = Command::new("git").current_dir(root).args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let text = git.ok().filter(|out| out.status.success()).map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    text.map_or_else(|| "an unknown commit".into(), |text| format!("commit {}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn seeds_are_counted() {
        assert_eq!((count("5..9"), count("9..5"), count("5"), count("a..b")), (4, 0, 0, 0));
    }
}
