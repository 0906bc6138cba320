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

/// What striping costs and brings
///
/// Everything is a comparison within one run, its sides taking turns. Nothing fails when a target is missed: the tables
/// say so.
#[derive(Parser)]
#[command(name = "stripe", max_term_width = 100)]
struct Cli {
    /// Which parts; all without it
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Rounds of each part
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Small amounts: shows that everything works, the numbers mean little
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Also write the results to bench/results/
    #[arg(long)]
    record: bool,
    /// Where stores and files are made [default: beside this program]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Be a part of an experiment that needs a process of its own
    #[arg(long, hide = true)]
    role: Option<String>,
}

/// The parts of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU seconds per GB of a stream over four iods, against a bare socket
    A,
    /// The rate over 1, 2, 4 and 8 iods behind slow links (needs root)
    B,
    /// 4 KiB reads from one iod against a minimal server
    C,
    /// Creates, stats and unlinks per second
    D,
}

/// The roles in which this program starts itself: a server or a client of an experiment in its own process.
#[derive(Serialize, Deserialize)]
enum Role {
    /// Serves a new object store in `dir`.
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
    /// Sends a stream to the minimal server, or receives one: address of the server, local file, length.
    BarePut(String, Option<PathBuf>, u64),
    BareGet(String, Option<PathBuf>, u64),
    /// Writes a file to Weir, or reads one.
    Put(mover::Errand),
    Get(mover::Errand),
    /// Removes a file in Weir.
    Remove(String),
    /// Creates files in Weir, looks them up, and removes them.
    Names(parts::names::Errand),
}

/// The result of a stream.
#[derive(Serialize, Deserialize)]
struct Moved {
    /// Time from before the first byte until the last byte is in the target, and durable if it was written.
    seconds: f64,
}

impl Moved {
    fn since(start: Instant) -> Self {
        Moved { seconds: start.elapsed().as_secs_f64() }
    }
}

/// The settings that all parts share.
struct Setup {
    rounds: u32,
    quick: bool,
    /// The directory for stores and files.
    dir: PathBuf,
    weir: OnceCell<PathBuf>,
}

/// The error of a function.
type Failure = Box<dyn Error + Send + Sync>;
/// The result of a function that may fail.
type Outcome<T> = Result<T, Failure>;

impl Setup {
    /// Returns the duration, or a tenth of it with `--quick`.
    fn brief(&self, duration: Duration) -> Duration {
        if self.quick { duration / 10 } else { duration }
    }

    /// Returns the number of bytes, or a sixteenth of it with `--quick`.
    fn amount(&self, bytes: u64) -> u64 {
        if self.quick { bytes / 16 } else { bytes }
    }

    /// Returns the path of the binary under test, which the first call builds.
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

/// Prints the result of a role for the process that started it.
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

/// On SIGINT and SIGTERM, deletes the namespaces and the directory of this process. The kernel kills its children.
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
        // Daemons may still write to the directory. What they add now may remain.
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
