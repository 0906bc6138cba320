//! The queue delay that the mgr reports: how long requests wait at the mgr. From the queue delay, the client chooses
//! between the direct path and the mgr path for writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The value of the field `news` which means that the mgr has reported no queue delay since the last call of
/// [`MgrLoad::news`].
const NO_NEWS: u64 = u64::MAX;

/// The queue delay of the mgr, as the mgr last reported it.
#[derive(Debug)]
pub(crate) struct MgrLoad {
    /// Whether the client uses the mgr's queue delay to choose a path. If so, each read, write and commit on the mgr
    /// path also asks the mgr for its queue delay.
    wanted: AtomicBool,
    /// The last reported queue delay in nanoseconds, or `NO_NEWS`.
    news: AtomicU64,
}

impl Default for MgrLoad {
    fn default() -> Self {
        MgrLoad { wanted: AtomicBool::new(false), news: AtomicU64::new(NO_NEWS) }
    }
}

impl MgrLoad {
    /// Makes requests ask the mgr for the queue delay from now on.
    pub(crate) fn want(&self) {
        if !self.is_wanted() {
            self.wanted.store(true, Relaxed);
        }
    }

    /// Returns whether requests should ask the mgr for the queue delay.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Records the queue delay in nanoseconds, if a reply of the mgr contained one.
    pub(crate) fn told(&self, nanos: Option<u64>) {
        if let Some(nanos) = nanos {
            self.news.store(nanos.min(NO_NEWS - 1), Relaxed);
        }
    }

    /// Returns the queue delay that the mgr has reported since the last call of this method, and clears it.
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
