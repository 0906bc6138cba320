//! The size of an open file as far as this client knows it. It tracks whether other clients may have changed the size,
//! which replies of the mgr are outdated, and the version of the contents.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of size reports and writes that the client remembers, to recognize replies that are older than them.
const REPORTS: usize = 16;

/// The version of a file's contents as far as this client knows. It changes when this client writes, truncates or locks
/// the file, or learns of a truncate by another client. A new lock changes the version because its holder must see what
/// other clients wrote before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Version {
    stamp: u64,
    turns: u64,
}

/// The known size of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownSize {
    /// The size of the file, including this client's unsent writes.
    size: u64,
    /// The mount's logical time ([`super::Inode::stamp`]) at the last event on this mount that may have changed the
    /// size. The size in the reply to an earlier request may be outdated.
    stamp: u64,
    /// Whether other clients may have changed the size since the client learned it.
    doubtful: bool,
    /// A counter of other events after which bytes that the client has read may be outdated, such as a truncate by
    /// another client. These events do not change `stamp`.
    turns: u64,
    /// Whether the mgr reported a smaller size than the client knew, so that the client must repeat a read that relied
    /// on the larger size.
    shorter: bool,
    /// When the client last learned the size from the mgr, or gave up a request for the size.
    learned: Option<Instant>,
    /// Whether a request for the size is in flight, because the size that the client last learned is too old.
    asking: bool,
    /// The last completed size reports (LAYOUTCOMMIT) and writes, oldest first: the end offset of each, and the mount's
    /// logical time at its reply. A size that the client requested before such a reply may be smaller than the end
    /// offset, and then is outdated. A later entry replaces earlier entries that have a smaller or equal end offset.
    reported: VecDeque<(u64, u64)>,
}

impl KnownSize {
    /// Creates the size of a file that is about to be opened. Sizes that the client requested before the mount's
    /// logical time `stamp` may be outdated.
    pub(super) fn new(stamp: u64) -> Self {
        KnownSize { stamp, ..KnownSize::default() }
    }

    pub(super) fn get(&self) -> u64 {
        self.size
    }

    /// Returns the mount's logical time at the last event on this mount that may have changed the size.
    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Returns whether the size may have changed on this mount since a request at logical time `stamp`.
    pub(super) fn is_newer_than(&self, stamp: u64) -> bool {
        self.stamp > stamp
    }

    /// Returns whether other clients may have changed the size since the client learned it.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Returns the version of the contents that a read would return now; `None` if other clients may have changed the
    /// size.
    pub(super) fn version(&self) -> Option<Version> {
        (!self.doubtful).then_some(Version { stamp: self.stamp, turns: self.turns })
    }

    /// Records that this client wrote bytes up to file offset `end`.
    pub(super) fn extend_to(&mut self, end: u64, stamp: u64) {
        self.set(self.size.max(end), stamp);
    }

    /// Records that this client set the size of the file.
    pub(super) fn set(&mut self, size: u64, stamp: u64) {
        self.size = size;
        self.touch(stamp);
    }

    /// Records a change at logical time `stamp`: the size in replies that the client requested earlier may be outdated.
    pub(super) fn touch(&mut self, stamp: u64) {
        self.stamp = stamp;
    }

    /// Records that other clients may have changed the size.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
        self.invalidate_reads();
    }

    /// Records that all bytes that the client read before this call are outdated.
    pub(super) fn invalidate_reads(&mut self) {
        self.turns += 1;
    }

    /// Records the size from a reply of the mgr that the client requested at logical time `stamp`; returns the known
    /// size. `own_end` is the file offset just after the last byte that the mgr may not know of.
    pub(super) fn learn(&mut self, size: u64, stamp: u64, own_end: u64, now: Instant) -> u64 {
        if self.is_newer_than(stamp) {
            // The reply may be older than a change on this mount, so do not use it.
            self.doubt();
        } else {
            self.accept(size, own_end);
            self.learned = Some(now);
        }
        self.size
    }

    /// Records the mgr's size of a shared file, requested at logical time `stamp`; returns the known size.
    ///
    /// The mgr knows of every write that has returned, except for bytes that this client wrote directly to iods and
    /// reported to the mgr later or not at all. `own_end` is the file offset just after the last byte of this kind.
    pub(super) fn learn_shared(&mut self, size: u64, stamp: u64, own_end: u64) -> u64 {
        self.size = size.max(self.reported_since(stamp)).max(own_end);
        self.size
    }

    /// Returns the largest end offset of the size reports and writes that have completed since logical time `stamp`; 0
    /// if there are none. If the client requested a size at `stamp` and the mgr returned a smaller one, there are two
    /// possible reasons: the mgr read the size before the report or write, or another client truncated the file after
    /// the report or write.
    pub(super) fn reported_since(&self, stamp: u64) -> u64 {
        self.reported.iter().find(|(_, at)| *at > stamp).map_or(0, |(end, _)| *end)
    }

    /// Records the mgr's size. The caller has checked that nothing on this mount has changed the size since the
    /// request.
    fn accept(&mut self, size: u64, own_end: u64) {
        self.doubtful = false;
        let size = size.max(own_end);
        if size != std::mem::replace(&mut self.size, size) {
            self.turns += 1;
        }
    }

    /// Begins a request for the size, before a read up to the end of the file. Returns `false` if a request is in
    /// flight, or if the client learned the size less than `valid` ago.
    pub(super) fn begin_asking(&mut self, now: Instant, valid: Duration) -> bool {
        let is_known = self.learned.is_some_and(|learned| now.saturating_duration_since(learned) < valid);
        let begins = !self.asking && !is_known;
        self.asking |= begins;
        begins
    }

    /// Ends the request that [`KnownSize::begin_asking`] began. `answer` is the size that the mgr returned, if it
    /// replied. Changes on this mount since the request take precedence over the reply.
    pub(super) fn end_asking(&mut self, answer: Option<u64>, stamp: u64, own_end: u64, now: Instant) {
        (self.asking, self.learned) = (false, Some(now));
        if let Some(size) = answer.filter(|_| !self.is_newer_than(stamp)) {
            self.accept(size, own_end);
        }
    }

    /// Marks the size as outdated, so that the next read up to the end of the file requests it again.
    pub(super) fn forget_when(&mut self) {
        self.learned = None;
    }

    /// Records that, according to the mgr, the file ends below the known size.
    pub(super) fn found_shorter(&mut self) {
        self.doubt();
        self.shorter = true;
    }

    /// Returns whether the mgr has reported a smaller size than the known size since the last call of this method.
    pub(super) fn take_shorter(&mut self) -> bool {
        std::mem::take(&mut self.shorter)
    }

    /// Records that a size report or a write up to file offset `end` is complete. Sizes that the client requested
    /// earlier may be older than this report or write.
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
