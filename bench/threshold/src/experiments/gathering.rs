//! Experiment E6: eight clients alternately write the records of one file, with an mgr that gathers writes and with an
//! mgr that does not.

use crate::csv_table::CsvTable;
use crate::report::{Bound, Table, ratios};
use crate::rig::{On, Rig};
use crate::{Outcome, Setup};

const SIDES: [(&str, On<'_>); 2] = [("not gathered", On::Plain), ("gathered", On::Weir)];

pub fn run(setup: &Setup, rig: &Rig, csv: &mut CsvTable) -> Outcome<Table> {
    let count = if setup.quick { "64" } else { "400" };
    let words = ["--generate", "strided", "--clients", "8", "--request", "4K", "--count", count];
    let ways: [(&str, &[&str]); 2] = [("records sent together", &[]), ("records sent one by one", &["--each"])];
    let mut table =
        Table::new("E6: eight clients, records of 4 KiB in turns, all through the mgr", &["iod writes", "seconds"]);
    let mut targets = Vec::new();
    for (way, options) in ways {
        let mut found = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        for round in 0..setup.rounds {
            for ((name, on), found) in SIDES.iter().zip(&mut found) {
                let run = rig.counted(*on, &[&words[..], &["--write-threshold", "max"], options].concat())?;
                found.0.push(run.iod_writes as f64);
                found.1.push(run.seconds);
                csv.add("E6", &format!("{way} {name}"), 4096, round, &run);
            }
        }
        for ((name, _), (writes, seconds)) in SIDES.iter().zip(&found) {
            table.row(format!("{way}, {name}"), &[writes.clone(), seconds.clone()]);
        }
        targets.push((way, ratios(&found[0].0, &found[1].0), ratios(&found[0].1, &found[1].1)));
    }
    for (way, fewer, faster) in targets {
        table.target(
            format!("requests to the iods without gathering over requests with gathering, {way}"),
            Bound::AtLeast(8.0),
            &fewer,
        );
        table.target(
            format!("speed of writes with gathering over speed without gathering, {way}"),
            Bound::AtLeast(2.0),
            &faster,
        );
    }
    Ok(table)
}
