//! The text output of charts, for terminals.

use crate::{Chart, bytes, number};
use std::fmt::Write;

/// Width of the value labels on the left of the plot, in columns.
const LEFT: usize = 10;

impl Chart {
    /// Returns the chart with a plot area of `columns` columns and `lines` lines. The text also has a title, axes and
    /// the names of the curves.
    pub fn text(&self, columns: usize, lines: usize) -> String {
        let (columns, lines) = (columns.max(8), lines.max(2));
        let (across, up) = self.ranges();
        let place = |value: f64, (low, high): (f64, f64), cells: usize| {
            (((value - low) / (high - low) * (cells - 1) as f64).round() as usize).min(cells - 1)
        };
        let mut cells = vec![vec![' '; columns]; lines];
        for (size, _) in self.marks.iter().filter(|(size, _)| *size > 0.0) {
            let log = size.log2();
            if (across.0..=across.1).contains(&log) {
                cells.iter_mut().for_each(|line| line[place(log, across, columns)] = '|');
            }
        }
        for (curve, letter) in self.curves.iter().zip('a'..='z') {
            for (x, y) in Chart::logs(curve) {
                let cell = &mut cells[lines - 1 - place(y, up, lines)][place(x, across, columns)];
                // If the cell already has a point, mark it with `*`.
                *cell = if cell.is_ascii_lowercase() { '*' } else { letter };
            }
        }
        let mut out = format!("{}\n", self.title);
        for (at, line) in cells.iter().enumerate() {
            let named = at == 0 || at == lines - 1 || at == lines / 2;
            let value = 10f64.powf(up.1 - (up.1 - up.0) * at as f64 / (lines - 1) as f64);
            let name = if named { number(value) } else { String::new() };
            let _ = writeln!(out, "{name:>LEFT$} |{}", line.iter().collect::<String>().trim_end());
        }
        let _ = writeln!(out, "{:>LEFT$} +{}", self.up, "-".repeat(columns));
        let (first, last) = (bytes(across.0.exp2()), bytes(across.1.exp2()));
        let _ = writeln!(out, "{:LEFT$}  {first}{last:>width$}", "", width = columns.saturating_sub(first.len()));
        for (curve, letter) in self.curves.iter().zip('a'..='z') {
            let _ = writeln!(out, "{:LEFT$}  {letter}  {}", "", curve.name);
        }
        for (size, what) in &self.marks {
            let _ = writeln!(out, "{:LEFT$}  |  {what}: {}", "", bytes(*size));
        }
        out
    }
}
