//! The queue delay that the mgr reports, kept for the choice of the path of writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// No delay was reported since the last call of `news`.
const NO_NEWS: u64 = u64::MAX;

/// The queue delay that the mgr reported last.
#[derive(Debug)]
pub(crate) struct MgrLoad {
    /// Whether the delay is wanted; then requests ask for it that otherwise would not.
    wanted: AtomicBool,
    /// The delay in nanoseconds.
    news: AtomicU64,
}

impl Default for MgrLoad {
    fn default() -> Self {
        MgrLoad { wanted: AtomicBool::new(false), news: AtomicU64::new(NO_NEWS) }
    }
}

impl MgrLoad {
    /// Requests the delay from now on.
    pub(crate) fn want(&self) {
        if !self.is_wanted() {
            self.wanted.store(true, Relaxed);
        }
    }

    /// Returns whether the delay is wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Records a reported delay in nanoseconds, if there is one.
    pub(crate) fn told(&self, nanos: Option<u64>) {
        if let Some(nanos) = nanos {
            self.news.store(nanos.min(NO_NEWS - 1), Relaxed);
        }
    }

    /// Takes the delay reported since the last call.
    pub(crate) fn news(&self) -> Option<Duration> {
        if self.news.load(Relaxed) == NO_NEWS {
            return None;
        }
        Some(self.news.swap(NO_NEWS, Relaxed)).filter(|nanos| *nanos != NO_NEWS).map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reported_queue_delay_is_returned_once() {
        let load = MgrLoad::default();
        assert_eq!((load.news(), load.is_wanted()), (None, false));
        load.want();
        load.told(None);
        assert_eq!((load.news(), load.is_wanted()), (None, true));
        load.told(Some(7));
        load.told(Some(5));
        assert_eq!(load.news(), Some(Duration::from_nanos(5)));
        assert_eq!(load.news(), None);
        load.told(Some(u64::MAX));
        assert_eq!(load.news(), Some(Duration::from_nanos(u64::MAX - 1)));
    }
}
