//! Conversion of the benchmark's tables to records in `bench/results/`.

use crate::report::{Bound, Number, Table};
use record::{Better, Cell, Draft, Failure, Kind, Record};

/// The properties of a record that its table does not contain.
pub struct Shape<'a> {
    /// The part of the `stripe` benchmark.
    pub part: &'a str,
    /// The unit of the numbers in the record.
    pub unit: &'a str,
    /// Whether lower or higher numbers of the record are better.
    pub better: Better,
    /// The record includes the targets whose names contain this text.
    pub targets: &'a str,
}

/// A row of a table that is the baseline (floor) of other rows.
pub struct FloorRow<'a> {
    /// The prefix of the name of the baseline row.
    pub begins: &'a str,
    /// The prefix of the names of rows that do not use this baseline; empty if all rows use this baseline.
    pub not_for: &'a str,
}

/// Returns the record of the given columns of a table. The record has an additional column with the baseline: in each
/// row, the value that the row `floor` of the table has in the first given column. The record omits all rows whose
/// names begin with `floor`.
pub fn columns(
    draft: &Draft,
    table: &Table,
    shape: &Shape,
    columns: &[(usize, Kind)],
    floor: Option<&FloorRow>,
) -> Result<Record, Failure> {
    let mut record = empty(draft, table, shape)?;
    let floor_row = floor.and_then(|floor| table.rows.iter().find(|row| row.name.starts_with(floor.begins)));
    if let Some(row) = floor_row {
        record.column(row.name.trim_start_matches("floor: "), Kind::Floor);
    }
    for (at, kind) in columns {
        record.column(table.columns[*at].clone(), *kind);
    }
    let cell_of = |cells: &[Option<Number>], at: usize| cells.get(at).copied().flatten().and_then(cell);
    for row in table.rows.iter().filter(|row| !row.name.starts_with("floor")) {
        let mut cells = Vec::new();
        if let (Some(floor), Some(of)) = (floor, floor_row) {
            let applies = floor.not_for.is_empty() || !row.name.starts_with(floor.not_for);
            cells.extend([columns.first().filter(|_| applies).and_then(|(at, _)| cell_of(&of.cells, *at))]);
        }
        cells.extend(columns.iter().map(|(at, _)| cell_of(&row.cells, *at)));
        record.row(row.name.clone(), cells);
    }
    Ok(record)
}

/// Returns the record of one column of a table. The name of each table row consists of an operation, `separator`, and
/// a measured system. The record has a row for each operation and a column for each system. `floor` names the system
/// that is the baseline; the plot omits the systems in `extra`.
pub fn sides(
    draft: &Draft,
    table: &Table,
    shape: &Shape,
    (separator, column): (&str, usize),
    (floor, extra): (&str, &[&str]),
) -> Result<Record, Failure> {
    let mut record = empty(draft, table, shape)?;
    let rows = table.rows.iter().filter(|row| !row.name.starts_with("floor"));
    let named: Vec<_> =
        rows.filter_map(|row| Some((row.name.split_once(separator)?, row.cells.get(column)?))).collect();
    let (mut sides, mut things) = (Vec::new(), Vec::new());
    for ((thing, side), _) in &named {
        if !sides.contains(side) {
            sides.push(*side);
        }
        if !things.contains(thing) {
            things.push(*thing);
        }
    }
    for side in &sides {
        let kind = if *side == floor {
            Kind::Floor
        } else if extra.contains(side) {
            Kind::Extra
        } else {
            Kind::Result
        };
        record.column(*side, kind);
    }
    for thing in things {
        let of = |side: &&str| {
            named.iter().find(|(name, _)| *name == (thing, *side)).and_then(|(_, found)| cell((**found)?))
        };
        record.row(thing, sides.iter().map(of).collect());
    }
    Ok(record)
}

fn empty(draft: &Draft, table: &Table, shape: &Shape) -> Result<Record, Failure> {
    let mut record = draft.part(shape.part, &table.title, shape.unit, shape.better)?;
    for target in table.targets.iter().filter(|target| target.what.contains(shape.targets)) {
        let bound = match target.bound {
            Bound::AtLeast(bound) => record::Bound::AtLeast(bound),
            Bound::AtMost(bound) => record::Bound::AtMost(bound),
        };
        record.target(target.what.clone(), bound, cell(target.found));
    }
    Ok(record)
}

fn cell(number: Number) -> Option<Cell> {
    Cell::spread(number.median, number.low, number.high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const SHAPE: Shape = Shape { part: "none", unit: "us", better: Better::Lower, targets: "write" };

    fn names(record: &Record) -> Vec<(&str, Kind)> {
        record.columns.iter().map(|column| (&column.name[..], column.kind)).collect()
    }

    fn medians(record: &Record) -> Vec<(&str, Vec<Option<f64>>)> {
        let cells = |row: &record::Row| row.cells.iter().map(|cell| cell.map(|cell| cell.median)).collect();
        record.rows.iter().map(|row| (&row.name[..], cells(row))).collect()
    }

    #[test]
    fn sides_become_columns() {
        let mut table = Table::new("t", &["cpu", "rate"]);
        for (name, cpu) in [("floor: none", 9.0), ("a, bare", 1.0), ("a, x, y", 2.0), ("b, x, y", 3.0)] {
            table.row(name, &[vec![cpu], vec![7.0]]);
        }
        table.target("write", Bound::AtMost(2.0), &[3.0]);
        table.target("read", Bound::AtMost(2.0), &[3.0]);
        let draft = Draft::new("none", 1, Path::new("/"));
        let record = sides(&draft, &table, &SHAPE, (", ", 0), ("bare", &[])).unwrap();
        assert_eq!(names(&record), [("bare", Kind::Floor), ("x, y", Kind::Result)]);
        assert_eq!(medians(&record), [("a", vec![Some(1.0), Some(2.0)]), ("b", vec![None, Some(3.0)])]);
        assert_eq!(
            record.targets.iter().map(|target| (&target.what[..], target.met)).collect::<Vec<_>>(),
            [("write", false)]
        );
    }

    #[test]
    fn a_floor_row_becomes_a_column() {
        let mut table = Table::new("t", &["rate", "p50"]);
        for (name, rate) in [("floor: sync", 5.0), ("floor: other", 6.0), ("create", 4.0), ("stat", 9.0)] {
            table.row(name, &[vec![rate], vec![1.0]]);
        }
        let draft = Draft::new("none", 1, Path::new("/"));
        let floor = FloorRow { begins: "floor: sync", not_for: "stat" };
        let kinds = [(0, Kind::Result), (1, Kind::Extra)];
        let record = columns(&draft, &table, &SHAPE, &kinds, Some(&floor)).unwrap();
        assert_eq!(names(&record), [("sync", Kind::Floor), ("rate", Kind::Result), ("p50", Kind::Extra)]);
        let wanted = [("create", vec![Some(5.0), Some(4.0), Some(1.0)]), ("stat", vec![None, Some(9.0), Some(1.0)])];
        assert_eq!(medians(&record), wanted);
    }
}
