//! Attributes of directories after the last change in them by this mount. The kernel drops its cached attributes of a
//! directory on such a change, and asks before it allows anything else in the directory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use types::Attrs;

/// Largest number of directories whose attributes are kept.
const MOST: usize = 256;

/// The attributes of directories that this mount changed.
#[derive(Default)]
pub(super) struct ChangedDirs(Mutex<Changes>);

#[derive(Default)]
struct Changes {
    /// Counts changes that completed without attributes. Attributes that were requested before such a change are not
    /// valid.
    unseen: u64,
    dirs: HashMap<u64, Fresh>,
}

/// Attributes of a directory that came with an answer.
struct Fresh {
    attrs: Attrs,
    until: Instant,
}

/// A change of a directory in progress. Dropping the value forgets the known attributes of the directory.
pub(crate) struct Changing<'a>(&'a ChangedDirs, u64);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut changes = self.0.changes();
        changes.unseen += 1;
        changes.dirs.remove(&self.1);
    }
}

impl ChangedDirs {
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change of a directory whose answer does not contain the directory's attributes.
    pub(super) fn changing(&self, number: u64) -> Changing<'_> {
        Changing(self, number)
    }

    /// Returns the number of changes that completed without attributes. The mount takes this number before it sends a
    /// change whose answer contains the attributes of the directory, and passes the number to [`ChangedDirs::changed`].
    pub(super) fn unseen(&self) -> u64 {
        self.changes().unseen
    }

    /// Records the answer to a change of a directory, with attributes that are valid for `valid`, or without
    /// attributes. `unseen` is the value of [`ChangedDirs::unseen`] before the change.
    pub(super) fn changed(&self, number: u64, attrs: Option<Attrs>, valid: Duration, unseen: u64) {
        let mut changes = self.changes();
        if changes.dirs.len() >= MOST {
            changes.dirs.clear();
        }
        let newer = |attrs: &Attrs| changes.dirs.get(&number).is_none_or(|known| known.attrs.change < attrs.change);
        match attrs {
            // Of several answers in flight, the newest may arrive first.
            Some(attrs) if changes.unseen == unseen && newer(&attrs) => {
                changes.dirs.insert(number, Fresh { attrs, until: Instant::now() + valid });
            }
            Some(_) if changes.unseen == unseen => {}
            _ => drop(changes.dirs.remove(&number)),
        }
    }

    /// Returns the attributes of a directory that this mount has just changed.
    pub(super) fn just_changed(&self, number: u64) -> Option<Attrs> {
        self.changes().dirs.get(&number).filter(|fresh| Instant::now() < fresh.until).map(|fresh| fresh.attrs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::testing::attrs;

    #[test]
    fn only_the_newest_attributes_of_a_directory_are_kept() {
        let dirs = ChangedDirs::default();
        let long = Duration::from_secs(1000);
        let seen = |dirs: &ChangedDirs| dirs.just_changed(7).map(|attrs| attrs.change);
        let before = dirs.unseen();
        dirs.changed(7, Some(attrs(5, 0)), long, before);
        dirs.changed(7, Some(attrs(4, 0)), long, before);
        assert_eq!(seen(&dirs), Some(5), "replies arrived out of order");
        drop(dirs.changing(7));
        assert_eq!(seen(&dirs), None, "the reply to the change had no attributes");
        dirs.changed(7, Some(attrs(6, 0)), long, before);
        assert_eq!(seen(&dirs), None, "an older reply must not replace newer attributes");
        dirs.changed(7, Some(attrs(8, 0)), long, dirs.unseen());
        assert_eq!(seen(&dirs), Some(8));
        dirs.changed(7, Some(attrs(9, 0)), Duration::ZERO, dirs.unseen());
        assert_eq!(seen(&dirs), None, "the attributes have expired");
    }
}
