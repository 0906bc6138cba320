//! The `threshold` benchmark: the experiments of Hildebrand, Ward and Honeyman, "Large files, small writes, and pNFS"
//! (2006), and of Hildebrand and Honeyman, "Direct-pNFS" and pluggable layouts (2007), on emulated disks and links.

#[path = "../../stripe/src/cluster.rs"]
#[allow(dead_code)]
mod cluster;
mod csv_table;
mod disks;
mod experiments;
#[path = "../../stripe/src/links.rs"]
#[allow(dead_code)]
mod links;
#[path = "../../stripe/src/machine.rs"]
mod machine;
#[path = "../../stripe/src/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../../stripe/src/recording.rs"]
#[allow(dead_code)]
mod recording;
#[path = "../../stripe/src/report.rs"]
mod report;
mod rig;
mod spindle;

use clap::{Parser, ValueEnum};
use csv_table::CsvTable;
use record::{Better, Draft, Kind};
use recording::Shape;
use report::{Report, Table};
use rig::Rig;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};

/// Measure small and large writes on the mgr path and on the direct path, on slow disks and links
///
/// The measurements of all thresholds alternate. Needs root: the disks are loop devices over files with simulated
/// latency, the links are namespaces with token buckets. If a result
/// misses its bound, the tables say so, and the command succeeds.
#[derive(Parser)]
#[command(name = "threshold", max_term_width = 100)]
struct Cli {
    /// The experiments to run [default: all experiments]
    #[arg(value_enum, ignore_case = true)]
    experiments: Vec<Experiment>,
    /// Number of rounds [default: 3; with --quick: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Use small amounts: all experiments take three to four minutes, and the numbers vary more
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Also write the results to bench/results/
    #[arg(long)]
    record: bool,
    /// Directory for all numbers (CSV) and charts (SVG) [default: target/threshold]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The experiments of the `threshold` benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Experiment {
    /// Sequential writes of one client, by size
    E1,
    /// Creation and removal of small files, and Debian's postmark
    E2,
    /// Sequential writes of ten clients to disjoint regions of a file, by size
    E3,
    /// Random writes of one client within 32 MiB, by size
    E4,
    /// The size at which both paths are equally fast, with an idle and a busy mgr, and the threshold that auto chooses
    E5,
    /// Eight clients that alternately write the records of a file, with and without gathering at the mgr
    E6,
    /// The digitisation trace under several thresholds, without its fsyncs
    E7,
    /// The digitisation trace under several thresholds, with its fsyncs
    E7Fsync,
    /// The digitisation trace with ten times as many events, without its fsyncs, one round
    E7Long,
    /// Writes by number of clients and access method: page cache, O_DIRECT, without a mount, and all data through the
    /// mgr
    E23,
    /// Writes through the page cache, by length of requests
    E24,
}

/// The settings that all experiments of the benchmark share.
pub struct Setup {
    rounds: u32,
    quick: bool,
    /// The path of the `weir` binary to measure.
    weir: PathBuf,
    /// The directory for stores and traces.
    room: PathBuf,
    /// The directory for results (CSV and SVG files).
    out: PathBuf,
}

/// Any error of the `threshold` benchmark.
type Failure = Box<dyn Error + Send + Sync>;
/// The result of functions of the `threshold` benchmark.
type Outcome<T> = Result<T, Failure>;

fn run(cli: Cli) -> Outcome<()> {
    let own = std::env::current_exe()?;
    let beside = own.parent().ok_or("this program is in no folder")?;
    let weir = cluster::build()?;
    let out = cli.out.unwrap_or_else(|| beside.with_file_name("threshold"));
    fs::create_dir_all(&out)?;
    let room = tempfile::Builder::new().prefix("threshold-").tempdir_in(beside)?;
    let rounds = cli.rounds.unwrap_or(if cli.quick { 1 } else { 3 });
    let setup = Setup { rounds, quick: cli.quick, weir, room: room.path().canonicalize()?, out };
    tidy_up_when_stopped(setup.room.clone())?;
    let mut report = Report { machine: machine::facts(&setup.room), tables: Vec::new() };
    let mut csv = CsvTable::default();
    if !cli.json {
        report.machine.iter().for_each(|(name, value)| println!("{name}: {value}"));
        println!(
            "disks: {} us for each write and {} bytes a second each; links: {} bytes a second",
            spindle::POSITIONING.as_micros(),
            spindle::RATE,
            links::RATE
        );
    }
    let draft = cli.record.then(|| Draft::new("threshold", rounds, &setup.room));
    let rig = Rig::make(&setup)?;
    for experiment in Experiment::value_variants() {
        if !cli.experiments.is_empty() && !cli.experiments.contains(experiment) {
            continue;
        }
        let (begun, before) = (Instant::now(), report.tables.len());
        experiments::run(*experiment, &setup, &rig, &mut csv, &mut report)?;
        eprintln!("{experiment:?}: {:.0} s", begun.elapsed().as_secs_f64());
        fs::write(setup.out.join("threshold.csv"), csv.text())?;
        if let Some(draft) = &draft {
            report.tables[before..].iter().try_for_each(|table| keep(*experiment, draft, table))?;
        }
        // Print the tables of this experiment now, so that they are not lost if the user stops a later experiment.
        if !cli.json {
            report.tables[before..].iter().for_each(|table| print!("{table}"));
        }
    }
    if cli.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    println!("\nall numbers and drawings: {}", setup.out.display());
    Ok(())
}

/// Writes the record of a table to `bench/results/`.
fn keep(experiment: Experiment, draft: &Draft, table: &Table) -> Outcome<()> {
    let name = experiment.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let part = if table.title.contains("postmark") { format!("{name}-postmark") } else { name };
    let rates = table.columns.iter().any(|column| ["direct path", "MB/s", "page cache"].contains(&&column[..]));
    let (unit, better) = match experiment {
        Experiment::E5 => ("bytes", Better::Lower),
        _ if rates || experiment == Experiment::E23 => ("MB/s", Better::Higher),
        _ => ("seconds", Better::Lower),
    };
    let kind = |column: &str| match column {
        "direct path" => Kind::Floor,
        "mgr path over direct path" | "client RPCs" | "iod writes" => Kind::Extra,
        _ => Kind::Result,
    };
    let columns: Vec<_> = table.columns.iter().enumerate().map(|(at, column)| (at, kind(column))).collect();
    let shape = Shape { part: &part, unit, better, targets: "" };
    draft.write(recording::columns(draft, table, &shape, &columns, None)?)
}

/// On SIGINT and SIGTERM, deletes the namespaces and the directory of this process. The kernel kills the child
/// processes.
fn tidy_up_when_stopped(dir: PathBuf) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        // Do not delete the disks: the daemons still use them. The next run of the benchmark deletes the disks.
        links::sweep_own();
        let _ = fs::remove_dir_all(dir);
        std::process::exit(130);
    });
    Ok(())
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("threshold: {error}");
            ExitCode::FAILURE
        }
    }
}
