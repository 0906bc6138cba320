//! A cache of attributes that the kernel has just received in an entry, for example in the reply to LOOKUP. The kernel
//! requests these attributes again at once, with the birth time (STATX).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use types::Attrs;

/// How long cached attributes are valid. The time is short, because the mount cannot recognize requests with
/// `AT_STATX_FORCE_SYNC`, whose replies should be current.
const GOOD_FOR: Duration = Duration::from_millis(100);
/// Largest number of files whose attributes are cached.
const MOST: usize = 2048;

/// Attributes that the kernel has just received, by file number.
#[derive(Default)]
pub(super) struct RecentAttrs {
    /// Number of times that attributes of some file may have changed. An operation that may change attributes counts
    /// when it begins, and again when it ends.
    changes: AtomicU64,
    entries: Mutex<HashMap<u64, RecentEntry>>,
}

/// The moment before the mount requested attributes from the mgr: the time, and the number of attribute changes by
/// this mount so far.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    changes: u64,
    at: Instant,
}

/// Attributes of a file, and the moment before the mount requested them.
struct RecentEntry {
    attrs: Attrs,
    mark: Mark,
}

/// Guard of an operation that may change attributes. Dropping the guard records that the operation has ended.
pub(crate) struct Change<'a>(&'a RecentAttrs);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.changed();
    }
}

impl RecentAttrs {
    fn entries(&self) -> MutexGuard<'_, HashMap<u64, RecentEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present time, and the number of attribute changes by this mount so far.
    pub(super) fn mark(&self) -> Mark {
        Mark { changes: self.changes.load(SeqCst), at: Instant::now() }
    }

    /// Begins an operation that may change attributes of any file.
    pub(super) fn change(&self) -> Change<'_> {
        self.changed();
        Change(self)
    }

    /// Records that the attributes of some file may have changed, which invalidates all cached attributes.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// Returns whether attributes that the mount requested after the moment `mark` are still valid. They are if `mark`
    /// is recent, and this mount has changed no attributes after `mark`.
    pub(super) fn is_good(&self, mark: Mark) -> bool {
        mark.changes == self.changes.load(SeqCst) && mark.at.elapsed() < GOOD_FOR
    }

    /// Caches attributes of a file that the kernel receives and that the mount requested after the moment `mark`,
    /// unless they may be outdated.
    pub(super) fn insert(&self, number: u64, attrs: &Attrs, mark: Mark) {
        if !self.is_good(mark) {
            return;
        }
        let mut entries = self.entries();
        if entries.len() >= MOST {
            entries.retain(|_, entry| self.is_good(entry.mark));
            if entries.len() >= MOST {
                entries.clear();
            }
        }
        entries.insert(number, RecentEntry { attrs: *attrs, mark });
    }

    /// Removes the cached attributes of a file. Returns them and their age, if they are still valid.
    pub(super) fn take(&self, number: u64) -> Option<(Attrs, Duration)> {
        let RecentEntry { attrs, mark } = self.entries().remove(&number)?;
        self.is_good(mark).then(|| (attrs, mark.at.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::testing::attrs;

    #[test]
    fn recent_attributes_are_valid_until_a_change() {
        let recent_attrs = RecentAttrs::default();
        recent_attrs.insert(7, &attrs(1, 1), recent_attrs.mark());
        assert_eq!(recent_attrs.take(8).map(|found| found.0), None);
        assert_eq!(recent_attrs.take(7).map(|found| found.0), Some(attrs(1, 1)));
        assert_eq!(recent_attrs.take(7).map(|found| found.0), None, "the kernel asks for the attributes only once");
        // Tests a completed change, a change in progress, and a change that ends while the mount requests attributes.
        recent_attrs.insert(7, &attrs(1, 1), recent_attrs.mark());
        drop(recent_attrs.change());
        assert!(recent_attrs.take(7).is_none());
        let mark = recent_attrs.mark();
        let change = recent_attrs.change();
        recent_attrs.insert(7, &attrs(1, 1), mark);
        assert!(recent_attrs.take(7).is_none());
        recent_attrs.insert(7, &attrs(1, 1), recent_attrs.mark());
        drop(change);
        assert!(recent_attrs.take(7).is_none());
    }

    #[test]
    fn recent_attributes_expire_soon_and_are_bounded() {
        let recent_attrs = RecentAttrs::default();
        let mark = recent_attrs.mark();
        let old = Mark { at: mark.at.checked_sub(GOOD_FOR).unwrap(), ..mark };
        recent_attrs.insert(7, &attrs(1, 1), old);
        assert!(recent_attrs.take(7).is_none());
        (0..3 * MOST as u64).for_each(|number| recent_attrs.insert(number, &attrs(1, number), recent_attrs.mark()));
        assert!(recent_attrs.entries().len() <= MOST);
        assert!(recent_attrs.take(3 * MOST as u64 - 1).is_some());
    }
}
