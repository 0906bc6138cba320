//! Experiments of the `threshold` benchmark, one file for each kind.

mod gathering;
mod load;
mod methods;
mod shares;
mod small_files;
mod sweep;

use crate::csv_table::CsvTable;
use crate::report::Report;
use crate::rig::Rig;
use crate::{Experiment, Outcome, Setup};

/// Runs one experiment and adds its tables to the report.
pub fn run(which: Experiment, setup: &Setup, rig: &Rig, csv: &mut CsvTable, report: &mut Report) -> Outcome<()> {
    let table = match which {
        Experiment::E1 => sweep::run(sweep::Kind::One, setup, rig, csv)?,
        Experiment::E3 => sweep::run(sweep::Kind::Ten, setup, rig, csv)?,
        Experiment::E4 => sweep::run(sweep::Kind::Random, setup, rig, csv)?,
        Experiment::E2 => {
            report.tables.push(small_files::replayed(setup, rig, csv)?);
            small_files::postmark(setup, rig)?
        }
        Experiment::E5 => load::run(setup, rig)?,
        Experiment::E6 => gathering::run(setup, rig, csv)?,
        Experiment::E7 => shares::run(shares::Kind::Short, setup, rig, csv)?,
        Experiment::E7Fsync => shares::run(shares::Kind::Fsync, setup, rig, csv)?,
        Experiment::E7Long => shares::run(shares::Kind::Long, setup, rig, csv)?,
        Experiment::E23 => methods::clients(setup, rig, csv)?,
        Experiment::E24 => methods::requests(setup, rig, csv)?,
    };
    report.tables.push(table);
    Ok(())
}
