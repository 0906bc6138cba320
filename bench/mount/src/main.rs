//! The `mount` benchmark: CPU time of client and servers together, compared with a local file system, bare sockets and
//! bare FUSE.

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
use mounts::{Other, Side, SideKind, Weir};
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

/// Measure what a mount costs
///
/// Starts a cluster ("weir up") and mounts it. Then does the same work in the mount, in a directory of the local file
/// system, and on "bare FUSE", alternately. CPU time is the sum over this program and all processes that serve the
/// mount. A missed bound is no failure: the tables report it.
///
/// Bare FUSE is a file system in memory, in a child process, which answers every request at once. So bare FUSE shows
/// the cost of the requests in the kernel of this machine. The CPU time of a mount beyond bare FUSE is the mount's own
/// cost. A "durable request" goes over a socket to a thread, which answers when 4 KiB are on the local disk.
#[derive(Parser)]
#[command(name = "mount", max_term_width = 100)]
struct Cli {
    /// Run only the rows whose names contain one of these texts
    rows: Vec<String>,
    /// Number of rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Do a sixteenth of the work, to test the benchmark; the numbers are not meaningful
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Also write the results to bench/results/, as the record of this part
    #[arg(long, value_name = "PART", num_args = 0..=1, require_equals = true, default_missing_value = "defaults")]
    record: Option<String>,
    /// Directory for stores and files [default: the directory of this program]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Options of a mount, as for `weir mount -o`; repeat this option for each further mount to compare
    #[arg(short = 'o', long = "mount", value_name = "OPTIONS", default_value = "defaults")]
    mounts: Vec<String>,
    /// Also measure a cluster and its mount in one process ("weir up --mount"), with these mount options
    #[arg(long, value_name = "OPTIONS")]
    up: Vec<String>,
    /// Also measure a file system that is mounted already, "NAME=DIR:PID,PID", with all processes that serve it
    #[arg(long, value_name = "NAME=DIR:PIDS")]
    beside: Vec<Other>,
    /// Count the FUSE requests that the mounts get, by kind, with the kernel's tracing (needs root). Tracing takes
    /// time, so the other numbers are less exact
    #[arg(long)]
    requests: bool,
    /// Path of the `weir` binary to measure, instead of building it
    #[arg(long)]
    weir: Option<PathBuf>,
    /// The role in which this program runs as a child process
    #[arg(long, hide = true)]
    role: Option<String>,
}

/// The roles in which this program starts itself as a child process.
#[derive(Serialize, Deserialize)]
enum Role {
    /// Bare FUSE: a file system in memory, mounted at this directory.
    BareFuse(PathBuf),
}

impl Cli {
    /// Returns whether the user selected the row with this name for measurement.
    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|part| row.contains(part.as_str()))
    }

    /// Returns whether a row of the benchmark must run: the user selected the row, or a selected row uses the files of
    /// this row.
    fn needs(&self, row: &Row) -> bool {
        self.wants(row.name) || ROWS.iter().any(|other| other.behind == Some(row.name) && self.wants(other.name))
    }

    /// Returns the number by which all amounts of work are divided.
    fn scale(&self) -> usize {
        if self.quick { 16 } else { 1 }
    }
}

/// Any error of the `mount` benchmark.
type Failure = Box<dyn Error + Send + Sync>;
/// The result of functions of the `mount` benchmark.
type Outcome<T> = Result<T, Failure>;

/// The measurements of one row of the benchmark on one measured system, with one value for each round.
#[derive(Default)]
struct Found {
    /// CPU time of this program and of the processes of the measured file system, in the unit of the result row.
    cpu: Vec<f64>,
    /// CPU time of this program alone, in the unit of the row.
    own: Vec<f64>,
    /// The rate in MB/s, or in operations per second for rows that do not count bytes.
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

/// All measurements, by the index of the row and the index of the measured system.
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
                // Each round begins with a different measured system, so that no system is always measured first.
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
                if let (Some(counter), SideKind::Weir | SideKind::Fuse) = (&counter, side.what()) {
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
    let work_dir = tempfile::Builder::new().prefix("mount-").tempdir_in(cli.dir.as_deref().unwrap_or(beside))?;
    let work_dir = &work_dir.path().canonicalize()?;
    let program = match &cli.weir {
        Some(weir) => weir.clone(),
        None => build(beside)?,
    };
    let draft = cli.record.as_ref().map(|_| Draft::new("mount", cli.rounds, work_dir));
    let weir = Weir::start(&program, &work_dir.join("weir"))?;
    let mut sides = vec![Side::local(work_dir)?, Side::socket(work_dir)?, Side::durable(work_dir)?];
    match bare::is_allowed() {
        true => sides.push(Side::fuse(work_dir)?),
        false => eprintln!("mount: bare FUSE is left out: only root may mount it"),
    }
    for options in &cli.mounts {
        sides.push(Side::weir(&weir, &work_dir.join(format!("mnt-{}", sides.len())), options)?);
    }
    for options in &cli.up {
        sides.push(Side::up(&program, work_dir, sides.len(), options)?);
    }
    sides.extend(cli.beside.iter().map(Side::other));
    let findings = measure(cli, &sides)?;
    let mut tables = tables::of(&sides, &findings);
    if let (Some(draft), Some(part), false) = (&draft, &cli.record, findings.is_empty()) {
        draft.write(tables::costs_record(draft, part, &tables[0])?)?;
    }
    if cli.wants(slow::NAME) {
        let table = slow::measure(&weir, work_dir, cli.rounds, cli.scale())?;
        if let Some(draft) = &draft {
            let shape = Shape { part: "slow", unit: "writes/s", better: Better::Higher, targets: "" };
            draft.write(recording::columns(draft, &table, &shape, &[(0, Kind::Result)], None)?)?;
        }
        tables.push(table);
    }
    let report = Report { machine: machine::facts(work_dir), tables };
    if cli.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    report.machine.iter().for_each(|(name, value)| println!("{name}: {value}"));
    report.tables.iter().for_each(|table| print!("{table}"));
    Ok(())
}

/// Builds the `weir` binary with the build profile of this program, and returns the path of the binary.
fn build(beside: &Path) -> Outcome<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut command = std::process::Command::new(cargo);
    command.args(["build", "--quiet", "--bin", "weir", "--manifest-path"]).arg(manifest);
    command.args((!cfg!(debug_assertions)).then_some("--release"));
    if command.status()?.success() { Ok(beside.join("weir")) } else { Err("weir does not build".into()) }
}

/// Runs this program as a child process in the given role.
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
