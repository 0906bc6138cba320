//! The `stripe` benchmark: costs and gains of striping.

mod bare;
mod bulk;
mod cluster;
mod links;
mod machine;
mod mover;
mod native;
mod parts;
mod process;
mod recording;
mod report;
mod socket;

use clap::{Parser, ValueEnum};
use record::{Better, Draft, Kind};
use recording::{FloorRow, Shape};
use report::{Report, Table};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Measure the costs and gains of striping
///
/// Every part compares several systems within one run; the measurements of the systems alternate. A missed target is no
/// failure: the tables report it.
#[derive(Parser)]
#[command(name = "stripe", max_term_width = 100)]
struct Cli {
    /// The parts to run [default: all parts]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Number of rounds of each part
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Use small amounts, to test the benchmark; the numbers are not meaningful
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Also write the results to bench/results/
    #[arg(long)]
    record: bool,
    /// Directory for stores and files [default: the directory of this program]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Run as a child process of an experiment, in this role
    #[arg(long, hide = true)]
    role: Option<String>,
}

/// The parts of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU seconds per GB of a stream over four iods, compared with a bare socket
    A,
    /// The rate over 1, 2, 4 and 8 iods behind slow links (needs root)
    B,
    /// 4 KiB reads from one iod, compared with a minimal server
    C,
    /// Creates, stats and unlinks per second
    D,
}

/// The roles in which this program starts itself: a server or a client of an experiment in its own process.
#[derive(Serialize, Deserialize)]
enum Role {
    /// An iod that serves a new object store in `dir`.
    Iod {
        dir: PathBuf,
    },
    /// The minimal server for small reads of a file ([`bare`]).
    Reads {
        address: String,
        file: PathBuf,
    },
    /// The minimal server for streams of a file ([`bulk`]).
    Streams {
        address: String,
        file: PathBuf,
    },
    /// A client that sends a stream to the minimal server, or receives a stream: address of the server, local file,
    /// length.
    BarePut(String, Option<PathBuf>, u64),
    BareGet(String, Option<PathBuf>, u64),
    /// A client that writes a file to Weir, or reads a file from Weir.
    Put(mover::TransferJob),
    Get(mover::TransferJob),
    /// A client that removes a file in Weir.
    Remove(String),
    /// A client that creates files in Weir, looks the files up, and removes the files.
    Names(parts::names::ClientJob),
}

/// The result of one stream of bytes.
#[derive(Serialize, Deserialize)]
struct Moved {
    /// Time in seconds until the last byte has arrived; for a write, until all bytes are durable.
    seconds: f64,
}

impl Moved {
    fn since(start: Instant) -> Self {
        Moved { seconds: start.elapsed().as_secs_f64() }
    }
}

/// The settings that all parts of the benchmark share.
struct Setup {
    rounds: u32,
    quick: bool,
    /// The directory for stores and files.
    dir: PathBuf,
    weir: OnceCell<PathBuf>,
}

/// Any error of the `stripe` benchmark.
type Failure = Box<dyn Error + Send + Sync>;
/// The result of functions of the `stripe` benchmark.
type Outcome<T> = Result<T, Failure>;

impl Setup {
    /// Returns `duration`, or a tenth of it with `--quick`.
    fn brief(&self, duration: Duration) -> Duration {
        if self.quick { duration / 10 } else { duration }
    }

    /// Returns `bytes`, or a sixteenth of it with `--quick`.
    fn amount(&self, bytes: u64) -> u64 {
        if self.quick { bytes / 16 } else { bytes }
    }

    /// Returns the path of the `weir` binary. The first call builds the binary.
    fn weir(&self) -> Outcome<PathBuf> {
        match self.weir.get() {
            Some(weir) => Ok(weir.clone()),
            None => cluster::build().map(|weir| self.weir.get_or_init(|| weir).clone()),
        }
    }
}

impl Role {
    fn play(self) -> Outcome<()> {
        match self {
            Role::Iod { dir } => parts::small::serve_iod(&dir),
            Role::Reads { address, file } => bare::serve_reads(&address, &file),
            Role::Streams { address, file } => bulk::serve_streams(&address, &file),
            Role::BarePut(address, local, len) => tell(&bulk::put(&address, local.as_deref(), len)?),
            Role::BareGet(address, local, len) => tell(&bulk::get(&address, local.as_deref(), len)?),
            Role::Put(errand) => tell(&mover::put(&errand)?),
            Role::Get(errand) => tell(&mover::get(&errand)?),
            Role::Remove(url) => tell(&mover::remove(&url)?),
            Role::Names(errand) => tell(&parts::names::work(&errand)?),
        }
    }
}

/// Prints the result of a role, so that the process that started this process in the role can read the result.
fn tell(found: &impl Serialize) -> Outcome<()> {
    println!("{}", serde_json::to_string(found)?);
    Ok(())
}

fn run(cli: Cli) -> Outcome<()> {
    if let Some(role) = &cli.role {
        return serde_json::from_str::<Role>(role)?.play();
    }
    let own = std::env::current_exe()?;
    let beside = own.parent().ok_or("this program is in no folder")?;
    let room = tempfile::Builder::new().prefix("stripe-").tempdir_in(cli.dir.as_deref().unwrap_or(beside))?;
    let (rounds, quick, dir) = (cli.rounds, cli.quick, room.path().canonicalize()?);
    tidy_up_when_stopped(dir.clone())?;
    let setup = Setup { rounds, quick, dir, weir: OnceCell::new() };
    let mut report = Report { machine: machine::facts(&setup.dir), tables: Vec::new() };
    let draft = cli.record.then(|| Draft::new("stripe", rounds, &setup.dir));
    for part in Part::value_variants() {
        if !cli.parts.is_empty() && !cli.parts.contains(part) {
            continue;
        }
        match part {
            Part::A => parts::stream::run(&setup, &mut report)?,
            Part::B => parts::scaling::run(&setup, &mut report)?,
            Part::C => parts::small::run(&setup, &mut report)?,
            Part::D => parts::names::run(&setup, &mut report)?,
        }
        if let (Some(draft), Some(table)) = (&draft, report.tables.last()) {
            keep(*part, draft, table)?;
        }
    }
    if cli.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    report.machine.iter().for_each(|(name, value)| println!("{name}: {value}"));
    report.tables.iter().for_each(|table| print!("{table}"));
    Ok(())
}

/// Writes the records of a part to `bench/results/`.
fn keep(part: Part, draft: &Draft, table: &Table) -> Outcome<()> {
    let shape = |part, unit, better, targets| Shape { part, unit, better, targets };
    let (lower, higher) = (Better::Lower, Better::Higher);
    match part {
        Part::A => {
            let write = shape("a-write", "CPU s/GB", lower, "write");
            draft.write(recording::sides(draft, table, &write, (", ", 0), ("bare socket", &[]))?)?;
            let read = shape("a-read", "CPU s/GB", lower, "read");
            draft.write(recording::sides(draft, table, &read, (", ", 3), ("bare socket", &[]))?)
        }
        Part::B => {
            let floor = Some(FloorRow { begins: "floor: bare TCP", not_for: "" });
            let columns = |at| [(at, Kind::Result), (at + 1, Kind::Ratio)];
            let write = shape("b-write", "MB/s", higher, "write");
            draft.write(recording::columns(draft, table, &write, &columns(0), floor.as_ref())?)?;
            let read = shape("b-read", "MB/s", higher, "read");
            draft.write(recording::columns(draft, table, &read, &columns(2), floor.as_ref())?)
        }
        Part::C => {
            let reads = shape("c", "reads/s", higher, "");
            draft.write(recording::sides(draft, table, &reads, (", ", 0), ("bare server", &[]))?)
        }
        Part::D => {
            let floor = FloorRow { begins: "floor: 4 KiB pwrite", not_for: "stat" };
            let columns = [(0, Kind::Result), (1, Kind::Extra), (2, Kind::Extra), (3, Kind::Extra)];
            let names = shape("d", "operations/s", higher, "");
            draft.write(recording::columns(draft, table, &names, &columns, Some(&floor))?)
        }
    }
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
        links::sweep_own();
        // Ignore an error: daemons that still run may write files while the directory is being removed, so some files
        // may remain.
        let _ = std::fs::remove_dir_all(dir);
        std::process::exit(130);
    });
    Ok(())
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stripe: {error}");
            ExitCode::FAILURE
        }
    }
}
