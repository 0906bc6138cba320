//! Experiments of the `threshold` benchmark, one file for each kind.

mod gathering;
mod load;
mod methods;
mod shares;
mod small_files;
mod sweep;

use crate::report::Report;
use crate::rig::Rig;
use crate::sheet::Sheet;
use crate::{Experiment, Outcome, Setup};

/// Runs one experiment and adds its tables to the report.
pub fn run(which: Experiment, setup: &Setup, rig: &Rig, sheet: &mut Sheet, report: &mut Report) -> Outcome<()> {
    let table = match which {
        Experiment::E1 => sweep::run(sweep::Kind::One, setup, rig, sheet)?,
        Experiment::E3 => sweep::run(sweep::Kind::Ten, setup, rig, sheet)?,
        Experiment::E4 => sweep::run(sweep::Kind::Random, setup, rig, sheet)?,
        Experiment::E2 => {
            report.tables.push(small_files::replayed(setup, rig, sheet)?);
            small_files::postmark(setup, rig)?
        }
        Experiment::E5 => load::run(setup, rig)?,
        Experiment::E6 => gathering::run(setup, rig, sheet)?,
        Experiment::E7 => shares::run(shares::Kind::Short, setup, rig, sheet)?,
        Experiment::E7Fsync => shares::run(shares::Kind::Fsync, setup, rig, sheet)?,
        Experiment::E7Long => shares::run(shares::Kind::Long, setup, rig, sheet)?,
        Experiment::E23 => methods::clients(setup, rig, sheet)?,
        Experiment::E24 => methods::requests(setup, rig, sheet)?,
    };
    report.tables.push(table);
    Ok(())
}
