//! Experiments E23 and E24: writes through the page cache, with O_DIRECT, and by the client core without a mount, by
//! number of clients and length of requests.

use super::sweep::{keep, median};

use crate::csv_table::CsvTable;
use crate::report::{Bound, Table, ratios};
use crate::rig::{IODS, On, Rig};
use crate::spindle::RATE;
use crate::{Outcome, Setup};
use chart::{Chart, Curve, bytes};
use std::fs;
use trace::Generator;

/// An access method for writes: its name, the mount options (`None`: the client core without a mount), the options of
/// the program that replays the trace, and the length of each write request.
type Way = (&'static str, Option<&'static str>, &'static [&'static str], u32);

const WAYS: [Way; 5] = [
    ("without a mount", None, &["--write-threshold", "64K"], 4 << 20),
    ("O_DIRECT", Some("access=direct"), &["--odirect"], 4 << 20),
    ("page cache, 4M", Some("access=page"), &[], 4 << 20),
    ("page cache, 4K", Some("access=page"), &[], 4 << 10),
    ("all through the mgr", None, &["--mgr-path"], 4 << 20),
];

pub fn clients(setup: &Setup, rig: &Rig, csv: &mut CsvTable) -> Outcome<Table> {
    let counts: &[u32] = if setup.quick { &[1, 8] } else { &[1, 2, 4, 8, 10] };
    let each = if setup.quick { 24 << 20 } else { 64 << 20 };
    let title = "E23: files of their own, written in order by so many clients, and synced (MB/s)";
    let columns: Vec<&str> = WAYS.iter().map(|(name, ..)| *name).collect();
    let mut table = Table::new(title, &columns);
    let mut rates = vec![vec![Vec::new(); counts.len()]; WAYS.len()];
    let mut busy: f64 = 0.0;
    for (at, count) in counts.iter().enumerate() {
        let number = count.to_string();
        for round in 0..setup.rounds {
            for (way, (name, mount, options, request)) in WAYS.iter().enumerate() {
                let one = Generator::Sequential { size: each, request: *request, clients: 1, read: false };
                let trace = keep(rig, "one", &one.generate(0)?)?;
                let trace = trace.to_str().ok_or("a path that is no text")?;
                let words = [&[trace, "--clients", &number], *options].concat();
                let mounted = mount.map(|options| rig.mount("mnt", options)).transpose()?;
                let on = mounted.as_ref().map_or(On::Weir, |mounted| On::Dir(&mounted.dir));
                let run = rig.replay(on, &words)?;
                rates[way][at].push(run.rate() / 1e6);
                busy = busy.max(run.busy);
                csv.add("E23", &format!("{name} x {count}"), u64::from(*request), round, &run);
            }
        }
        let row: Vec<Vec<f64>> = rates.iter().map(|way| way[at].clone()).collect();
        table.row(format!("{count} clients"), &row);
    }
    let last = counts.len() - 1;
    let disks = (IODS as u64 * RATE) as f64 / 1e6;
    let of_disks: Vec<f64> = rates[0][last].iter().map(|rate| rate / disks).collect();
    table.target(
        format!("rate without a mount over rate of all disks ({disks} MB/s), most clients"),
        Bound::AtLeast(0.8),
        &of_disks,
    );
    table.target(
        "rate of most clients over rate of one client, all data through the mgr",
        Bound::AtMost(1.15),
        &ratios(&rates[4][last], &rates[4][0]),
    );
    table.target(
        "rate without a mount over rate with `O_DIRECT`, most clients",
        Bound::AtLeast(0.95),
        &ratios(&rates[0][last], &rates[1][last]),
    );
    table.target(
        "rate with `O_DIRECT` over rate through the page cache, most clients",
        Bound::AtLeast(0.95),
        &ratios(&rates[1][last], &rates[2][last]),
    );
    table.target(
        "rate with requests of 4 KiB over rate with requests of 4 MiB, page cache, one client",
        Bound::AtLeast(0.9),
        &ratios(&rates[3][0], &rates[2][0]),
    );
    table.note(format!("the daemons took at most {:.0} % of the processors", busy * 100.0));
    let curve = |(way, (name, ..)): (usize, &Way)| Curve {
        name: name.to_string(),
        points: counts.iter().zip(&rates[way]).map(|(count, rates)| (f64::from(*count), median(rates))).collect(),
    };
    let curves = WAYS.iter().enumerate().map(curve).collect();
    let chart =
        Chart { title: format!("{title}; to the right: clients"), up: "MB/s".to_owned(), curves, marks: vec![] };
    fs::write(setup.out.join("E23.svg"), chart.svg()?)?;
    Ok(table)
}

pub fn requests(setup: &Setup, rig: &Rig, csv: &mut CsvTable) -> Outcome<Table> {
    let lengths: &[u32] = if setup.quick {
        &[32 << 10, 256 << 10, 4 << 20]
    } else {
        &[32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20]
    };
    let size = if setup.quick { 48 << 20 } else { 128 << 20 };
    let title = "E24: one client through the page cache, by length of request (MB/s)";
    let mut table = Table::new(title, &["page cache", "past the page cache"]);
    let mut rates = [vec![Vec::new(); lengths.len()], vec![Vec::new(); lengths.len()]];
    for (at, request) in lengths.iter().enumerate() {
        let one = Generator::Sequential { size, request: *request, clients: 1, read: false };
        let trace = keep(rig, "one", &one.generate(0)?)?;
        for round in 0..setup.rounds {
            for (rates, access) in rates.iter_mut().zip(["access=page", "access=direct"]) {
                let mounted = rig.mount("mnt", access)?;
                let run = rig.replay(On::Dir(&mounted.dir), &[trace.to_str().ok_or("a path that is no text")?])?;
                rates[at].push(run.rate() / 1e6);
                csv.add("E24", access, u64::from(*request), round, &run);
            }
        }
        table.row(bytes(f64::from(*request)), &[rates[0][at].clone(), rates[1][at].clone()]);
    }
    let shares: Vec<Vec<f64>> = rates[0].windows(2).map(|two| ratios(&two[1], &two[0])).collect();
    let least: Vec<f64> =
        (0..setup.rounds as usize).map(|round| shares.iter().map(|s| s[round]).fold(f64::MAX, f64::min)).collect();
    let what = "rate of each length of requests over rate of the next shorter length, lowest ratio";
    table.target(what, Bound::AtLeast(0.9), &least);
    let curve = |(rates, name): (&Vec<Vec<f64>>, &str)| Curve {
        name: name.to_owned(),
        points: lengths.iter().zip(rates).map(|(length, rates)| (f64::from(*length), median(rates))).collect(),
    };
    let curves = rates.iter().zip(["page cache", "past the page cache"]).map(curve).collect();
    let chart = Chart { title: title.to_owned(), up: "MB/s".to_owned(), curves, marks: Vec::new() };
    fs::write(setup.out.join("E24.svg"), chart.svg()?)?;
    Ok(table)
}
