//! A cache of the attributes that directories have after the last change by this mount. After such a change, the kernel
//! drops its own cached attributes of the directory, and requests these attributes before any other operation in the
//! directory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use types::Attrs;

/// Largest number of directories whose attributes are cached.
const MOST: usize = 256;

/// The cached attributes of directories that this mount changed, by inode number.
#[derive(Default)]
pub(super) struct ChangedDirs(Mutex<Changes>);

#[derive(Default)]
struct Changes {
    /// Number of completed directory changes whose replies contained no attributes. Attributes that the mount
    /// requested before such a change are outdated.
    unseen: u64,
    dirs: HashMap<u64, Fresh>,
}

/// Attributes of a directory from the reply to a change of this directory.
struct Fresh {
    attrs: Attrs,
    until: Instant,
}

/// Guard of a change of a directory in progress. Dropping the guard removes the cached attributes of the directory.
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

    /// Begins a change of a directory for which the reply does not contain the directory's attributes.
    pub(super) fn changing(&self, number: u64) -> Changing<'_> {
        Changing(self, number)
    }

    /// Returns the number of completed directory changes whose replies contained no attributes. The caller takes this
    /// number before it sends a change whose reply contains attributes, and passes the number to
    /// [`ChangedDirs::changed`].
    pub(super) fn unseen(&self) -> u64 {
        self.changes().unseen
    }

    /// Records the reply to a change of a directory. `attrs` are the directory's attributes, if the reply contains
    /// them, and are valid for `valid`. `unseen` is the result of [`ChangedDirs::unseen`] before the change.
    pub(super) fn changed(&self, number: u64, attrs: Option<Attrs>, valid: Duration, unseen: u64) {
        let mut changes = self.changes();
        if changes.dirs.len() >= MOST {
            changes.dirs.clear();
        }
        let newer = |attrs: &Attrs| changes.dirs.get(&number).is_none_or(|known| known.attrs.change < attrs.change);
        match attrs {
            // Replies to concurrent changes of a directory may arrive out of order, so keep the newest attributes.
            Some(attrs) if changes.unseen == unseen && newer(&attrs) => {
                changes.dirs.insert(number, Fresh { attrs, until: Instant::now() + valid });
            }
            Some(_) if changes.unseen == unseen => {}
            _ => drop(changes.dirs.remove(&number)),
        }
    }

    /// Returns the attributes of a directory from the last change by this mount, if they are still valid.
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
