//! Latency histograms of the operations of a replay, by kind of operation and by length.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use trace::{Action, Op};

/// Latency histograms by kind of operation and by length; lengths are rounded up to a power of two.
#[derive(Default)]
pub struct Latencies {
    by_class: BTreeMap<(Action, u32), Histogram<u64>>,
}

/// The summary of the latencies of all operations of one kind whose numbers of bytes round up to the same power of
/// two.
#[derive(Serialize)]
pub struct Line {
    /// The kind of operation, such as `read`.
    pub operation: &'static str,
    /// The power of two to which the lengths of these operations round up, in bytes; 0 for operations without a length.
    pub up_to: u32,
    /// The number of operations that this summary covers.
    pub count: u64,
    /// The total time of all operations that this summary covers, in microseconds.
    pub sum_us: f64,
    /// The median latency in microseconds.
    pub p50_us: f64,
    /// The 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// The maximum latency in microseconds.
    pub max_us: f64,
}

impl Latencies {
    /// Records the latency of one operation.
    pub(super) fn record(&mut self, op: &Op, took: Duration) {
        let class = if op.len == 0 { 0 } else { op.len.next_power_of_two() };
        // Store each latency with a precision of two significant digits.
        let new = || Histogram::new(2).expect("two digits are allowed");
        let histogram = self.by_class.entry((op.action, class)).or_insert_with(new);
        // Record at most one hour. The histogram resizes itself, so it can record every value up to this limit.
        let nanos = took.min(Duration::from_secs(3600)).as_nanos() as u64;
        histogram.record(nanos).unwrap_or_default();
    }

    pub(super) fn add(&mut self, other: &Latencies) {
        for (class, histogram) in &other.by_class {
            match self.by_class.get_mut(class) {
                // The addition of two histograms cannot fail, because both resize themselves.
                Some(mine) => mine.add(histogram).unwrap_or_default(),
                None => drop(self.by_class.insert(*class, histogram.clone())),
            }
        }
    }

    /// Returns one summary for each kind of operation and each power of two to which lengths round up.
    pub fn lines(&self) -> Vec<Line> {
        let line = |((action, up_to), histogram): (&(Action, u32), &Histogram<u64>)| {
            let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
            let (operation, up_to, count) = (action.word(), *up_to, histogram.len());
            let sum_us = histogram.mean() * count as f64 / 1000.0;
            Line { operation, up_to, count, sum_us, p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
        };
        self.by_class.iter().map(line).collect()
    }

    /// Returns the total time of all operations of one kind.
    pub fn sum(&self, action: Action) -> Duration {
        let of = self.by_class.iter().filter(|((a, _), _)| *a == action);
        Duration::from_nanos(of.map(|(_, histogram)| histogram.mean() * histogram.len() as f64).sum::<f64>() as u64)
    }

    /// Returns the number of operations of one kind.
    pub fn count(&self, action: Action) -> u64 {
        self.by_class.iter().filter(|((a, _), _)| *a == action).map(|(_, histogram)| histogram.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_end_at_powers_of_two() {
        let mut all = Latencies::default();
        for (len, micros) in [(4096, 10), (2049, 10), (4097, 30), (4096, 1000)] {
            let mut one = Latencies::default();
            one.record(&Op::write(0, 0, len), Duration::from_micros(micros));
            all.add(&one);
        }
        all.record(&Op::of(Action::Fsync, 0), Duration::from_secs(1));
        let lines = all.lines();
        assert_eq!(
            lines.iter().map(|l| (l.operation, l.up_to, l.count)).collect::<Vec<_>>(),
            [("write", 4096, 3), ("write", 8192, 1), ("fsync", 0, 1)]
        );
        assert!((9.9..10.2).contains(&lines[0].p50_us) && (990.0..1010.0).contains(&lines[0].p99_us));
        assert_eq!((all.count(Action::Write), all.count(Action::Read)), (4, 0));
        assert!((1040..1060).contains(&all.sum(Action::Write).as_micros()));
    }
}
