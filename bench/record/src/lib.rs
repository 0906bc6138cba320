//! Records of benchmark results: one JSON file in `bench/results/` for each part of a benchmark.
//!
//! `bench/README.md` describes the format. The benchmarks write records, `cargo xtask bench --page` reads them.

mod check;
mod draft;
mod machine;

pub use check::{read, read_all};
pub use draft::Draft;
pub use machine::{Machine, other_work};

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Why a record cannot be read or written, with the name of its file.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The latest result of one part of a benchmark.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The folder of the benchmark below `bench/`.
    pub bench: String,
    /// The part; with `bench` it names the file.
    pub part: String,
    /// The heading.
    pub title: String,
    /// What the benchmark answers.
    pub question: String,
    /// How it answers the question, in a sentence.
    pub method: String,
    /// What was found.
    pub verdict: String,
    /// The command that measured this.
    pub command: String,
    /// The machine that measured this.
    pub machine: Machine,
    /// The commit that was measured, if it is known.
    pub commit: Option<String>,
    /// The day of the measurement, as `2026-11-24`.
    pub date: String,
    /// How many rounds were measured.
    pub rounds: u32,
    /// Whether other programs used the machine.
    pub load: Load,
    /// The unit of the cells.
    pub unit: String,
    /// Whether a lower or a higher number is better.
    pub better: Better,
    /// The columns of the table.
    pub columns: Vec<Column>,
    /// The rows of the table.
    pub rows: Vec<Row>,
    /// What was wanted, and whether it was found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
}

/// Whether other programs used the machine.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Nothing else ran.
    Quiet,
    /// Other programs ran: only ratios and counts mean something.
    Busy,
}

/// Which numbers are better.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Times and costs.
    Lower,
    /// Rates.
    Higher,
}

/// A column of the table.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// The name.
    pub name: String,
    /// What the cells mean.
    pub kind: Kind,
}

/// What the cells of a column mean.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// What the results are compared with. A record has at most one such column.
    Floor,
    /// A result, in the unit of the record.
    Result,
    /// A ratio, usually to the floor.
    Ratio,
    /// What is wanted.
    Bound,
    /// A number that is shown and not drawn.
    Extra,
}

/// A row of the table.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The name.
    pub name: String,
    /// A cell for each column, or null where nothing was measured.
    pub cells: Vec<Option<Cell>>,
}

/// The median of the rounds.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// The median.
    pub median: f64,
    /// The lowest round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The highest round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The 99th percentile of the single operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
}

/// What was wanted of a number, and what was found.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The number.
    pub what: String,
    /// What is wanted.
    pub bound: Bound,
    /// What was found.
    pub found: Cell,
    /// Whether the benchmark met the target.
    pub met: bool,
}

/// What is wanted of a number.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Record {
    /// The name of the file without its extension.
    pub fn name(&self) -> String {
        format!("{}-{}", self.bench, self.part)
    }

    /// The position of the column that is the floor.
    pub fn floor(&self) -> Option<usize> {
        self.columns.iter().position(|column| column.kind == Kind::Floor)
    }

    /// The record as JSON, one line for each column, row and target.
    ///
    /// # Errors
    /// A number that is not finite.
    pub fn to_json(&self) -> Result<String, Failure> {
        let serde_json::Value::Object(fields) = serde_json::to_value(self)? else { return Err("not an object".into()) };
        let order = [
            "bench", "part", "title", "question", "method", "verdict", "command", "machine", "commit", "date",
            "rounds", "load", "unit", "better", "columns", "rows", "targets",
        ];
        let mut lines = Vec::new();
        for (name, value) in order.iter().filter_map(|name| Some((name, fields.get(*name)?))) {
            let text = match value.as_array().filter(|items| !items.is_empty()) {
                Some(items) => {
                    let items: Vec<String> = items.iter().map(|item| format!("    {item}")).collect();
                    format!("[\n{}\n  ]", items.join(",\n"))
                }
                None => value.to_string(),
            };
            lines.push(format!("  \"{name}\": {text}"));
        }
        Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
    }
}

impl Cell {
    /// The cell of the values of all rounds, with four significant digits; `None` without values, and when one of them
    /// is negative or not finite.
    pub fn of(values: &[f64]) -> Option<Cell> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] };
        Cell::spread(median, low, high)
    }

    /// The cell of a median with its lowest and highest round, under the same conditions.
    pub fn spread(median: f64, low: f64, high: f64) -> Option<Cell> {
        if [median, low, high].iter().any(|value| !value.is_finite() || *value < 0.0) {
            return None;
        }
        let spread = (low != high).then_some((significant(low), significant(high)));
        Some(Cell { median: significant(median), min: spread.map(|s| s.0), max: spread.map(|s| s.1), p99: None })
    }
}

/// Rounds to four significant digits.
fn significant(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// The folder of the records of this source tree.
pub fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../results")
}
