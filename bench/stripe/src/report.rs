//! Report of the `stripe` benchmark: tables of medians with their spread, as text and as JSON.

use serde::Serialize;
use std::fmt;

/// The report of one benchmark run.
#[derive(Serialize, Default)]
pub struct Report {
    /// Facts about the machine, as name and value.
    pub machine: Vec<(String, String)>,
    /// The tables, in the order of the parts of the benchmark.
    pub tables: Vec<Table>,
}

/// The results of one part of the benchmark.
#[derive(Serialize)]
pub struct Table {
    /// The title of the table.
    pub title: String,
    /// The names of the table's columns.
    pub columns: Vec<String>,
    /// The rows of the table, each with a name and its numbers.
    pub rows: Vec<Row>,
    /// The targets of this part of the benchmark, with the measured numbers.
    pub targets: Vec<Target>,
    /// Remarks for readers, printed below the table.
    pub notes: Vec<String>,
}

/// A row of a result table.
#[derive(Serialize)]
pub struct Row {
    /// The name of the measured case.
    pub name: String,
    /// The number of this row in each column; `None` where the column does not apply.
    pub cells: Vec<Option<Number>>,
}

/// The median of the values of all rounds, with the lowest and the highest value.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub struct Number {
    /// The median over all rounds.
    pub median: f64,
    /// The lowest value of all rounds.
    pub low: f64,
    /// The highest value of all rounds.
    pub high: f64,
}

/// The bound that a target sets.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    /// The median of the rounds must be at least this value.
    AtLeast(f64),
    /// The median of the rounds must be at most this value.
    AtMost(f64),
}

/// A target of the benchmark, and whether this run met the target.
#[derive(Serialize)]
pub struct Target {
    /// The name of the measured quantity.
    pub what: String,
    /// The bound for the median of the measured number.
    pub bound: Bound,
    /// The measured number, whose median decides whether the target is met.
    pub found: Number,
    /// Whether the median meets the bound.
    pub met: bool,
}

impl Number {
    /// Returns the median, the lowest and the highest of the values of all rounds; `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Some(Number { median, low, high })
    }
}

/// Returns, for each round, the quotient of the values of two measurements.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(a, b)| a / b).collect()
}

impl Table {
    /// Returns an empty table.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|c| c.to_string()).collect();
        Table { title: title.into(), columns, rows: Vec::new(), targets: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row to the table; `rounds` has the values of all rounds for each column.
    pub fn row(&mut self, name: impl Into<String>, rounds: &[Vec<f64>]) {
        self.rows.push(Row { name: name.into(), cells: rounds.iter().map(|values| Number::of(values)).collect() });
    }

    /// Adds a target to the table; `rounds` has the measured value of each round. Without values, adds nothing.
    pub fn target(&mut self, what: impl Into<String>, bound: Bound, rounds: &[f64]) {
        let Some(found) = Number::of(rounds) else { return };
        let met = match bound {
            Bound::AtLeast(bound) => found.median >= bound,
            Bound::AtMost(bound) => found.median <= bound,
        };
        self.targets.push(Target { what: what.into(), bound, found, met });
    }

    /// Adds a remark below the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    fn write_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name_width = self.rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0);
        let shown = |cell: &Option<Number>| cell.map_or_else(String::new, |number| number.to_string());
        let cells: Vec<Vec<String>> = self.rows.iter().map(|r| r.cells.iter().map(shown).collect()).collect();
        let width = |i: usize| {
            let longest = cells.iter().filter_map(|row| row.get(i)).map(String::len).max().unwrap_or(0);
            longest.max(self.columns[i].len())
        };
        write!(f, "  {:<name_width$}", "")?;
        for (i, column) in self.columns.iter().enumerate() {
            write!(f, "  {column:>0$}", width(i))?;
        }
        for (row, cells) in self.rows.iter().zip(&cells) {
            write!(f, "\n  {:<name_width$}", row.name)?;
            for (i, cell) in cells.iter().enumerate() {
                write!(f, "  {cell:>0$}", width(i))?;
            }
        }
        writeln!(f)
    }
}

fn short(n: f64) -> String {
    match n.abs() {
        size if size >= 1000.0 => format!("{n:.0}"),
        size if size >= 100.0 => format!("{n:.1}"),
        size if size >= 10.0 => format!("{n:.2}"),
        _ => format!("{n:.3}"),
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.low == self.high {
            true => f.write_str(&short(self.median)),
            false => write!(f, "{} ({}..{})", short(self.median), short(self.low), short(self.high)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, bound) = match self.bound {
            Bound::AtLeast(bound) => ("at least", bound),
            Bound::AtMost(bound) => ("at most", bound),
        };
        let verdict = if self.met { "met" } else { "NOT MET" };
        write!(f, "{}: {} (target: {word} {bound}) {verdict}", self.what, self.found)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}", self.title)?;
        self.write_rows(f)?;
        self.targets.iter().try_for_each(|target| writeln!(f, "  {target}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_rounds() {
        assert_eq!(Number::of(&[3.0, 1.0, 2.0]), Some(Number { median: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(Number::of(&[4.0, 1.0]).map(|n| n.median), Some(2.5));
        assert_eq!(Number::of(&[]), None);
        assert_eq!(ratios(&[1.0, 9.0], &[2.0, 3.0]), [0.5, 3.0]);
    }

    #[test]
    fn the_median_decides_and_everything_is_shown() {
        let mut table = Table::new("title", &["x", "y"]);
        table.row("row", &[vec![1.0, 2.0], vec![]]);
        table.target("low", Bound::AtLeast(0.7), &[0.5]);
        table.target("high", Bound::AtMost(0.7), &[0.9, 0.6, 0.5]);
        table.target("unknown", Bound::AtMost(0.7), &[]);
        table.note("remark");
        assert_eq!(table.targets.iter().map(|t| t.met).collect::<Vec<_>>(), [false, true]);
        let text = table.to_string();
        for part in ["title", "1.500 (1.000..2.000)", "0.500 (target: at least 0.7) NOT MET", "note: remark"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
