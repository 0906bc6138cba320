//! Threshold recommendation, computed from measured request times on the mgr path and on the direct path.

use layout::policy::format_size;
use layout::threshold::ALWAYS_MGR;
use serde::Serialize;

/// The measured times of requests of one length on both paths.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The length of the requests in bytes.
    pub size: u64,
    /// Microseconds per request on the mgr path, one value for each round of measurements.
    pub mgr_us: Vec<f64>,
    /// Microseconds per request on the direct path, one value for each round of measurements.
    pub direct_us: Vec<f64>,
}

impl Point {
    /// Returns the median time on the mgr path and on the direct path, in microseconds.
    pub fn medians(&self) -> (f64, f64) {
        (median(&self.mgr_us), median(&self.direct_us))
    }

    /// Returns the natural logarithm of the time on the mgr path divided by the time on the direct path.
    fn slower(&self) -> f64 {
        let (mgr, direct) = self.medians();
        (mgr / direct).ln()
    }
}

/// Returns the median. For an even number of values, returns the higher of the two middle values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the threshold in bytes with the smallest loss. The loss of a threshold is a sum over all measured lengths:
/// the logarithm of the factor by which the path that the threshold selects is slower than the faster path.
pub fn best(points: &[Point]) -> u64 {
    // Returns how much slower the requests are than on the faster path for each length, if the `n` shortest lengths
    // take the mgr path and all longer lengths take the direct path.
    let lost = |n: usize| {
        let of = |(at, point): (usize, &Point)| if at < n { point.slower() } else { -point.slower() };
        points.iter().enumerate().map(of).filter(|lost| *lost > 0.0).sum::<f64>()
    };
    let n = (0..=points.len()).min_by(|a, b| lost(*a).total_cmp(&lost(*b))).unwrap_or(0);
    match points.get(n) {
        _ if n == 0 => 0,
        Some(first_straight) => first_straight.size,
        None => ALWAYS_MGR,
    }
}

/// Returns the request length near `threshold` at which both paths take equal time, interpolated on logarithmic axes.
/// Returns `None` if the same path is faster at both measured lengths next to `threshold`.
pub fn crossing(points: &[Point], threshold: u64) -> Option<f64> {
    let at = points.iter().position(|point| point.size == threshold).filter(|at| *at > 0)?;
    let (before, behind) = (&points[at - 1], &points[at]);
    let (a, b) = (before.slower(), behind.slower());
    if a > 0.0 || b < 0.0 || a == b {
        return None;
    }
    let (x, y) = ((before.size as f64).ln(), (behind.size as f64).ln());
    Some((x + (y - x) * a / (a - b)).exp())
}

/// Describes in one sentence which path was faster at which lengths.
pub fn verdict(points: &[Point]) -> String {
    let sizes = |of: fn(&Point) -> bool| {
        let sizes: Vec<String> = points.iter().filter(|point| of(point)).map(|point| format_size(point.size)).collect();
        sizes.join(", ")
    };
    let (mgr, iods) = (sizes(|point| point.slower() < 0.0), sizes(|point| point.slower() > 0.0));
    match (mgr.is_empty(), iods.is_empty()) {
        (true, true) => "Both paths are equally fast.".to_owned(),
        (true, false) => "The mgr path is faster at no size.".to_owned(),
        (false, true) => "The direct path is faster at no size.".to_owned(),
        (false, false) => format!("The mgr path is faster at {mgr}; the direct path is faster at {iods}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(ratios: &[f64]) -> Vec<Point> {
        let point = |(at, ratio): (usize, &f64)| Point {
            size: 1 << (10 + at),
            mgr_us: vec![100.0 * ratio, 1e9, 1.0],
            direct_us: vec![100.0, 0.0, 1e6],
        };
        ratios.iter().enumerate().map(point).collect()
    }

    #[test]
    fn the_threshold_is_where_the_faster_path_changes() {
        assert_eq!(best(&points(&[0.5, 0.7, 1.5, 3.0])), 4096);
        assert_eq!(best(&points(&[2.0, 1.1, 1.5])), 0);
        assert_eq!(best(&points(&[0.2, 0.9])), ALWAYS_MGR);
        // The mgr path is slightly slower than the direct path at the second measured length, and slightly faster at
        // the fifth measured length. Neither difference may change the threshold.
        assert_eq!(best(&points(&[0.5, 1.02, 0.5, 2.0, 0.99, 3.0])), 8192);
        assert_eq!(best(&[]), 0);
    }

    #[test]
    fn the_verdict_agrees_with_every_point() {
        assert_eq!(verdict(&points(&[2.0, 1.1])), "The mgr path is faster at no size.");
        assert_eq!(verdict(&points(&[0.2, 1.0])), "The direct path is faster at no size.");
        assert_eq!(
            verdict(&points(&[2.0, 0.9, 1.5])),
            "The mgr path is faster at 2K; the direct path is faster at 1K, 4K."
        );
        assert_eq!(verdict(&points(&[1.0])), "Both paths are equally fast.");
    }

    #[test]
    fn the_crossing_lies_between_its_neighbours() {
        let crosses = points(&[0.25, 0.5, 2.0]);
        let at = crossing(&crosses, 4096).unwrap();
        assert!((at - 2048.0 * 2f64.sqrt()).abs() < 1.0, "{at}");
        assert_eq!(crossing(&crosses, 1024), None);
        assert_eq!(crossing(&crosses, 0), None);
        assert_eq!(crossing(&points(&[0.5, 0.6]), ALWAYS_MGR), None);
    }
}
