//! Tables of the measurements of the `mount` benchmark.

use crate::mounts::{Side, SideKind};
use crate::recording::{self, Shape};
use crate::report::{Bound, Table, ratios};
use crate::requests::Requests;
use crate::rows::{ROWS, Row};
use crate::{Findings, Found};
use record::{Better, Cell, Draft, Kind, Record};
use std::collections::BTreeSet;

/// The measurements of one row of the benchmark on all measured systems.
struct OfRow<'a> {
    row: &'a Row,
    found: Vec<(&'a Side<'a>, &'a Found)>,
}

impl OfRow<'_> {
    /// Returns the measurements of the first measured system of the given kind.
    fn of(&self, what: SideKind) -> Option<&Found> {
        self.found.iter().find(|(side, _)| side.what() == what).map(|(_, found)| *found)
    }

    /// Returns the measurements of the mounts of Weir.
    fn weir(&self) -> impl Iterator<Item = (&Side<'_>, &Found)> {
        self.found.iter().filter(|(side, _)| side.what() == SideKind::Weir).map(|(side, found)| (*side, *found))
    }
}

/// Returns all tables of the benchmark as text.
pub fn of<'a>(sides: &'a [Side<'a>], findings: &'a Findings) -> Vec<Table> {
    let of_row = |(number, row)| {
        let found = sides.iter().enumerate().filter_map(|(index, side)| Some((side, findings.get(&(number, index))?)));
        OfRow { row, found: found.collect() }
    };
    let rows: Vec<_> = ROWS.iter().enumerate().map(of_row).collect();
    let mut tables = vec![costs(&rows), over_floors(&rows)];
    if findings.values().any(|found| !found.requests.is_empty()) {
        tables.push(requests(&rows));
    }
    tables
}

fn costs(rows: &[OfRow]) -> Table {
    let columns = ["CPU", "of it here", "MB/s or /s", "p50 us", "p99 us", "syncs"];
    let mut costs =
        Table::new("CPU of all processes together: s/GB for streams and records, us each for the rest", &columns);
    for of_row in rows {
        let row = of_row.row;
        for (side, found) in &of_row.found {
            costs.row(format!("{}, {}: {}", row.name, row.unit.name(), side.name()), &found.columns());
        }
        for (side, found) in of_row.weir() {
            targets(&mut costs, of_row, side, found);
        }
    }
    costs.note("syncs are those of the whole row: fsync and fdatasync of the programs here, or of the servers");
    costs.note("p50 and p99 are of single requests, as the program sees them");
    costs
}

/// Returns the record of the table of costs. The verdict says how many targets are met; the bounds of the targets are a
/// column.
pub fn costs_record(draft: &Draft, part: &str, costs: &Table) -> Result<Record, record::Failure> {
    let shape = Shape { part, unit: "CPU time", better: Better::Lower, targets: "" };
    let extra = ["local", "bare socket", "durable request"];
    let mut record = recording::sides(draft, costs, &shape, (": ", 0), ("bare FUSE", &extra))?;
    record.column("target (at most)", Kind::Bound);
    for row in &mut record.rows {
        let best =
            ROWS.iter().find(|known| row.name.starts_with(&format!("{}, ", known.name))).and_then(|row| row.best);
        row.cells.push(best.and_then(|best| Cell::of(&[best])));
    }
    let met = record.targets.iter().filter(|target| target.met).count();
    record.verdict = format!("{met} of {} targets are met in this run.", record.targets.len());
    record.targets.clear();
    Ok(record)
}

/// Adds the targets of a mount to the table of costs.
fn targets(costs: &mut Table, of_row: &OfRow, side: &Side, found: &Found) {
    let row = of_row.row;
    let name = format!("{}: {}", row.name, side.name());
    if let Some(bound) = row.best {
        costs.target(format!("{name}, CPU"), Bound::AtMost(bound), &found.cpu);
    }
    let others: Vec<_> = of_row.found.iter().filter(|(side, _)| side.what() == SideKind::Other).collect();
    if !others.is_empty() {
        let least = |round: usize| others.iter().map(|(_, other)| other.cpu[round]).fold(f64::INFINITY, f64::min);
        let over = ratios(&found.cpu, &(0..found.cpu.len()).map(least).collect::<Vec<_>>());
        costs.target(format!("{name}, CPU over the best of others, round by round"), Bound::AtMost(1.0), &over);
    }
    if let (Some(bound), Some(socket)) = (row.cpu_over_floor, of_row.of(SideKind::Socket)) {
        let over = ratios(&found.cpu, &socket.cpu);
        costs.target(format!("{name}, CPU over bare socket"), Bound::AtMost(bound), &over);
    }
    if let (Some(bound), Some(socket)) = (row.rate_of_floor, of_row.of(SideKind::Socket)) {
        let over = ratios(&found.rate, &socket.rate);
        costs.target(format!("{name}, rate over bare socket"), Bound::AtLeast(bound), &over);
    }
    if let (Some(bound), Some(local)) = (row.rate_of_local, of_row.of(SideKind::Local)) {
        let over = ratios(&found.rate, &local.rate);
        costs.target(format!("{name}, rate over local"), Bound::AtLeast(bound), &over);
    }
}

/// Returns the table of Weir's own cost: the CPU time beyond bare FUSE and bare durable requests.
fn over_floors(rows: &[OfRow]) -> Table {
    let columns = ["CPU over bare FUSE", "CPU less bare FUSE", "CPU over bare FUSE and a durable request"];
    let mut table = Table::new("Beside what the kernel and the machine take for the same requests", &columns);
    for of_row in rows {
        let Some(fuse) = of_row.of(SideKind::Fuse) else { continue };
        for (side, found) in of_row.weir() {
            let less = found.cpu.iter().zip(&fuse.cpu).map(|(weir, fuse)| weir - fuse).collect();
            let both = of_row.of(SideKind::Durable).map_or_else(Vec::new, |durable| {
                let floors: Vec<_> = fuse.cpu.iter().zip(&durable.cpu).map(|(fuse, durable)| fuse + durable).collect();
                ratios(&found.cpu, &floors)
            });
            let name = format!("{}, {}: {}", of_row.row.name, of_row.row.unit.name(), side.name());
            table.row(name, &[ratios(&found.cpu, &fuse.cpu), less, both]);
        }
    }
    table.note("bare FUSE gets the requests that a mount without options gets; --requests shows them");
    table
}

/// Returns the table of the requests that the kernel sent to mounts.
fn requests(rows: &[OfRow]) -> Table {
    let all =
        || rows.iter().flat_map(|of_row| of_row.found.iter().map(move |(side, found)| (of_row.row, *side, *found)));
    let kinds: BTreeSet<&str> = all()
        .flat_map(|(.., found)| found.requests.iter().flat_map(|round| round.keys().map(String::as_str)))
        .collect();
    let columns: Vec<_> = kinds.iter().copied().collect();
    let mut table = Table::new("Requests of the kernel to mounts", &columns);
    for (row, side, found) in all().filter(|(.., found)| !found.requests.is_empty()) {
        let of_kind =
            |kind: &&str| found.requests.iter().map(|round| round.get(*kind).copied().unwrap_or(0) as f64).collect();
        let cells: Vec<Vec<f64>> = columns.iter().map(of_kind).collect();
        table.row(format!("{}: {}", row.name, side.name()), &cells);
    }
    table.note(match others(rows).as_slice() {
        [] => "the mounts got the requests that bare FUSE got, but for one in a hundred in a row at most".to_owned(),
        others => format!("not the requests that bare FUSE got, by more than one in a hundred: {}", others.join("; ")),
    });
    table.note("FORGET is not among them: the kernel does not trace it, and nobody waits for it");
    table
}

/// Returns whether two counts of requests differ by at most one percent. A slower mount gets a few more requests,
/// because more cached names expire in the kernel during the row.
fn alike(these: &Requests, those: &Requests) -> bool {
    let of = |requests: &Requests, kind: &String| requests.get(kind).copied().unwrap_or(0);
    let apart: u64 = these
        .keys()
        .chain(those.keys().filter(|kind| !these.contains_key(*kind)))
        .map(|kind| of(these, kind).abs_diff(of(those, kind)))
        .sum();
    apart * 100 <= those.values().sum()
}

/// Returns, for each row, the mounts that in at least one round got other requests from the kernel than bare FUSE did.
fn others(rows: &[OfRow]) -> Vec<String> {
    let of_row = |of_row: &OfRow| {
        let Some(fuse) = of_row.of(SideKind::Fuse) else { return Vec::new() };
        let unlike =
            |found: &Found| !found.requests.iter().zip(&fuse.requests).all(|(these, those)| alike(these, those));
        let others = of_row.weir().filter(|(_, found)| unlike(found));
        others.map(|(side, _)| format!("{}: {}", of_row.row.name, side.name())).collect()
    };
    rows.iter().flat_map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_hundred_may_be_another() {
        let requests = |all: &[(&str, u64)]| all.iter().map(|(kind, count)| (kind.to_string(), *count)).collect();
        let fuse: Requests = requests(&[("WRITE", 198), ("LOOKUP", 2)]);
        assert!(alike(&fuse, &fuse));
        assert!(alike(&requests(&[("WRITE", 198), ("LOOKUP", 4)]), &fuse));
        assert!(!alike(&requests(&[("WRITE", 198), ("LOOKUP", 5)]), &fuse));
        assert!(!alike(&requests(&[("WRITE", 198), ("LOOKUP", 2), ("GETXATTR", 198)]), &fuse));
        assert!(!alike(&requests(&[("LOOKUP", 2)]), &fuse));
    }
}
