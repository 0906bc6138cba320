//! Plot of a record: horizontal bars with the ratios to the baseline (floor), as SVG without scripts.

use record::{Better, Cell, Kind, Record};
use std::fmt::Write as _;

/// Width of the plot in pixels.
const WIDTH: f64 = 840.0;
/// Horizontal position of the right end of the axis, in pixels.
const RIGHT: f64 = 780.0;
/// Maximum width of the row names, and width of one letter, in pixels.
const NAMES_MAX: f64 = 380.0;
const LETTER: f64 = 6.6;
/// Maximum width of the number at the end of a bar, in pixels.
const VALUE_WIDTH: f64 = 34.0;
/// Height of a bar, and space between two rows of bars, in pixels.
const BAR: f64 = 11.0;
const GAP: f64 = 9.0;
/// The axis is logarithmic if the largest ratio is more than this many times the smallest ratio.
const LOG_FROM: f64 = 12.0;
/// Minimum number of bars in a plot; a record with fewer ratios gets no plot.
const BARS_MIN: usize = 3;
/// Colours that people with any colour vision can distinguish (Okabe and Ito), on a light and on a dark background.
const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#e8853d"),
    ("#009e73", "#2bc79c"),
    ("#cc79a7", "#dd9cc0"),
    ("#e69f00", "#f0b93a"),
    ("#777777", "#aaaaaa"),
    ("#56b4e9", "#2f88c0"),
];

/// The name of a row and its ratios, each ratio with the index of its series (column).
type Bars<'a> = (&'a str, Vec<(usize, f64)>);

/// The horizontal axis of the ratios.
struct Axis {
    /// Horizontal position of the left end of the axis, in pixels.
    left: f64,
    log: bool,
    low: f64,
    high: f64,
}

/// Returns the plot of a record as SVG; `None` if the record has no ratios, or so few ratios that the table is enough.
pub fn svg(record: &Record) -> Option<String> {
    let series = series(record);
    let rows: Vec<Bars> = record.rows.iter().map(|row| (&row.name[..], bars(record, &series, &row.cells))).collect();
    let rows: Vec<Bars> = rows.into_iter().filter(|(_, bars)| !bars.is_empty()).collect();
    let ratios: Vec<f64> = rows.iter().flat_map(|(_, bars)| bars.iter().map(|bar| bar.1)).collect();
    if ratios.len() < BARS_MIN {
        return None;
    }
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let axis = Axis::of(&ratios, (longest as f64 * LETTER + 16.0).min(NAMES_MAX));
    let mut body = String::new();
    let top = legend(&mut body, record, &series);
    let height: f64 = rows.iter().map(|(_, bars)| bars.len() as f64 * BAR + GAP).sum();
    axis.draw(&mut body, top, top + height);
    let mut y = top + GAP / 2.0;
    for (name, bars) in &rows {
        let middle = y + bars.len() as f64 * BAR / 2.0 + 4.0;
        text(&mut body, (axis.left - 8.0, middle), "end", name);
        for (number, ratio) in bars {
            axis.bar(&mut body, y, *number, *ratio);
            y += BAR;
        }
        y += GAP;
    }
    // Draw the vertical line of the baseline after the bars, so that the line stays visible.
    let one = axis.x(1.0);
    let _ = writeln!(body, r#"<path class="one" d="M{one:.1} {top:.1}V{:.1}"/>"#, top + height);
    Some(document(record, &body, top + height + 24.0))
}

/// Returns the columns to draw: the ratio columns if the record has any, otherwise the result columns.
fn series(record: &Record) -> Vec<usize> {
    let of_kind = |kind: Kind| -> Vec<usize> {
        record.columns.iter().enumerate().filter(|(_, column)| column.kind == kind).map(|(at, _)| at).collect()
    };
    let ratios = of_kind(Kind::Ratio);
    if ratios.is_empty() && record.floor().is_some() { of_kind(Kind::Result) } else { ratios }
}

fn bars(record: &Record, series: &[usize], cells: &[Option<Cell>]) -> Vec<(usize, f64)> {
    let median = |at: usize| cells[at].map(|cell| cell.median);
    let ratio = |at: usize| match record.columns[at].kind {
        Kind::Ratio => median(at),
        _ => Some(median(at)? / median(record.floor()?)?),
    };
    let drawn = series.iter().enumerate().filter_map(|(number, at)| Some((number, ratio(*at)?)));
    drawn.filter(|(_, ratio)| ratio.is_finite() && *ratio > 0.0).collect()
}

impl Axis {
    /// Returns an axis whose range includes all ratios and 1.
    fn of(ratios: &[f64], left: f64) -> Axis {
        let low = ratios.iter().copied().fold(1.0, f64::min);
        let high = ratios.iter().copied().fold(1.0, f64::max);
        match high / low > LOG_FROM {
            true => Axis { left, log: true, low: low / 1.15, high: high * 1.15 },
            false => Axis { left, log: false, low: 0.0, high: high * 1.05 },
        }
    }

    fn x(&self, ratio: f64) -> f64 {
        let part = match self.log {
            true => (ratio / self.low).ln() / (self.high / self.low).ln(),
            false => ratio / self.high,
        };
        self.left + part * (RIGHT - self.left)
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let step =
                [0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0].into_iter().find(|step| self.high / step <= 8.0).unwrap_or(5.0);
            return (0..=8).map(|number| f64::from(number) * step).filter(|tick| *tick <= self.high).collect();
        }
        let powers = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let few = self.high / self.low > 1000.0;
        let parts: &[f64] = if few { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = powers.flat_map(|power| parts.iter().map(move |part| part * 10f64.powi(power)));
        all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }

    fn draw(&self, out: &mut String, top: f64, bottom: f64) {
        for tick in self.ticks() {
            let x = self.x(tick);
            let _ = writeln!(out, r#"<path class="grid" d="M{x:.1} {top:.1}V{bottom:.1}"/>"#);
            text(out, (x, bottom + 15.0), "middle", &short(tick));
        }
    }

    /// Draws a bar that begins at 0, or at 1 on a logarithmic axis.
    fn bar(&self, out: &mut String, y: f64, number: usize, ratio: f64) {
        let (from, to) = (if self.log { self.x(1.0) } else { self.left }, self.x(ratio));
        let (left, width) = (from.min(to), (to - from).abs().max(0.5));
        let class = number % COLOURS.len();
        let _ = writeln!(
            out,
            r#"<rect class="s{class}" x="{left:.1}" y="{y:.1}" width="{width:.1}" height="{:.1}"/>"#,
            BAR - 1.0
        );
        let (end, one) = (left + width, self.x(1.0));
        // Move the number to the right of the baseline if the baseline would cross the number.
        let end = if (end..end + VALUE_WIDTH).contains(&one) { one } else { end };
        let (x, y) = (end + 4.0, y + BAR - 2.5);
        let _ = writeln!(out, r#"<text class="value" x="{x:.1}" y="{y:.1}">{}</text>"#, short(ratio));
    }
}

/// Draws the title, the axis and the legend. Returns the vertical position where the bars begin.
fn legend(out: &mut String, record: &Record, series: &[usize]) -> f64 {
    let _ = writeln!(out, r#"<text class="title" x="8" y="20">{}</text>"#, escaped(&record.title));
    let better = match record.better {
        Better::Lower => "lower is better",
        Better::Higher => "higher is better",
    };
    let all_ratios = series.iter().all(|at| record.columns[*at].kind == Kind::Ratio);
    let caption = match record.floor().filter(|_| !all_ratios) {
        Some(floor) => format!("{}, as a multiple of {}; {better}", record.unit, record.columns[floor].name),
        None => format!("{}, as a ratio; {better}", record.unit),
    };
    text(out, (8.0, 38.0), "start", &caption);
    let (mut x, mut y) = (8.0, 58.0);
    for (number, at) in series.iter().enumerate() {
        let name = &record.columns[*at].name;
        let width = name.chars().count() as f64 * 6.8 + 30.0;
        if x > 8.0 && x + width > WIDTH {
            (x, y) = (8.0, y + 18.0);
        }
        let class = number % COLOURS.len();
        let _ = writeln!(out, r#"<rect class="s{class}" x="{x:.1}" y="{:.1}" width="11" height="11"/>"#, y - 10.0);
        text(out, (x + 16.0, y), "start", name);
        x += width;
    }
    y + 12.0
}

fn document(record: &Record, body: &str, height: f64) -> String {
    let mut style =
        "text{font:12px system-ui,sans-serif;fill:#222}.title{font-size:15px;font-weight:600}.value{font-size:10px}\
                     .grid{stroke:#ddd}.one{stroke:#222;stroke-width:1.5}"
            .to_owned();
    for (at, (light, _)) in COLOURS.iter().enumerate() {
        let _ = write!(style, ".s{at}{{fill:{light}}}");
    }
    style += "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.one{stroke:#ddd}";
    for (at, (_, dark)) in COLOURS.iter().enumerate() {
        let _ = write!(style, ".s{at}{{fill:{dark}}}");
    }
    style += "}";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">\n\
         <title>{}</title>\n<style>{style}</style>\n{body}</svg>\n",
        escaped(&record.title)
    )
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let _ = writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(text));
}

fn escaped(text: &str) -> String {
    text.replace('`', "").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Formats a ratio with at most three digits.
fn short(value: f64) -> String {
    let digits = if value >= 100.0 { 0 } else { (2.0 - value.log10().floor()).clamp(0.0, 6.0) as usize };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::{Column, Row};
    use std::path::Path;

    /// Returns a record from `bench/results/`, with its columns and rows replaced by the given columns and rows.
    fn record<const N: usize>(columns: &[(&str, Kind)], rows: &[[f64; N]]) -> Record {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/results");
        let mut record = record::read_all(&folder).unwrap().remove(0);
        record.title = "A < B & `C`".to_owned();
        record.columns = columns.iter().map(|(name, kind)| Column { name: name.to_string(), kind: *kind }).collect();
        let row =
            |values: &[f64; N]| Row { name: "row".to_owned(), cells: values.iter().map(|v| Cell::of(&[*v])).collect() };
        record.rows = rows.iter().map(row).collect();
        record
    }

    #[test]
    fn results_are_divided_by_the_floor() {
        let columns = [("bare", Kind::Floor), ("x", Kind::Result), ("y", Kind::Result), ("n", Kind::Extra)];
        let svg = svg(&record(&columns, &[[2.0, 4.0, 3.0, 9.0], [1.0, 1.0, 0.5, 9.0]])).unwrap();
        for part in ["multiple of bare", ">2</text>", ">1.5</text>", ">0.5</text>", "A &lt; B &amp; C"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert!(!svg.contains(">9</text>") && !svg.contains("script"));
        assert_eq!(svg.matches("height=\"10.0\"").count(), 4);
    }

    #[test]
    fn ratios_come_first_and_far_ones_are_logarithmic() {
        let columns = [("bare", Kind::Floor), ("x", Kind::Result), ("ratio", Kind::Ratio)];
        let svg = svg(&record(&columns, &[[1.0, 7.0, 0.01], [1.0, 7.0, 1.0], [1.0, 7.0, 50.0]])).unwrap();
        assert!(svg.contains(">0.01</text>") && svg.contains(">50</text>") && !svg.contains(">7</text>"), "{svg}");
        let axis = Axis::of(&[0.01, 50.0], 100.0);
        assert!(axis.log && axis.ticks() == [0.01, 0.1, 1.0, 10.0], "{:?}", axis.ticks());
        assert_eq!(Axis::of(&[0.9, 1.4], 100.0).ticks().first(), Some(&0.0));
    }

    #[test]
    fn few_numbers_and_nonsense_are_not_drawn() {
        let columns = [("bare", Kind::Floor), ("x", Kind::Result)];
        assert_eq!(svg(&record(&columns, &[[1.0, 2.0], [1.0, 2.0]])), None);
        assert_eq!(svg(&record(&columns, &[[0.0, 2.0]; 5])), None);
        assert_eq!(svg(&record(&columns[1..], &[[2.0]; 5])), None);
        assert_eq!([0.0123, 1.0, 2.346, 45.67, 123.4].map(short), ["0.0123", "1", "2.35", "45.7", "123"]);
    }
}
