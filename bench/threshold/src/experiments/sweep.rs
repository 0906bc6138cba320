//! Experiments E1, E3 and E4: writes of all sizes under every write threshold.

use crate::csv_table::CsvTable;
use crate::report::{Bound, Table};
use crate::rig::{IODS, On, Rig, Run};
use crate::{Outcome, Setup};
use chart::{Chart, Curve, bytes};
use std::fs;
use std::path::{Path, PathBuf};
use trace::{Action, Generator, Op, Trace};

/// The writes of an experiment: sequential by one client (E1), sequential by ten clients (E3), or random by one client
/// (E4).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    One,
    Ten,
    Random,
}

/// The write thresholds that the experiment compares alternately: name, and options of the replay.
pub const WAYS: [(&str, &[&str]); 6] = [
    ("direct path", &["--each", "--write-threshold", "0"]),
    ("mgr path", &["--write-threshold", "max"]),
    ("write threshold 64 KiB", &["--write-threshold", "64K"]),
    ("write threshold 256 KiB", &["--write-threshold", "256K"]),
    ("write threshold auto", &["--write-threshold", "auto"]),
    ("direct path, gathered", &["--write-threshold", "0"]),
];
const DIRECT: usize = 0;
const INDIRECT: usize = 1;

const QUICK: [u64; 6] = [16, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const FULL: [u64; 11] = [16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::One => "E1",
            Kind::Ten => "E3",
            Kind::Random => "E4",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Kind::One => "E1: sequential writes and one fsync, one client (MB/s)",
            Kind::Ten => "E3: the same, ten clients on parts of their own (MB/s)",
            Kind::Random => "E4: writes at random places in 32 MiB and one fsync, one client (MB/s)",
        }
    }

    /// Returns the number of clients in the experiment.
    fn clients(self) -> u64 {
        if self == Kind::Ten { 10 } else { 1 }
    }

    /// Returns the number of writes of this size that each client makes before an fsync.
    fn count(self, setup: &Setup, size: u64) -> u64 {
        let (most, bytes) =
            if setup.quick { (if self == Kind::Random { 40 } else { 80 }, 24 << 20) } else { (400, 64 << 20) };
        (bytes / size).min(most).max(self.clients()) / self.clients()
    }

    /// Returns how often a trace repeats the group of writes and its fsync, so that a run takes long enough at `rate`
    /// bytes per second.
    fn times(self, setup: &Setup, size: u64, rate: f64) -> u64 {
        let group = (self.count(setup, size) * self.clients() * size) as f64;
        let seconds = if setup.quick { 0.3 } else { 1.2 };
        ((seconds * rate / group).ceil() as u64).clamp(1, 1000)
    }

    /// Returns the trace for writes of one size: first operations that are not timed, then `times` groups of writes
    /// with an fsync each.
    fn trace(self, setup: &Setup, size: u64, times: u64) -> Outcome<Trace> {
        let (clients, count, request) = (self.clients(), self.count(setup, size) * times, size as u32);
        let one = match self {
            Kind::Random => Generator::Random { size: FILE, request, count: count as u32, clients: 1, read: false },
            _ => Generator::Sequential { size: count * size, request, clients: 1, read: false },
        };
        let writes: Vec<Op> = one.generate(size)?.ops().filter(|op| op.action == Action::Write).copied().collect();
        let mut groups = Vec::new();
        for group in writes.chunks(self.count(setup, size) as usize) {
            groups.extend_from_slice(group);
            groups.push(Op::of(Action::Fsync, 0));
        }
        // The file regions of the clients begin on different iods, whatever the size of the writes. The first writes,
        // which are not timed, go to the bytes before these regions. They create the objects and the connections.
        let part = |client: u64| {
            let warm = (0..IODS as u64).map(|iod| Op::write(0, iod * UNIT + client, 1));
            let shift = FILE + client * ((count * size).next_multiple_of(1 << 20) + UNIT);
            let moved =
                |op: &Op| if op.action == Action::Write { Op { offset: op.offset + shift, ..*op } } else { *op };
            let begin = [Op::of(Action::Open, 0)].into_iter().chain(warm).chain([Op::of(Action::Fsync, 0)]);
            begin.chain(groups.iter().map(moved)).chain([Op::of(Action::Close, 0)]).collect()
        };
        Ok(Trace { clients: (0..clients).map(part).collect() })
    }
}

/// Number of operations at the beginning of a trace that are not timed.
const WARM: &str = "10";
const FILE: u64 = 32 << 20;
const UNIT: u64 = 64 << 10;
/// Number of write groups in the first run. The rate of the first run determines the number of groups of the timed
/// runs.
const FIRST: u64 = 3;

/// Writes a trace to a file; returns the path of the file.
pub fn keep(rig: &Rig, name: &str, trace: &Trace) -> Outcome<PathBuf> {
    let path = rig.room.join(name);
    fs::write(&path, trace::print(trace))?;
    Ok(path)
}

/// The results of one sweep over thresholds and sizes.
struct Found {
    sizes: Vec<u64>,
    /// Throughput in MB/s, indexed by threshold, size and round.
    rates: Vec<Vec<Vec<f64>>>,
}

pub fn run(kind: Kind, setup: &Setup, rig: &Rig, csv: &mut CsvTable) -> Outcome<Table> {
    let sizes = if setup.quick { QUICK.to_vec() } else { FULL.to_vec() };
    let mut rates = vec![vec![Vec::new(); sizes.len()]; WAYS.len()];
    for (at, size) in sizes.iter().enumerate() {
        let traces = traces(kind, setup, rig, *size)?;
        for round in 0..setup.rounds {
            for (way, (name, options)) in WAYS.iter().enumerate() {
                let run = replay(rig, &traces[way], options)?;
                rates[way][at].push(run.write_rate(*size) / 1e6);
                csv.add(kind.name(), name, *size, round, &run);
            }
        }
    }
    let found = Found { sizes, rates };
    fs::write(setup.out.join(format!("{}.svg", kind.name())), found.chart(kind).svg()?)?;
    Ok(found.table(kind, setup))
}

/// Makes a trace for each write threshold, long enough to measure the throughput under this threshold. All thresholds
/// with less than twice the lowest throughput get traces of the same length. The direct path always gets a trace for
/// its own throughput.
fn traces(kind: Kind, setup: &Setup, rig: &Rig, size: u64) -> Outcome<Vec<PathBuf>> {
    let mut rates = Vec::new();
    for (way, (_, options)) in WAYS.iter().enumerate() {
        let first = kind.trace(setup, size, if way == DIRECT { 1 } else { FIRST })?;
        rates.push(replay(rig, &keep(rig, "first", &first)?, options)?.write_rate(size));
    }
    let slowest = rates[INDIRECT..].iter().copied().fold(f64::MAX, f64::min);
    let rate = |way: usize| if way != DIRECT && rates[way] < 2.0 * slowest { slowest } else { rates[way] };
    let trace = |way| keep(rig, &format!("way-{way}"), &kind.trace(setup, size, kind.times(setup, size, rate(way)))?);
    (0..WAYS.len()).map(trace).collect()
}

/// Replays a trace of this experiment under one threshold.
fn replay(rig: &Rig, trace: &Path, options: &[&str]) -> Outcome<Run> {
    let trace = trace.to_str().ok_or("a path that is no text")?;
    rig.replay(On::Weir, &[&[trace, "--warm", WARM], options].concat())
}

impl Found {
    /// Returns the ratio of the throughputs of two thresholds at one size, for each round.
    fn ratio(&self, of: usize, to: usize, size: usize) -> Vec<f64> {
        self.rates[of][size].iter().zip(&self.rates[to][size]).map(|(a, b)| a / b).collect()
    }

    /// Returns, for each round, the size at which the direct path becomes as fast as the mgr path.
    fn crossing(&self) -> Vec<f64> {
        let rounds = self.rates[DIRECT][0].len();
        let of_round = |round: usize| {
            let ratio = |size: usize| (self.rates[INDIRECT][size][round] / self.rates[DIRECT][size][round]).ln();
            let last = (0..self.sizes.len()).rev().find(|size| ratio(*size) > 0.0)?;
            let next = last + 1;
            let Some(behind) = self.sizes.get(next) else { return Some(*self.sizes.last()? as f64 * 2.0) };
            let (a, b) = (ratio(last), ratio(next));
            let (x, y) = ((self.sizes[last] as f64).ln(), (*behind as f64).ln());
            Some((x + (y - x) * a / (a - b)).exp())
        };
        (0..rounds).map(|round| of_round(round).unwrap_or(0.0)).collect()
    }

    /// Divides the throughput under a write threshold by the throughput of the faster path (direct or mgr), for each
    /// write size and round. Returns the write size with the smallest median of these ratios, and the ratios of all
    /// rounds at this size.
    fn least(&self, way: usize) -> (u64, Vec<f64>) {
        let share = |size: usize, round: usize| {
            let better = self.rates[DIRECT][size][round].max(self.rates[INDIRECT][size][round]);
            self.rates[way][size][round] / better
        };
        let shares =
            |size: usize| (0..self.rates[way][size].len()).map(|round| share(size, round)).collect::<Vec<f64>>();
        let all = self.sizes.iter().enumerate().map(|(at, size)| (*size, shares(at)));
        all.min_by(|a, b| median(&a.1).total_cmp(&median(&b.1))).unwrap_or_default()
    }

    fn chart(&self, kind: Kind) -> Chart {
        let curve = |(way, (name, _)): (usize, &(&str, &[&str]))| Curve {
            name: name.to_string(),
            points: self
                .sizes
                .iter()
                .zip(&self.rates[way])
                .map(|(size, rates)| (*size as f64, median(rates)))
                .collect(),
        };
        let curves = WAYS.iter().enumerate().map(curve).collect();
        Chart { title: kind.title().to_owned(), up: "MB/s".to_owned(), curves, marks: Vec::new() }
    }

    fn table(&self, kind: Kind, setup: &Setup) -> Table {
        let columns: Vec<&str> = WAYS.iter().map(|(name, _)| *name).chain(["mgr path over direct path"]).collect();
        let mut table = Table::new(kind.title(), &columns);
        for (at, size) in self.sizes.iter().enumerate() {
            let mut cells: Vec<Vec<f64>> = self.rates.iter().map(|way| way[at].clone()).collect();
            cells.push(self.ratio(INDIRECT, DIRECT, at));
            table.row(format!("writes of {}", bytes(*size as f64)), &cells);
        }
        let at = |size: u64| self.sizes.iter().position(|s| *s == size).unwrap_or(0);
        let crossing = self.crossing();
        if kind == Kind::One {
            for (size, bound) in
                [(16, Bound::AtLeast(10.0)), (16 << 10, Bound::AtLeast(1.0)), (256 << 10, Bound::AtMost(1.0))]
            {
                let writes = bytes(size as f64);
                let what = format!("rate of the mgr path over rate of the direct path, writes of {writes}");
                table.target(what, bound, &self.ratio(INDIRECT, DIRECT, at(size)));
            }
        }
        for (way, (name, _)) in WAYS.iter().enumerate().filter(|(_, (name, _))| name.starts_with("write threshold")) {
            let (worst, shares) = self.least(way);
            let worst = bytes(worst as f64);
            let what = format!("rate with {name} over rate of the faster path, at the worst size of writes ({worst})");
            table.target(what, Bound::AtLeast(0.95), &shares);
        }
        compare(kind, setup, &crossing, &mut table);
        table.note(format!("direct path and mgr path are equally fast with writes of {}", bytes(median(&crossing))));
        table.note("direct path: each write is sent alone and waited for; in all other columns the client gathers, also in the last");
        table
    }
}

/// Experiment E1 stores the write size at which the direct path and the mgr path are equally fast. Each later
/// experiment compares the write size that it found with the size of E1, if E1 has run before.
fn compare(kind: Kind, setup: &Setup, crossing: &[f64], table: &mut Table) {
    let path = setup.out.join(if setup.quick { "crossing-quick" } else { "crossing" });
    match kind {
        // Ignore a write error: without this file, only the comparison by a later experiment is missing.
        Kind::One => drop(fs::write(&path, median(crossing).to_string())),
        _ => {
            let Some(of_one) = fs::read_to_string(&path).ok().and_then(|text| text.parse::<f64>().ok()) else { return };
            let shares: Vec<f64> = crossing.iter().map(|at| at / of_one).collect();
            let bound = if kind == Kind::Ten { Bound::AtMost(1.0) } else { Bound::AtLeast(1.0) };
            let at = "size of writes at which both paths are equally fast";
            table.target(format!("{at}: experiment {} over experiment E1", kind.name()), bound, &shares);
        }
    }
}

/// Returns the median; for an even number of values, the upper of the two middle values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
