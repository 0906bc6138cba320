//! Records of benchmark results, one JSON file in `bench/results/` for each part of a benchmark.
//!
//! `bench/README.md` describes the format. The benchmarks write records, and `cargo xtask bench --page` reads records.

mod check;
mod draft;
mod machine;

pub use check::{read, read_all};
pub use draft::Draft;
pub use machine::{Machine, file_system, other_work};

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The error for a record that cannot be read or written; the message names the file of the record.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The latest result of one part of a benchmark.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The name of the benchmark, which is its directory below `bench/`.
    pub bench: String,
    /// The part of the benchmark; the record's file has the name `<bench>-<part>.json`.
    pub part: String,
    /// The heading of the record's section in `docs/benchmarks.md`.
    pub title: String,
    /// The question that the benchmark answers.
    pub question: String,
    /// The method by which the benchmark answers the question.
    pub method: String,
    /// The verdict: the answer to the question of the benchmark.
    pub verdict: String,
    /// The command that measured the record.
    pub command: String,
    /// The machine on which the command measured the record.
    pub machine: Machine,
    /// The measured commit of Weir; `None` if the commit was not recorded.
    pub commit: Option<String>,
    /// The day of the measurement, as `2026-11-24`.
    pub date: String,
    /// The number of measured rounds.
    pub rounds: u32,
    /// Whether other programs loaded the machine before the first round.
    pub load: Load,
    /// The unit of the numbers in result columns.
    pub unit: String,
    /// Whether lower or higher results are better.
    pub better: Better,
    /// The columns of the result table.
    pub columns: Vec<Column>,
    /// The rows of the result table.
    pub rows: Vec<Row>,
    /// The targets of the benchmark, and whether the measured numbers meet the targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
}

/// The load of other programs on the machine before the first round.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// A quiet machine: other programs used less than a tenth of the processors.
    Quiet,
    /// A busy machine: other programs used a tenth of the processors or more, so only ratios and counts are meaningful.
    Busy,
}

/// The direction in which results of a record are better.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Lower results are better, as with times and costs.
    Lower,
    /// Higher results are better, as with rates.
    Higher,
}

/// A column of the result table.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// The name of the column.
    pub name: String,
    /// The kind of the column: the meaning of its cells.
    pub kind: Kind,
}

/// The kind of a column: the meaning of its cells.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The baseline (floor) to which the results are compared. A record has at most one floor column.
    Floor,
    /// A result, in the unit of the record.
    Result,
    /// A ratio, usually of a result to the baseline.
    Ratio,
    /// The value that a target requires.
    Bound,
    /// A number that the table shows and the plot does not.
    Extra,
}

/// A row of the result table.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The name of the row.
    pub name: String,
    /// A cell for each column, or null where nothing was measured.
    pub cells: Vec<Option<Cell>>,
}

/// The median of the values of all rounds, with their spread.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// The median over all rounds.
    pub median: f64,
    /// The lowest value of all rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The highest value of all rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The 99th percentile over single operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
}

/// A target of a benchmark: a bound for a number, and the measured number.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The name of the measured number.
    pub what: String,
    /// The bound for the median of the measured number.
    pub bound: Bound,
    /// The measured number, whose median decides whether the target is met.
    pub found: Cell,
    /// Whether the median meets the bound.
    pub met: bool,
}

/// The bound that a target sets.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The median must be at least this value.
    AtLeast(f64),
    /// The median must be at most this value.
    AtMost(f64),
}

impl Record {
    /// Returns the name of the record's file without its extension.
    pub fn name(&self) -> String {
        format!("{}-{}", self.bench, self.part)
    }

    /// Returns the index of the column with the baseline (floor); `None` if the record has no such column.
    pub fn floor(&self) -> Option<usize> {
        self.columns.iter().position(|column| column.kind == Kind::Floor)
    }

    /// Returns the record as JSON, with one line for each column, row and target.
    ///
    /// # Errors
    /// A number in the record is not finite.
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
    /// Returns the cell for the values of all rounds, with four significant digits. Returns `None` without values, or
    /// if a value is negative or not finite.
    pub fn of(values: &[f64]) -> Option<Cell> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] };
        Cell::spread(median, low, high)
    }

    /// Returns the cell for a median with its lowest and highest value, with four significant digits. Returns `None` if
    /// one of the three values is negative or not finite.
    pub fn spread(median: f64, low: f64, high: f64) -> Option<Cell> {
        if [median, low, high].iter().any(|value| !value.is_finite() || *value < 0.0) {
            return None;
        }
        let spread = (low != high).then_some((significant(low), significant(high)));
        Some(Cell { median: significant(median), min: spread.map(|s| s.0), max: spread.map(|s| s.1), p99: None })
    }
}

/// Rounds a number to four significant digits.
fn significant(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Returns the directory with the records of this source tree.
pub fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../results")
}
