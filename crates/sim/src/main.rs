//! The command `sim`: runs the simulator with a range of seeds, and prints the seeds whose runs fail.

use clap::Parser;
use sim::{Focus, Pool, Verdict};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use types::planted::Planted;

/// Maximum number of failed seeds for which the command prints all failures. For further failed seeds, it prints only
/// the seed numbers.
const TOLD_MAX: usize = 20;

/// Run simulated clusters, each from one seed
#[derive(Parser)]
#[command(name = "sim", max_term_width = 100)]
struct Cli {
    /// Run one seed
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run the seeds from A to B, without B; written A..B
    #[arg(long, value_parser = range)]
    seeds: Option<(u64, u64)>,
    /// Print every event of the runs
    #[arg(long)]
    trace: bool,
    /// Enable a deliberate bug, in clusters that make the bug visible; the command succeeds only if runs fail
    #[arg(long, value_enum)]
    plant: Option<Mistake>,
    /// Run the clusters of --plant without the bug; seeds must pass
    #[arg(long, value_enum, conflicts_with = "plant")]
    focus: Option<Mistake>,
    /// Run each seed twice, and fail if the events of the two runs differ
    #[arg(long)]
    twice: bool,
    /// Number of runs at the same time [default: the number of processors]
    #[arg(long)]
    jobs: Option<usize>,
    /// Maximum duration of one run in seconds of real time
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Deliberate bugs, with which a test shows that the simulator finds bugs.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Mistake {
    /// The reply cache never finds a cached reply
    ReplyCache,
    /// Clients accept a COMMIT without comparing its write verifier
    CommitVerifier,
    /// The lock table forgets the locks that it has granted
    LockTable,
    /// The mgr switches a moved file to its new objects before these objects are durable
    EarlySwap,
    /// A move gives the new objects the stream number of the old objects
    SameStream,
}

impl From<Mistake> for Planted {
    fn from(mistake: Mistake) -> Self {
        match mistake {
            Mistake::ReplyCache => Planted::ReplyCache,
            Mistake::CommitVerifier => Planted::CommitVerifier,
            Mistake::LockTable => Planted::LockTable,
            Mistake::EarlySwap => Planted::EarlySwap,
            Mistake::SameStream => Planted::SameStream,
        }
    }
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("write it as A..B")?;
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
    match (number(from)?, number(to)?) {
        (from, to) if from < to => Ok((from, to)),
        _ => Err("there is no seed in it".into()),
    }
}

/// The combined results of the runs of all seeds.
#[derive(Default, serde::Serialize)]
struct Summary {
    commit: String,
    seeds: u64,
    failed: Vec<Verdict>,
    done: u64,
    refused: u64,
    reads: u64,
    /// Number of directories whose names the checker did not verify, because the search for a valid order of the
    /// operations exceeded its limit.
    unsearched: u64,
    events: u64,
    simulated_hours: f64,
    seconds: f64,
}

impl Summary {
    fn add(&mut self, verdict: Verdict) {
        self.seeds += 1;
        self.done += verdict.done;
        self.refused += verdict.failed;
        self.reads += verdict.reads;
        self.unsearched += verdict.unsearched;
        self.events += verdict.events;
        self.simulated_hours += verdict.simulated_ms as f64 / 3_600_000.0;
        if !verdict.failures.is_empty() {
            self.failed.push(verdict);
        }
    }
}

/// Returns the commit of this build from the environment, where `cargo xtask sim` puts it.
fn commit() -> String {
    std::env::var("WEIR_COMMIT").unwrap_or_else(|_| "unknown commit".into())
}

fn tell(verdict: &Verdict) {
    eprintln!(
        "\nseed {} FAILED at {}; again with: cargo xtask sim --seed {} --trace",
        verdict.seed,
        commit(),
        verdict.seed
    );
    for failure in &verdict.failures {
        eprintln!("  {failure}");
    }
}

fn many(cli: &Cli, (from, to): (u64, u64)) -> std::io::Result<Summary> {
    let start = Instant::now();
    let mut summary = Summary { commit: commit(), ..Summary::default() };
    let jobs = cli.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let focus = cli.plant.or(cli.focus).map(|on| Focus { on: on.into(), planted: cli.plant.is_some() });
    let pool = Pool { jobs, limit: Duration::from_secs(cli.limit), focus, print: cli.trace };
    let bar = std::io::stderr().is_terminal() && !cli.json && !cli.trace;
    let times = if cli.twice { 2 } else { 1 };
    let mut first: BTreeMap<u64, Verdict> = BTreeMap::new();
    pool.run((from..to).flat_map(|seed| std::iter::repeat_n(seed, times)), |mut verdict| {
        match first.remove(&verdict.seed) {
            None if cli.twice => return drop(first.insert(verdict.seed, verdict)),
            Some(before) if (before.hash, before.events) != (verdict.hash, verdict.events) => {
                verdict.failures.push("two runs were different".into());
            }
            _ => {}
        }
        if !verdict.failures.is_empty() && summary.failed.len() < TOLD_MAX {
            tell(&verdict);
        }
        summary.add(verdict);
        if bar && summary.seeds.is_multiple_of(10) {
            let (done, all) = (summary.seeds, to - from);
            let rate = done as f64 / start.elapsed().as_secs_f64();
            eprint!("\r{done} of {all} seeds, {} failed, {rate:.0} a second ", summary.failed.len());
        }
    })?;
    summary.seconds = start.elapsed().as_secs_f64();
    summary.failed.sort_by_key(|verdict| verdict.seed);
    Ok(summary)
}

fn print(summary: &Summary, json: bool) -> Result<(), serde_json::Error> {
    if json {
        println!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    println!(
        "\n{} seeds in {:.1} s: {} passed, {} failed; {:.1} simulated hours, {} operations, {} of them refused, {} reads \
         compared, {} directories not judged as their names have too many orders, {} events",
        summary.seeds,
        summary.seconds,
        summary.seeds - summary.failed.len() as u64,
        summary.failed.len(),
        summary.simulated_hours,
        summary.done + summary.refused,
        summary.refused,
        summary.reads,
        summary.unsearched,
        summary.events
    );
    if !summary.failed.is_empty() {
        let seeds: Vec<String> = summary.failed.iter().map(|verdict| verdict.seed.to_string()).collect();
        println!("failed seeds: {}", seeds.join(" "));
    }
    Ok(())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let seeds = cli.seeds.unwrap_or_else(|| (cli.seed.unwrap_or(1), cli.seed.unwrap_or(1) + 1));
    let told = many(&cli, seeds).and_then(|summary| {
        print(&summary, cli.json)?;
        Ok(summary)
    });
    let summary = match told {
        Ok(summary) => summary,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    if summary.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert_eq!(range("3..7"), Ok((3, 7)));
        for bad in ["3", "7..3", "3..3", "a..b", "-1..2"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
