//! When the store below the log is flushed: by time, by what the log holds, and by the room on the disk.

use std::time::Duration;
use types::limits;

/// What is in the log and not yet on stable storage in the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    oldest: Option<Duration>,
    changes: u64,
}

impl Plan {
    /// A window with so many changed records was applied to the store without a flush of the store.
    pub(crate) fn applied(&mut self, now: Duration, changes: usize) {
        self.oldest.get_or_insert(now);
        self.changes += changes as u64;
    }

    /// The store was flushed.
    pub(crate) fn flushed(&mut self) {
        *self = Plan::default();
    }

    /// When the store must be flushed; `None` if nothing waits for that.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.oldest.map(|oldest| oldest.saturating_add(limits::META_CHECKPOINT_INTERVAL))
    }

    /// Whether the store must be flushed now.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Bytes that the store may need of the disk at its next flush, if so many more records change.
    ///
    /// These are not seen in the free space of the disk yet: the store writes its pages when it is flushed.
    pub(crate) fn needs(&self, more: usize) -> u64 {
        (self.changes + more as u64).saturating_mul(limits::META_CHANGE_BYTES)
    }
}
