//! Attributes that the kernel was told of a moment ago, with a name: it asks apart when a file was made (STATX), right behind that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use types::Attrs;

/// How long they are good for. Whoever wants to know for sure (`AT_STATX_FORCE_SYNC`) looks the same.
const GOOD_FOR: Duration = Duration::from_millis(100);
/// Most files of which they are kept.
const MOST: usize = 2048;

/// What the kernel was told lately.
#[derive(Default)]
pub(crate) struct Lately {
    /// Counts the begins and ends of what may change attributes.
    changes: AtomicU64,
    told: Mutex<HashMap<u64, Told>>,
}

/// A moment before attributes were asked for.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    changes: u64,
    at: Instant,
}

/// Attributes, and when they were asked for.
struct Told {
    attrs: Attrs,
    mark: Mark,
}

/// Something that may change attributes, until this is dropped.
pub(crate) struct Change<'a>(&'a Lately);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.changed();
    }
}

impl Lately {
    fn told(&self) -> MutexGuard<'_, HashMap<u64, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Now.
    pub(crate) fn mark(&self) -> Mark {
        Mark { changes: self.changes.load(SeqCst), at: Instant::now() }
    }

    /// Something that may change attributes of any file begins.
    pub(crate) fn change(&self) -> Change<'_> {
        self.changed();
        Change(self)
    }

    /// Attributes of any file may be others than before.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// Whether what was asked for after this mark is still good: this mount has changed nothing since, and it was a moment ago.
    pub(crate) fn is_good(&self, mark: Mark) -> bool {
        mark.changes == self.changes.load(SeqCst) && mark.at.elapsed() < GOOD_FOR
    }

    /// The kernel is told of a file; its attributes were asked for after `mark`.
    pub(crate) fn tell(&self, number: u64, attrs: &Attrs, mark: Mark) {
        if !self.is_good(mark) {
            return;
        }
        let mut told = self.told();
        if told.len() >= MOST {
            told.retain(|_, told| self.is_good(told.mark));
            if told.len() >= MOST {
                told.clear();
            }
        }
        told.insert(number, Told { attrs: *attrs, mark });
    }

    /// What the kernel was told of a file, and how long ago that was so, if it is still. Once.
    pub(crate) fn take(&self, number: u64) -> Option<(Attrs, Duration)> {
        let Told { attrs, mark } = self.told().remove(&number)?;
        self.is_good(mark).then(|| (attrs, mark.at.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{FileId, FileKind, Timestamp};

    fn attrs(size: u64) -> Attrs {
        let time = Timestamp::default();
        let (kind, mode, nlink, used, change, rdev) = (FileKind::Regular, 0o644, 1, 0, 0, (0, 0));
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let (id, uid, gid, holes) = (FileId(7), 0, 0, false);
        Attrs { id, kind, mode, nlink, uid, gid, size, used, holes, atime, mtime, ctime, btime, change, rdev }
    }

    #[test]
    fn what_was_told_counts_until_something_changes() {
        let lately = Lately::default();
        lately.tell(7, &attrs(1), lately.mark());
        assert_eq!(lately.take(8).map(|told| told.0), None);
        assert_eq!(lately.take(7).map(|told| told.0), Some(attrs(1)));
        assert_eq!(lately.take(7).map(|told| told.0), None, "it asks once");
        // A change that is over, one that is under way, and one that ends while attributes are asked for.
        lately.tell(7, &attrs(1), lately.mark());
        drop(lately.change());
        assert!(lately.take(7).is_none());
        let mark = lately.mark();
        let change = lately.change();
        lately.tell(7, &attrs(1), mark);
        assert!(lately.take(7).is_none());
        lately.tell(7, &attrs(1), lately.mark());
        drop(change);
        assert!(lately.take(7).is_none());
    }

    #[test]
    fn it_is_forgotten_soon_and_bounded() {
        let lately = Lately::default();
        let mark = lately.mark();
        let old = Mark { at: mark.at.checked_sub(GOOD_FOR).unwrap(), ..mark };
        lately.tell(7, &attrs(1), old);
        assert!(lately.take(7).is_none());
        (0..3 * MOST as u64).for_each(|number| lately.tell(number, &attrs(number), lately.mark()));
        assert!(lately.told().len() <= MOST);
        assert!(lately.take(3 * MOST as u64 - 1).is_some());
    }
}
