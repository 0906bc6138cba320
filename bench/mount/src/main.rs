//! What a mount costs: processor time of client and servers together, beside a local file system, bare sockets and bare FUSE.

mod bare;
mod floor;
#[path = "../../stripe/src/machine.rs"]
mod machine;
mod memory;
mod mounts;
#[path = "../../stripe/src/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../../stripe/src/recording.rs"]
#[allow(dead_code)]
mod recording;
#[path = "../../stripe/src/report.rs"]
mod report;
mod requests;
mod rows;
mod slow;
mod tables;
mod work;

use clap::Parser;
use mounts::{Other, Side, Weir, What};
use record::{Better, Draft, Kind};
use recording::Shape;
use report::Report;
use requests::{Counter, Requests};
use rows::{ROWS, Row, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use work::Done;

/// What a mount costs
///
/// Starts a cluster ("weir up"), mounts it, and does the same things there, in a folder of the local file system, and on
/// "bare FUSE", in turns. Processor time is that of this program and of all processes behind the mount together. Nothing
/// fails when a bound is missed: the tables say so.
///
/// Bare FUSE is a file system in memory, in a process of its own, which answers everything at once: what the kernel and
/// the machine take for the requests themselves, whatever is done about them. What a mount takes beyond it is its own. A
/// durable request goes to a thread by a socket and is answered when 4 KiB are on the local disk.
#[derive(Parser)]
#[command(name = "mount", max_term_width = 100)]
struct Cli {
    /// Only rows whose names contain one of these
    rows: Vec<String>,
    /// Rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// A sixteenth of everything: shows that it works, the numbers mean little
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Also write the results to bench/results/, as this part
    #[arg(long, value_name = "PART", num_args = 0..=1, require_equals = true, default_missing_value = "defaults")]
    record: Option<String>,
    /// Where stores and files are made [default: beside this program]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Options of the mount, as `weir mount -o` has them; once more for another mount that takes its turns beside it
    #[arg(short = 'o', long = "mount", value_name = "OPTIONS", default_value = "defaults")]
    mounts: Vec<String>,
    /// A cluster with its mount in one process ("weir up --mount"), with these options; it takes its turns beside the others
    #[arg(long, value_name = "OPTIONS")]
    up: Vec<String>,
    /// A file system that is mounted already, "NAME=DIR:PID,PID", with all processes that work for it; it takes its turns, too
    #[arg(long, value_name = "NAME=DIR:PIDS")]
    beside: Vec<Other>,
    /// Count the requests that mounts get, by kind, as the kernel tells them to who traces it (root). Takes time: the rest
    /// of the numbers means less
    #[arg(long)]
    requests: bool,
    /// Use this program instead of building it
    #[arg(long)]
    weir: Option<PathBuf>,
    /// What this process is, if not the one that measures
    #[arg(long, hide = true)]
    role: Option<String>,
}

/// Other processes of this program.
#[derive(Serialize, Deserialize)]
enum Role {
    /// A file system in memory, mounted there.
    BareFuse(PathBuf),
}

impl Cli {
    /// Whether a row is to be measured.
    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|part| row.contains(part.as_str()))
    }

    /// Whether a row has to be carried out, if only for what it leaves to those that are measured.
    fn needs(&self, row: &Row) -> bool {
        self.wants(row.name) || ROWS.iter().any(|other| other.behind == Some(row.name) && self.wants(other.name))
    }

    /// What amounts are divided by.
    fn scale(&self) -> usize {
        if self.quick { 16 } else { 1 }
    }
}

/// Why something did not work.
type Failure = Box<dyn Error + Send + Sync>;
/// What everything here returns.
type Outcome<T> = Result<T, Failure>;

/// What was found of one row on one side, a value for each round.
#[derive(Default)]
struct Found {
    /// Processor time, in the unit of the row.
    cpu: Vec<f64>,
    /// That of this program alone.
    own: Vec<f64>,
    /// MB/s, or operations per second where bytes are not the point.
    rate: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    syncs: Vec<f64>,
    requests: Vec<Requests>,
}

impl Found {
    fn push(&mut self, row: &Row, (done, cpu, syncs): (Done, mounts::Cpu, u64)) {
        let amount = match row.unit {
            Unit::PerByte => done.bytes as f64 / 1e9,
            Unit::PerOperation => done.operations as f64 / 1e6,
        };
        self.cpu.push(cpu.all / amount);
        self.own.push(cpu.own / amount);
        let moved = if done.bytes > 0 { done.bytes as f64 / 1e6 } else { done.operations as f64 };
        self.rate.push(moved / done.seconds);
        if !done.times.is_empty() {
            self.p50.push(done.times.value_at_quantile(0.5) as f64 / 1e3);
            self.p99.push(done.times.value_at_quantile(0.99) as f64 / 1e3);
        }
        self.syncs.push((done.syncs + syncs) as f64);
    }

    fn columns(&self) -> [Vec<f64>; 6] {
        [&self.cpu, &self.own, &self.rate, &self.p50, &self.p99, &self.syncs].map(Clone::clone)
    }
}

/// Everything that was found, by row and side.
type Findings = BTreeMap<(usize, usize), Found>;

fn measure(cli: &Cli, sides: &[Side]) -> Outcome<Findings> {
    let counter = if cli.requests { Some(Counter::start()?) } else { None };
    let mut findings = Findings::new();
    for round in 0..cli.rounds as usize {
        for side in sides {
            side.begin()?;
        }
        for (number, row) in ROWS.iter().enumerate().filter(|(_, row)| cli.needs(row)) {
            for turn in 0..sides.len() {
                // Each begins in turn.
                let index = (turn + round) % sides.len();
                let side = &sides[index];
                if let Some(counter) = &counter {
                    counter.clear()?;
                }
                let Some(measured) = side.measure(row, cli.scale())? else { continue };
                if !cli.wants(row.name) {
                    continue;
                }
                let found = findings.entry((number, index)).or_default();
                found.push(row, measured);
                if let (Some(counter), What::Weir | What::Fuse) = (&counter, side.what()) {
                    found.requests.push(counter.of(side.dir())?);
                }
                if rows::was_stopped() {
                    return Err("stopped".into());
                }
            }
        }
        for side in sides {
            side.end()?;
        }
    }
    Ok(findings)
}

fn run(cli: &Cli) -> Outcome<()> {
    rows::listen_for_stop()?;
    let own = std::env::current_exe()?;
    let beside = own.parent().ok_or("this program is in no folder")?;
    let room = tempfile::Builder::new().prefix("mount-").tempdir_in(cli.dir.as_deref().unwrap_or(beside))?;
    let room = &room.path().canonicalize()?;
    let program = match &cli.weir {
        Some(weir) => weir.clone(),
        None => build(beside)?,
    };
    let draft = cli.record.as_ref().map(|_| Draft::new("mount", cli.rounds, room));
    let weir = Weir::start(&program, &room.join("weir"))?;
    let mut sides = vec![Side::local(room)?, Side::socket(room)?, Side::durable(room)?];
    match bare::is_allowed() {
        true => sides.push(Side::fuse(room)?),
        false => eprintln!("mount: bare FUSE is left out: only root may mount it"),
    }
    for options in &cli.mounts {
        sides.push(Side::weir(&weir, &room.join(format!("mnt-{}", sides.len())), options)?);
    }
    for options in &cli.up {
        sides.push(Side::up(&program, room, sides.len(), options)?);
    }
    sides.extend(cli.beside.iter().map(Side::other));
    let findings = measure(cli, &sides)?;
    let mut tables = tables::of(&sides, &findings);
    if let (Some(draft), Some(part), false) = (&draft, &cli.record, findings.is_empty()) {
        draft.write(tables::costs_record(draft, part, &tables[0])?)?;
    }
    if cli.wants(slow::NAME) {
        let table = slow::measure(&weir, room, cli.rounds, cli.scale())?;
        if let Some(draft) = &draft {
            let shape = Shape { part: "slow", unit: "writes/s", better: Better::Higher, targets: "" };
            draft.write(recording::columns(draft, &table, &shape, &[(0, Kind::Result)], None)?)?;
        }
        tables.push(table);
    }
    let report = Report { machine: machine::facts(room), tables };
    if cli.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    report.machine.iter().for_each(|(name, value)| println!("{name}: {value}"));
    report.tables.iter().for_each(|table| print!("{table}"));
    Ok(())
}

/// Builds the binary under test as this program was built, and says where it is.
fn build(beside: &Path) -> Outcome<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut command = std::process::Command::new(cargo);
    command.args(["build", "--quiet", "--bin", "weir", "--manifest-path"]).arg(manifest);
    command.args((!cfg!(debug_assertions)).then_some("--release"));
    if command.status()?.success() { Ok(beside.join("weir")) } else { Err("weir does not build".into()) }
}

/// Is what it was started for.
fn in_role(role: &str) -> Outcome<()> {
    match serde_json::from_str(role)? {
        Role::BareFuse(at) => bare::serve(&at),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(role) => in_role(role),
        None => run(&cli),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mount: {error}");
            ExitCode::FAILURE
        }
    }
}
