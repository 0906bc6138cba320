//! Writes of an open file that are not durable yet, so that a close or sync knows whether there is anything to do.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Tracks whether all writes through an open file are durable. Processes that inherited a descriptor may write, sync
/// and close the file at the same time. While one call still makes a write durable, another sync or close has to make
/// the write durable, too.
pub(crate) struct Unsynced {
    /// Number of writes through the open file that have ended.
    made: AtomicU64,
    /// Number of the first writes through the open file that are known to be durable.
    durable: AtomicU64,
}

/// Guard of a write. Dropping the guard counts the write, whatever its result. The write counts from its end on,
/// because a sync that begins before this end may make only a part of the write durable.
pub(crate) struct Write<'a>(&'a Unsynced);

impl Unsynced {
    /// Creates the record of an open file. If `unsynced` is true, the open has created the file, and the creation is
    /// not durable yet: it counts as the first write.
    pub(crate) fn new(unsynced: bool) -> Self {
        Unsynced { made: AtomicU64::new(unsynced.into()), durable: AtomicU64::new(0) }
    }

    /// Begins a write through the open file.
    pub(crate) fn begin(&self) -> Write<'_> {
        Write(self)
    }

    /// Returns the number of writes that have ended, or `None` if all of them are durable.
    pub(crate) fn due(&self) -> Option<u64> {
        let made = self.made.load(SeqCst);
        (made > self.durable.load(SeqCst)).then_some(made)
    }

    /// Records that the first `due` writes through the open file are durable.
    pub(crate) fn made_durable(&self, due: u64) {
        self.durable.fetch_max(due, SeqCst);
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        self.0.made.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_name_is_due_until_it_is_durable() {
        let written = Unsynced::new(true);
        let first = written.due().expect("the file was made");
        assert_eq!(written.due(), Some(first), "a second caller waits for the same sync");
        written.made_durable(first);
        assert_eq!(written.due(), None);
        assert_eq!(Unsynced::new(false).due(), None);
    }

    #[test]
    fn a_write_that_ended_after_a_sync_began_is_due() {
        let written = Unsynced::new(false);
        drop(written.begin());
        let (due, slow) = (written.due().unwrap(), written.begin());
        drop(slow);
        written.made_durable(due);
        let later = written.due().expect("the sync need not have seen the slow write");
        written.made_durable(later);
        // Two syncs overlap. The sync that began first but ends last does not undo the result of the other sync.
        written.made_durable(due);
        assert_eq!(written.due(), None);
    }
}
