//! What a mount costs: processor time of client and servers together, beside a local file system and bare sockets.

mod floor;
#[path = "../../stripe/src/machine.rs"]
mod machine;
mod mounts;
#[path = "../../stripe/src/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../../stripe/src/report.rs"]
mod report;
mod rows;
mod slow;
mod work;

use clap::Parser;
use mounts::{Side, Weir};
use report::{Bound, Report, Table, ratios};
use rows::{ROWS, Row, Unit};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use work::Done;

/// What a mount costs
///
/// Starts a cluster ("weir up"), mounts it, and does the same things there and in a folder of the local file system, in
/// turns. Processor time is that of this program and of all of Weir's processes together. Nothing fails when a bound is
/// missed: the tables say so.
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
    /// Where stores and files are made [default: beside this program]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Options of the mount, as `weir mount -o` has them; once more for another mount that takes its turns beside it
    #[arg(short = 'o', long = "mount", value_name = "OPTIONS", default_value = "defaults")]
    mounts: Vec<String>,
    /// Use this program instead of building it
    #[arg(long)]
    weir: Option<PathBuf>,
}

impl Cli {
    /// Whether a row is to be measured.
    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|part| row.contains(part.as_str()))
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
    let mut findings = Findings::new();
    for round in 0..cli.rounds as usize {
        for side in sides {
            side.begin()?;
        }
        for (number, row) in ROWS.iter().enumerate().filter(|(_, row)| cli.wants(row.name)) {
            for turn in 0..sides.len() {
                // Each begins in turn.
                let index = (turn + round) % sides.len();
                let Some(measured) = sides[index].measure(row, cli.scale())? else { continue };
                findings.entry((number, index)).or_default().push(row, measured);
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

fn tables(sides: &[Side], findings: &Findings) -> Vec<Table> {
    let columns = ["CPU", "of it here", "MB/s or /s", "p50 us", "p99 us", "syncs"];
    let mut costs =
        Table::new("CPU of all processes together: s/GB for streams and records, us each for the rest", &columns);
    for (number, row) in ROWS.iter().enumerate() {
        let found = |index: usize| findings.get(&(number, index));
        for (index, side) in sides.iter().enumerate() {
            let Some(found) = found(index) else { continue };
            costs.row(format!("{}, {}: {}", row.name, row.unit.name(), side.name()), &found.columns());
            if !side.is_weir() {
                continue;
            }
            let name = format!("{}: {}", row.name, side.name());
            if let Some(bound) = row.best {
                costs.target(format!("{name}, CPU"), Bound::AtMost(bound), &found.cpu);
            }
            let other = |local: bool| {
                let mut all =
                    sides.iter().enumerate().filter_map(|(index, side)| Some((side, findings.get(&(number, index))?)));
                all.find(|(side, _)| if local { side.is_local() } else { side.is_floor() }).map(|(_, found)| found)
            };
            if let (Some(bound), Some(floor)) = (row.cpu_over_floor, other(false)) {
                costs.target(
                    format!("{name}, CPU over bare socket"),
                    Bound::AtMost(bound),
                    &ratios(&found.cpu, &floor.cpu),
                );
            }
            if let (Some(bound), Some(floor)) = (row.rate_of_floor, other(false)) {
                costs.target(
                    format!("{name}, rate over bare socket"),
                    Bound::AtLeast(bound),
                    &ratios(&found.rate, &floor.rate),
                );
            }
            if let (Some(bound), Some(local)) = (row.rate_of_local, other(true)) {
                costs.target(
                    format!("{name}, rate over local"),
                    Bound::AtLeast(bound),
                    &ratios(&found.rate, &local.rate),
                );
            }
        }
    }
    costs.note("syncs are those of the whole row: fsync and fdatasync of the programs here, or of the servers");
    costs.note("p50 and p99 are of single requests, as the program sees them");
    vec![costs]
}

fn run(cli: &Cli) -> Outcome<()> {
    rows::listen_for_stop()?;
    let own = std::env::current_exe()?;
    let beside = own.parent().ok_or("this program is in no folder")?;
    let room = tempfile::Builder::new().prefix("mount-").tempdir_in(cli.dir.as_deref().unwrap_or(beside))?;
    let room = &room.path().canonicalize()?;
    let weir = match &cli.weir {
        Some(weir) => weir.clone(),
        None => build(beside)?,
    };
    let weir = Weir::start(&weir, &room.join("weir"))?;
    let mut sides = vec![Side::local(room)?, Side::floor(room)?];
    for options in &cli.mounts {
        sides.push(Side::weir(&weir, &room.join(format!("mnt-{}", sides.len())), options)?);
    }
    let findings = measure(cli, &sides)?;
    let mut tables = tables(&sides, &findings);
    if cli.wants(slow::NAME) {
        tables.push(slow::measure(&weir, room, cli.rounds, cli.scale())?);
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

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mount: {error}");
            ExitCode::FAILURE
        }
    }
}
