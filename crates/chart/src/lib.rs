//! Charts of curves over sizes in bytes with logarithmic axes, as text for terminals and as SVG.

mod svg;
mod text;

/// A chart of one or more curves.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// The title above the chart.
    pub title: String,
    /// The quantity on the vertical axis, with its unit. The horizontal axis shows bytes.
    pub up: String,
    /// The curves of the chart. Their colours repeat after eight curves.
    pub curves: Vec<Curve>,
    /// Sizes in bytes at which the chart draws a vertical line, each with its label.
    pub marks: Vec<(f64, String)>,
}

/// A curve of a chart.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// The name of the curve in the legend.
    pub name: String,
    /// The points of the curve: size in bytes, and value. Charts omit points whose size or value is not positive and
    /// finite.
    pub points: Vec<(f64, f64)>,
}

/// The least and the greatest logarithm on an axis of a chart; they always differ.
type Range = (f64, f64);

impl Chart {
    /// Returns the logarithms of a curve's sizes (base 2) and values (base 10).
    fn logs(curve: &Curve) -> impl Iterator<Item = (f64, f64)> {
        let drawn = |(x, y): &&(f64, f64)| *x > 0.0 && *y > 0.0 && x.is_finite() && y.is_finite();
        curve.points.iter().filter(drawn).map(|(x, y)| (x.log2(), y.log10()))
    }

    /// Returns the ranges of the logarithms of all sizes and of all values.
    fn ranges(&self) -> (Range, Range) {
        let all: Vec<(f64, f64)> = self.curves.iter().flat_map(Chart::logs).collect();
        let range = |values: &mut dyn Iterator<Item = f64>| {
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
            if low < high {
                (low, high)
            } else if low == high {
                (low - 0.5, high + 0.5)
            } else {
                (0.0, 1.0)
            }
        };
        (range(&mut all.iter().map(|p| p.0)), range(&mut all.iter().map(|p| p.1)))
    }
}

/// Formats a size in bytes with a binary unit: `16`, `4K`, `1.5M`.
pub fn bytes(size: f64) -> String {
    let (mut value, mut unit) = (size, 0);
    while value >= 1024.0 && unit < 4 {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let digits = usize::from(value < 10.0 && (value - value.round()).abs() > 0.05);
    format!("{value:.digits$}{}", ["", "K", "M", "G", "T"][unit])
}

/// Formats a value with few digits: `0.012`, `3.4`, `120`, `4500`.
fn number(value: f64) -> String {
    let digits = if value > 0.0 { (1.0 - value.log10().floor()).clamp(0.0, 6.0) as usize } else { 0 };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let rising = |name: &str, factor: f64| Curve {
            name: name.to_owned(),
            points: (4..=20).map(|log| (f64::from(1 << log), factor * f64::from(1 << log))).collect(),
        };
        Chart {
            title: "A < B".to_owned(),
            up: "ms".to_owned(),
            curves: vec![rising("slow & sure", 0.001), rising("fast", 0.1)],
            marks: vec![(65536.0, "T".to_owned())],
        }
    }

    #[test]
    fn text_has_every_curve_and_its_axes() {
        let text = chart().text(60, 12);
        for part in ["A < B", "slow & sure", "fast", "16", "1M", "ms"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80));
        let (first, last) = (text.lines().nth(1).unwrap(), text.lines().nth(12).unwrap());
        assert!(first.trim_end().ends_with('b') && last.contains('a'), "the curves rise:\n{text}");
        assert!(text.contains('|'), "the mark:\n{text}");
    }

    #[test]
    fn svg_is_well_formed_and_escapes_names() {
        let svg = chart().svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for part in ["A &lt; B", "slow &amp; sure", "64K"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert!(svg.matches("<polyline").count() >= 2);
    }

    #[test]
    fn empty_and_invalid_curves_can_be_drawn() {
        let nonsense = Curve { name: "x".into(), points: vec![(0.0, 1.0), (1.0, -1.0), (f64::NAN, 2.0), (8.0, 2.0)] };
        for curves in [vec![], vec![nonsense]] {
            let chart = Chart { curves, ..Chart::default() };
            assert!(!chart.text(20, 4).is_empty());
            assert!(chart.svg().is_ok());
        }
    }

    #[test]
    fn sizes_and_numbers_are_abbreviated() {
        assert_eq!([16.0, 4096.0, 1536.0, 1048576.0, 92681.9].map(bytes), ["16", "4K", "1.5K", "1M", "91K"]);
        assert_eq!([0.0123, 3.42, 120.4, 4512.0, 0.0].map(number), ["0.012", "3.4", "120", "4512", "0"]);
    }
}
