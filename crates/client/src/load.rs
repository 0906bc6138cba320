//! How long requests wait at the mgr, as its answers tell, kept for who chooses the way of writes by it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Nothing was told since it was asked last.
const NO_NEWS: u64 = u64::MAX;

/// What the mgr said last of its queue.
#[derive(Debug)]
pub(crate) struct Load {
    /// Whether anybody wants to know; then requests ask for it that would not otherwise.
    wanted: AtomicBool,
    /// In nanoseconds.
    news: AtomicU64,
}

impl Default for Load {
    fn default() -> Self {
        Load { wanted: AtomicBool::new(false), news: AtomicU64::new(NO_NEWS) }
    }
}

impl Load {
    /// Somebody wants to know from now on.
    pub(crate) fn want(&self) {
        if !self.is_wanted() {
            self.wanted.store(true, Relaxed);
        }
    }

    /// Whether anybody wants to know.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// An answer said this, in nanoseconds, or nothing.
    pub(crate) fn told(&self, nanos: Option<u64>) {
        if let Some(nanos) = nanos {
            self.news.store(nanos.min(NO_NEWS - 1), Relaxed);
        }
    }

    /// What was said since this was called last.
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
    fn news_are_told_once() {
        let load = Load::default();
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
