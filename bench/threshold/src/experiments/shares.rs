//! E7: the digitisation trace, whose few large requests have nearly all bytes, under several thresholds.

use super::sweep::median;
use crate::report::{Bound, Table, ratios};
use crate::rig::{On, Rig};
use crate::sheet::Sheet;
use crate::{Outcome, Setup};
use chart::{Chart, Curve};
use std::fs;

/// Thresholds: their names, and where they are drawn.
const WAYS: [(&str, &[&str], f64); 7] = [
    ("direct", &["--each", "--write-threshold", "0"], 256.0),
    ("T=1K", &["--write-threshold", "1K"], 1024.0),
    ("T=32K", &["--write-threshold", "32K"], 32768.0),
    ("T=256K", &["--write-threshold", "256K"], 262144.0),
    ("all indirect", &["--write-threshold", "max"], 2097152.0),
    ("auto", &["--write-threshold", "auto"], 0.0),
    ("direct, gathered", &["--write-threshold", "0"], 0.0),
];

pub fn run(fsync: bool, setup: &Setup, rig: &Rig, sheet: &mut Sheet) -> Outcome<Table> {
    let (all, kept) = if fsync { ("with its fsyncs", "--fsync") } else { ("without fsyncs", "--no-fsync") };
    let events: &[u32] = if setup.quick { &[10] } else { &[50, 500] };
    let name = if fsync { "E7-fsync" } else { "E7" };
    let columns: Vec<String> = events.iter().map(|events| format!("{events} events, MB/s")).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).chain(["client RPCs", "iod writes"]).collect();
    let mut table = Table::new(format!("E7: the digitisation trace, {all}"), &columns);
    let mut rates = vec![vec![Vec::new(); events.len()]; WAYS.len()];
    let mut counts = vec![(Vec::new(), Vec::new()); WAYS.len()];
    for (at, events) in events.iter().enumerate() {
        let count = events.to_string();
        let words = ["--generate", "digitisation", "--events", &count, kept];
        // Half a gigabyte at a time: one round has to do.
        for round in 0..if *events > 100 { 1 } else { setup.rounds } {
            for (way, (called, options, _)) in WAYS.iter().enumerate() {
                let words = [&words, *options].concat();
                // Counting takes seconds.
                let counting = at == 0 && !setup.quick;
                let run = if counting { rig.counted(On::Weir, &words) } else { rig.replay(On::Weir, &words) }?;
                rates[way][at].push(run.rate() / 1e6);
                sheet.add(&format!("{name}-{events}"), called, 0, round, &run);
                if at == 0 {
                    counts[way].0.push(run.rpcs() as f64);
                    counts[way].1.push(run.iod_writes as f64);
                }
            }
        }
    }
    for (way, (called, ..)) in WAYS.iter().enumerate() {
        let (rpcs, writes) = counts[way].clone();
        table.row(*called, &[rates[way].clone(), vec![rpcs, writes]].concat());
    }
    targets(fsync, events, &rates, &mut table);
    fs::write(setup.out.join(format!("{name}.svg")), chart(&rates, all).svg()?)?;
    table.note("client RPCs and iod writes are those of the first column");
    Ok(table)
}

/// With its fsyncs, every way has to wait for the same disks after each two or three requests: no way is to be much worse than another.
fn targets(fsync: bool, events: &[u32], rates: &[Vec<Vec<f64>>], table: &mut Table) {
    for (at, events) in events.iter().enumerate() {
        let over = |of: usize, to: usize| ratios(&rates[of][at], &rates[to][at]);
        if fsync {
            table.target(format!("{events} events: T=32K over direct"), Bound::AtLeast(0.95), &over(2, 0));
            table.target(format!("{events} events: T=32K over all indirect"), Bound::AtLeast(0.95), &over(2, 4));
            continue;
        }
        table.target(format!("{events} events: T=32K over direct"), Bound::AtLeast(1.4), &over(2, 0));
        table.target(format!("{events} events: T=32K over all indirect"), Bound::AtLeast(1.2), &over(2, 4));
        table.target(format!("{events} events: T=32K over T=256K"), Bound::AtLeast(0.95), &over(2, 3));
        table.target(format!("{events} events: T=32K over T=256K"), Bound::AtMost(1.05), &over(2, 3));
        table.target(format!("{events} events: T=1K over direct"), Bound::AtLeast(1.0), &over(1, 0));
        table.target(format!("{events} events: T=32K over T=1K"), Bound::AtLeast(1.0), &over(2, 1));
        table.target(format!("{events} events: auto over T=32K"), Bound::AtLeast(0.95), &over(5, 2));
    }
}

fn chart(rates: &[Vec<Vec<f64>>], all: &str) -> Chart {
    let drawn = WAYS.iter().enumerate().filter(|(_, (.., place))| *place > 0.0);
    let points = drawn.map(|(way, (.., place))| (*place, median(&rates[way][0]))).collect();
    let curves = vec![Curve { name: format!("digitisation {all}"), points }];
    let title = "rate by threshold; first: all straight, last: none".to_owned();
    Chart { title, up: "MB/s".to_owned(), curves, marks: Vec::new() }
}
