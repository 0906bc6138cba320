//! Experiment E7: the digitisation trace, in which few large requests contain nearly all bytes, under several
//! thresholds.

use super::sweep::median;
use crate::csv_table::CsvTable;
use crate::report::{Bound, Table, ratios};
use crate::rig::{On, Rig};
use crate::{Outcome, Setup};
use chart::{Chart, Curve};
use std::fs;

/// The write thresholds of the experiment: name, options of the replay, and horizontal position in the chart (0: not
/// drawn).
const WAYS: [(&str, &[&str], f64); 7] = [
    ("direct path", &["--each", "--write-threshold", "0"], 256.0),
    ("write threshold 1 KiB", &["--write-threshold", "1K"], 1024.0),
    ("write threshold 32 KiB", &["--write-threshold", "32K"], 32768.0),
    ("write threshold 256 KiB", &["--write-threshold", "256K"], 262144.0),
    ("mgr path", &["--write-threshold", "max"], 2097152.0),
    ("write threshold auto", &["--write-threshold", "auto"], 0.0),
    ("direct path, gathered", &["--write-threshold", "0"], 0.0),
];

/// Variants of the digitisation trace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Short,
    Fsync,
    Long,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Short => "E7",
            Kind::Fsync => "E7-fsync",
            Kind::Long => "E7-long",
        }
    }

    fn events(self, setup: &Setup) -> u32 {
        match (self, setup.quick) {
            (Kind::Long, false) => 500,
            (Kind::Long, true) | (_, false) => 50,
            (_, true) => 10,
        }
    }

    /// Returns the number of rounds for this variant. The long trace has half a gigabyte, so the experiment replays it
    /// only once.
    fn rounds(self, setup: &Setup) -> u32 {
        if self == Kind::Long { 1 } else { setup.rounds }
    }
}

pub fn run(kind: Kind, setup: &Setup, rig: &Rig, csv: &mut CsvTable) -> Outcome<Table> {
    let (all, kept) =
        if kind == Kind::Fsync { ("with its fsyncs", "--fsync") } else { ("without fsyncs", "--no-fsync") };
    let events = kind.events(setup);
    let count = events.to_string();
    let words = ["--generate", "digitisation", "--events", &count, kept];
    let mut rates = vec![Vec::new(); WAYS.len()];
    let mut counts = vec![(Vec::new(), Vec::new()); WAYS.len()];
    for round in 0..kind.rounds(setup) {
        for (way, (called, options, _)) in WAYS.iter().enumerate() {
            let words = [&words, *options].concat();
            // Counting the WRITE requests of the iods takes seconds, so count them only in the first round.
            let counting = round == 0 && !setup.quick;
            let run = if counting { rig.counted(On::Weir, &words) } else { rig.replay(On::Weir, &words) }?;
            rates[way].push(run.rate() / 1e6);
            csv.add(kind.name(), called, 0, round, &run);
            counts[way].0.push(run.rpcs() as f64);
            if counting {
                counts[way].1.push(run.iod_writes as f64);
            }
        }
    }
    let mut table = Table::new(
        format!("{}: the digitisation trace, {events} events, {all}", kind.name()),
        &["MB/s", "client RPCs", "iod writes"],
    );
    for (way, (called, ..)) in WAYS.iter().enumerate() {
        let (rpcs, writes) = counts[way].clone();
        table.row(*called, &[rates[way].clone(), rpcs, writes]);
    }
    targets(kind, &rates, &mut table);
    fs::write(setup.out.join(format!("{}.svg", kind.name())), chart(&rates, all).svg()?)?;
    Ok(table)
}

/// Adds the targets to the table. The trace with fsyncs waits for the disks after every two or three requests, whatever
/// the threshold. So for this trace the target is only that a threshold of 32 KiB is not much slower than the direct
/// path alone or the mgr path alone.
fn targets(kind: Kind, rates: &[Vec<f64>], table: &mut Table) {
    let mut target = |of: usize, to: usize, bound: Bound| {
        let what = format!("rate with {} over rate with {}", WAYS[of].0, WAYS[to].0);
        table.target(what, bound, &ratios(&rates[of], &rates[to]));
    };
    if kind == Kind::Fsync {
        target(2, 0, Bound::AtLeast(0.95));
        target(2, 4, Bound::AtLeast(0.95));
        return;
    }
    target(2, 0, Bound::AtLeast(1.4));
    target(2, 4, Bound::AtLeast(1.2));
    target(2, 3, Bound::AtLeast(0.95));
    target(2, 3, Bound::AtMost(1.05));
    target(1, 0, Bound::AtLeast(1.0));
    target(2, 1, Bound::AtLeast(1.0));
    target(5, 2, Bound::AtLeast(0.95));
}

fn chart(rates: &[Vec<f64>], all: &str) -> Chart {
    let drawn = WAYS.iter().enumerate().filter(|(_, (.., place))| *place > 0.0);
    let points = drawn.map(|(way, (.., place))| (*place, median(&rates[way]))).collect();
    let curves = vec![Curve { name: format!("digitisation {all}"), points }];
    let title = "rate by threshold; first: all straight, last: none".to_owned();
    Chart { title, up: "MB/s".to_owned(), curves, marks: Vec::new() }
}
