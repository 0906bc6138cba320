//! Benchmark of the metadata store: durable creates per second with and without the batch log, and the time to open a
//! large store after `kill -9`.

mod load;
mod recording;
mod stores;

use clap::Parser;
use load::{Rate, creates};
use record::{Draft, Record};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use stores::Kind;

/// The result of a step of the benchmark; an error ends the run.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Measure the durable creates per second of the metadata store
///
/// The compared stores alternate within one run. A missed target is no failure: the tables report it.
#[derive(Parser)]
#[command(name = "creates", max_term_width = 100)]
struct Cli {
    /// Number of rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Number of files in the large store; 0 skips the measurement of the large store
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Directory for the stores [default: the directory for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Also write the results to bench/results/
    #[arg(long)]
    record: bool,
    /// Run as a child process that fills the store in this directory until it is killed
    #[arg(long, hide = true)]
    fill: bool,
}

const IN_FLIGHT: [usize; 3] = [1, 8, 32];

fn main() -> ExitCode {
    let cli = Cli::parse();
    let dir = cli.dir.clone().unwrap_or_else(std::env::temp_dir);
    let done = match cli.fill {
        true => stores::fill(&dir, cli.files),
        false => measure(&cli, &dir),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("creates: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: &Cli, dir: &Path) -> Outcome<()> {
    let draft = cli.record.then(|| Draft::new("creates", cli.rounds, dir));
    rates(cli, dir, draft.as_ref())?;
    opening(cli, dir, draft.as_ref())
}

/// Formats the median of some values, and in parentheses the lowest and the highest value.
fn spread(values: &[f64], digits: usize) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(low), Some(high)) = (sorted.first(), sorted.last()) else { return String::new() };
    format!("{:.digits$} ({low:.digits$}-{high:.digits$})", sorted[sorted.len() / 2])
}

fn rates(cli: &Cli, dir: &Path, draft: Option<&Draft>) -> Outcome<()> {
    let long = Duration::from_secs(cli.seconds);
    let mut record = draft.map(recording::rates).transpose()?;
    println!("| in flight | | creates/s | p50 ms | p99 ms | CPU us | flushes each | checkpoints/s | written B each |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for in_flight in IN_FLIGHT {
        let mut found: [Vec<Rate>; 2] = Default::default();
        let mut floor = Vec::new();
        for _ in 0..cli.rounds {
            for (rates, kind) in found.iter_mut().zip([Kind::Log, Kind::Database]) {
                rates.push(creates(dir, kind, in_flight, long)?);
            }
            let Some(log) = found[0].last() else { continue };
            let flushes = stores::flushes(dir, log.window_bytes, long)?;
            floor.push(flushes * log.per_flush);
        }
        for (rates, name) in found.iter().zip(["batch log", "database's own commits"]) {
            let column =
                |number: fn(&Rate) -> f64, digits| spread(&rates.iter().map(number).collect::<Vec<f64>>(), digits);
            println!(
                "| {in_flight} | {name} | {} | {} | {} | {} | {} | {} | {} |",
                column(|rate| rate.per_second, 0),
                column(|rate| rate.p50_ms, 2),
                column(|rate| rate.p99_ms, 2),
                column(|rate| rate.cpu_us, 1),
                column(|rate| 1.0 / rate.per_flush, 3),
                column(|rate| rate.checkpoints_per_second, 1),
                column(|rate| rate.written_bytes, 0),
            );
        }
        println!(
            "| {in_flight} | floor: as many bytes as a window, written and flushed | {} | | | | | | |",
            spread(&floor, 0)
        );
        let ratio: Vec<f64> = found[0].iter().zip(&found[1]).map(|(a, b)| a.per_second / b.per_second).collect();
        let of_floor: Vec<f64> = found[0].iter().zip(&floor).map(|(a, b)| a.per_second / b).collect();
        let wanted = if in_flight == 32 { "; at least 1.5 is wanted" } else { "" };
        println!("| {in_flight} | log / database, round by round{wanted} | {} | | | | | | |", spread(&ratio, 2));
        println!("| {in_flight} | log / floor, round by round | {} | | | | | | |", spread(&of_floor, 2));
        if let Some(record) = &mut record {
            recording::add_rates(record, in_flight, &found, &floor);
        }
    }
    write(draft, record)
}

fn write(draft: Option<&Draft>, record: Option<Record>) -> Outcome<()> {
    if let (Some(draft), Some(record)) = (draft, record) {
        draft.write(record)?;
    }
    Ok(())
}

/// Fills a store in a child process, kills the process in the middle of its work, and measures how long the store takes
/// to open.
fn opening(cli: &Cli, dir: &Path, draft: Option<&Draft>) -> Outcome<()> {
    if cli.files == 0 {
        return Ok(());
    }
    let dir = tempfile::tempdir_in(dir)?;
    let mut took = Vec::new();
    for round in 0..cli.rounds {
        let files = cli.files.to_string();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--fill", "--files", &files, "--dir"])
            .arg(dir.path())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("the child has no output")?;
        // The child process prints a line when the files exist, and continues to create files.
        let filled = BufReader::new(output).lines().next();
        std::thread::sleep(Duration::from_millis(1300 + 270 * u64::from(round)));
        child.kill()?;
        child.wait()?;
        filled.ok_or("the child said nothing")??;
        let begin = Instant::now();
        let namespace = stores::open(dir.path())?;
        took.push(begin.elapsed().as_secs_f64() * 1e3);
        let files = namespace.files()?;
        println!("opened after kill -9: {files} files, {:.0} ms", took[took.len() - 1]);
    }
    println!("open after kill -9, ms; below 1000 is wanted: {}", spread(&took, 0));
    write(draft, draft.map(|draft| recording::opening(draft, cli.files, &took)).transpose()?)
}
