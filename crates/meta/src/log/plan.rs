//! The flush schedule of the table below the log: how long its changes have waited, and how much disk space its flush
//! needs.

use std::time::Duration;
use types::limits;

/// The changes that are in the log and not yet on stable storage in the table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    oldest: Option<Duration>,
    changes: u64,
}

impl Plan {
    /// Records that a window with so many changed records was applied to the store without a flush of the store.
    pub(crate) fn applied(&mut self, now: Duration, changes: usize) {
        self.oldest.get_or_insert(now);
        self.changes += changes as u64;
    }

    /// Records that the store was flushed.
    pub(crate) fn flushed(&mut self) {
        *self = Plan::default();
    }

    /// Returns when the store must be flushed; `None` if no change waits for a flush.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.oldest.map(|oldest| oldest.saturating_add(limits::META_CHECKPOINT_INTERVAL))
    }

    /// Returns whether the store must be flushed now.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Returns the bytes of disk space that the store may need at its next flush, if so many more records change.
    ///
    /// The free space of the disk does not show them yet, because the store writes its pages when it is flushed.
    pub(crate) fn needs(&self, more: usize) -> u64 {
        (self.changes + more as u64).saturating_mul(limits::META_CHANGE_BYTES)
    }
}
