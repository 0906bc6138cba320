//! Points in time. A crate that does not read a clock receives the current time as an argument.

/// A time in seconds and nanoseconds since 1970-01-01 00:00 UTC; `nanos` is below 10^9 (`nfstime4`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds, negative before 1970.
    pub secs: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanos: u32,
}

impl Timestamp {
    /// Returns a timestamp of `secs` seconds and `nanos` nanoseconds, or `None` if `nanos` is 10^9 or more.
    pub fn new(secs: i64, nanos: u32) -> Option<Self> {
        (nanos < 1_000_000_000).then_some(Timestamp { secs, nanos })
    }

    /// Returns the time that is `elapsed` later than this time. If the seconds overflow, returns the largest number of
    /// seconds.
    pub fn after(self, elapsed: std::time::Duration) -> Self {
        let nanos = u64::from(self.nanos) + u64::from(elapsed.subsec_nanos());
        let carry = (nanos / 1_000_000_000) as i64;
        let secs = self.secs.saturating_add_unsigned(elapsed.as_secs()).saturating_add(carry);
        Timestamp { secs, nanos: (nanos % 1_000_000_000) as u32 }
    }

    /// Returns the duration from `earlier` to this time, or zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> std::time::Duration {
        let nanos = |t: Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
        let elapsed = (nanos(self) - nanos(earlier)).max(0);
        let secs = u64::try_from(elapsed / 1_000_000_000).unwrap_or(u64::MAX);
        std::time::Duration::new(secs, (elapsed % 1_000_000_000) as u32)
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(d) => Timestamp { secs: d.as_secs() as i64, nanos: d.subsec_nanos() },
            Err(before) => {
                let d = before.duration();
                let borrow = i64::from(d.subsec_nanos() > 0);
                let nanos = if borrow == 1 { 1_000_000_000 - d.subsec_nanos() } else { 0 };
                Timestamp { secs: -(d.as_secs() as i64) - borrow, nanos }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn after_carries_seconds_and_since_is_its_inverse() {
        let t = Timestamp { secs: 5, nanos: 900_000_000 };
        let later = t.after(Duration::from_millis(1250));
        assert_eq!(later, Timestamp { secs: 7, nanos: 150_000_000 });
        assert_eq!(later.since(t), Duration::from_millis(1250));
        assert_eq!(t.since(later), Duration::ZERO);
    }

    #[test]
    fn times_before_1970_round_down() {
        let t = std::time::UNIX_EPOCH - Duration::from_millis(250);
        assert_eq!(Timestamp::from(t), Timestamp { secs: -1, nanos: 750_000_000 });
    }
}
