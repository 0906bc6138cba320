//! Conversion of the results of the `creates` benchmark to records in `bench/results/`.

use crate::load::Rate;
use record::{Better, Bound, Cell, Draft, Failure, Kind, Record};

/// Returns an empty record for the create rates.
pub fn rates(draft: &Draft) -> Result<Record, Failure> {
    let mut record = draft.part("rates", "Durable creates of the metadata store", "creates/s", Better::Higher)?;
    record.column("plain file", Kind::Floor);
    record.column("batch log", Kind::Result);
    record.column("redb commits", Kind::Result);
    for name in ["p50 ms", "p99 ms", "CPU us per create", "flushes per create", "bytes written per create"] {
        record.column(name, Kind::Extra);
    }
    Ok(record)
}

/// Adds a row to the record: the create rates with the batch log and with the database alone, and the rate of the
/// baseline (writes to a plain file).
pub fn add_rates(record: &mut Record, in_flight: usize, [log, database]: &[Vec<Rate>; 2], floor: &[f64]) {
    let of = |rates: &[Rate], number: fn(&Rate) -> f64| Cell::of(&rates.iter().map(number).collect::<Vec<f64>>());
    let cells = vec![
        Cell::of(floor),
        of(log, |rate| rate.per_second),
        of(database, |rate| rate.per_second),
        of(log, |rate| rate.p50_ms),
        of(log, |rate| rate.p99_ms),
        of(log, |rate| rate.cpu_us),
        of(log, |rate| 1.0 / rate.per_flush),
        of(log, |rate| rate.written_bytes),
    ];
    record.row(format!("creates/s with {in_flight} in flight"), cells);
    if in_flight == 32 {
        let ratios: Vec<f64> = log.iter().zip(database).map(|(a, b)| a.per_second / b.per_second).collect();
        let what = "creates/s of the batch log over creates/s of redb, 32 in flight";
        record.target(what, Bound::AtLeast(1.5), Cell::of(&ratios));
    }
}

/// Returns the record of the times `took` to open a store of `files` files.
pub fn opening(draft: &Draft, files: u64, took: &[f64]) -> Result<Record, Failure> {
    let mut record = draft.part("opening", "Opening a large metadata store after `kill -9`", "ms", Better::Lower)?;
    record.column("time to open", Kind::Result);
    record.row(format!("at least {files} files"), vec![Cell::of(took)]);
    record.target("opening the store, ms", Bound::AtMost(1000.0), Cell::of(took));
    Ok(record)
}
