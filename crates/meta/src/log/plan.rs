//! The schedule of checkpoints, which move changes from the log to the database table. It records how long changes have
//! waited in the log, and how much disk space the next checkpoint needs.

use std::time::Duration;
use types::limits;

/// A summary of the changes that are in the log and not yet durable in the database table: the time of the oldest
/// change, and the number of changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    oldest: Option<Duration>,
    changes: u64,
}

impl Plan {
    /// Records that a commit group with `changes` changed records was committed to the log, without a flush of the
    /// database.
    pub(crate) fn applied(&mut self, now: Duration, changes: usize) {
        self.oldest.get_or_insert(now);
        self.changes += changes as u64;
    }

    /// Records that a checkpoint has made all changes durable in the database table.
    pub(crate) fn flushed(&mut self) {
        *self = Plan::default();
    }

    /// Returns the time from which a checkpoint is due; `None` if no change waits for a checkpoint.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.oldest.map(|oldest| oldest.saturating_add(limits::META_CHECKPOINT_INTERVAL))
    }

    /// Returns whether a checkpoint is due at `now`.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Returns the disk space in bytes that the next checkpoint may need for the changes in the log and for `more`
    /// further changes.
    ///
    /// The free space of the disk still includes this space, because redb writes its pages only at the checkpoint.
    pub(crate) fn needs(&self, more: usize) -> u64 {
        (self.changes + more as u64).saturating_mul(limits::META_CHANGE_BYTES)
    }
}
