//! The size of an open file as this client knows it: whether other clients may have changed it since, which answers of
//! the mgr are older than a change here, and the version of the content.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of size reports that the client remembers, to ignore sizes in answers that are older than a report.
const REPORTS: usize = 16;

/// The version of a file's content as this client knows it. It changes when this client writes, truncates or locks the
/// file, or learns of a truncate by another client. A lock counts because its holder must see the bytes that other
/// clients wrote before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Version {
    stamp: u64,
    turns: u64,
}

/// The known size of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownSize {
    /// The size, including this client's unsent writes.
    size: u64,
    /// The mount's stamp ([`super::Inode::stamp`]) at the last change of the size in this mount. An answer that was
    /// requested at an earlier stamp may be older than the change.
    stamp: u64,
    /// Whether other clients may have changed the size since the client learned it.
    doubtful: bool,
    /// Counts the events, other than changes of the stamp, that invalidate bytes read before.
    turns: u64,
    /// The mgr reported a smaller size than the one known here; readers at the old end must check again.
    shorter: bool,
    /// When the client learned the size.
    learned: Option<Instant>,
    /// Whether the client is asking for the size again, because it learned the size long ago.
    asking: bool,
    /// The ends of the last LAYOUTCOMMITs, each with the stamp when the mgr answered it. Each end is below the one
    /// before: an answer that is older than both must reach the earlier end.
    reported: VecDeque<(u64, u64)>,
}

impl KnownSize {
    /// Creates the size of a file that is about to be opened. A size that was requested before `stamp` may be stale.
    pub(super) fn new(stamp: u64) -> Self {
        KnownSize { stamp, ..KnownSize::default() }
    }

    /// Returns the size.
    pub(super) fn get(&self) -> u64 {
        self.size
    }

    /// Returns the stamp of the last change of the size in this mount.
    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Returns whether the size may have changed in this mount since a request at this stamp.
    pub(super) fn is_newer_than(&self, stamp: u64) -> bool {
        self.stamp > stamp
    }

    /// Returns whether other clients may have changed the size since the client learned it.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Returns the version of bytes that are read from now on; `None` while other clients may have changed the size.
    pub(super) fn version(&self) -> Option<Version> {
        (!self.doubtful).then_some(Version { stamp: self.stamp, turns: self.turns })
    }

    /// Records that this client wrote up to `end`.
    pub(super) fn extend_to(&mut self, end: u64, stamp: u64) {
        self.set(self.size.max(end), stamp);
    }

    /// Records that this client set the size.
    pub(super) fn set(&mut self, size: u64, stamp: u64) {
        self.size = size;
        self.touch(stamp);
    }

    /// Records a change after which an answer of the mgr that was requested before may be stale.
    pub(super) fn touch(&mut self, stamp: u64) {
        self.stamp = stamp;
    }

    /// Records that other clients may have changed the size.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
        self.invalidate_reads();
    }

    /// Records that bytes read before are invalid.
    pub(super) fn invalidate_reads(&mut self) {
        self.turns += 1;
    }

    /// Takes over the mgr's size, requested when the stamp was `stamp`; returns the known size. `own_end` is one past
    /// the last byte that the mgr may not know of.
    pub(super) fn learn(&mut self, size: u64, stamp: u64, own_end: u64, now: Instant) -> u64 {
        if self.is_newer_than(stamp) {
            // The answer may be from before a change that was made here since.
            self.doubt();
        } else {
            self.accept(size, own_end);
            self.learned = Some(now);
        }
        self.size
    }

    /// Takes over the mgr's size of a shared file, requested when the stamp was `stamp`; returns the known size. The
    /// mgr knows of every write that has returned, except for bytes that this client wrote directly to iods and had not
    /// reported by then; `own_end` is one past the last of those that are not reported yet.
    pub(super) fn learn_shared(&mut self, size: u64, stamp: u64, own_end: u64) -> u64 {
        let reported = self.reported.iter().find(|(_, at)| *at > stamp).map_or(0, |(end, _)| *end);
        self.size = size.max(reported).max(own_end);
        self.size
    }

    /// Takes over the mgr's size; nothing here has changed the size since the request.
    fn accept(&mut self, size: u64, own_end: u64) {
        self.doubtful = false;
        let size = size.max(own_end);
        if size != std::mem::replace(&mut self.size, size) {
            self.turns += 1;
        }
    }

    /// Begins to ask for the end of the file before a read up to it; returns `false` if a request is on its way, or if
    /// the client learned the size less than `valid` before.
    pub(super) fn begin_asking(&mut self, now: Instant, valid: Duration) -> bool {
        let is_known = self.learned.is_some_and(|learned| now.saturating_duration_since(learned) < valid);
        let begins = !self.asking && !is_known;
        self.asking |= begins;
        begins
    }

    /// Ends the request that [`KnownSize::begin_asking`] began. `answer` is the mgr's size, if it answered. Later
    /// writes of this client take precedence over the answer.
    pub(super) fn end_asking(&mut self, answer: Option<u64>, stamp: u64, own_end: u64, now: Instant) {
        (self.asking, self.learned) = (false, Some(now));
        if let Some(size) = answer.filter(|_| !self.is_newer_than(stamp)) {
            self.accept(size, own_end);
        }
    }

    /// Makes the next read up to the end ask for the size.
    pub(super) fn forget_when(&mut self) {
        self.learned = None;
    }

    /// Records that the mgr has no byte at a place below the known size.
    pub(super) fn found_shorter(&mut self) {
        self.doubt();
        self.shorter = true;
    }

    /// Returns whether the mgr reported a smaller size since the last call.
    pub(super) fn take_shorter(&mut self) -> bool {
        std::mem::take(&mut self.shorter)
    }

    /// Records that the mgr received a report up to `end`. A size that was requested earlier may be from before the
    /// report.
    pub(super) fn reported(&mut self, end: u64, stamp: u64) {
        self.touch(stamp);
        while self.reported.back().is_some_and(|(before, _)| *before <= end) {
            self.reported.pop_back();
        }
        if self.reported.len() == REPORTS {
            self.reported.pop_front();
        }
        self.reported.push_back((end, stamp));
    }
}
