//! The record of the data that the kernel has cached of each inode: size, times, and the file version of its cached
//! pages.
//!
//! The kernel discards a reply with attributes if its own attributes of the file have changed since it sent the
//! request. So after most replies with a new size, the mount does not know the cached size. The record of the file then
//! has no size, but never a wrong size.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::{Attrs, Timestamp};

/// The data that the kernel has cached, by inode number.
#[derive(Default)]
pub(super) struct KernelCache(Mutex<Record>);

#[derive(Clone, Default)]
struct Record {
    files: HashMap<u64, Cached>,
    /// Number of times that a recorded size was set or became unknown, over all files. [`KernelCache::grew`],
    /// [`KernelCache::may_take_own`] and [`KernelCache::shown`] do not count.
    doubts: u64,
}

/// The data that the kernel has cached of one file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Cached {
    /// Change attribute and size that the kernel last received in a reply.
    sent: (u64, u64),
    /// The modification time that the kernel last received in a reply.
    sent_mtime: Timestamp,
    /// Change attribute and size of the file version to which the kernel's cached pages belong.
    pages: Option<(u64, u64)>,
    /// Whether a direct write of this mount has bypassed the page cache since the last open. The kernel's pages may
    /// then be older than the attributes.
    bypassed: bool,
    /// Size and modification time that the kernel has cached, or `None` if the mount does not know them. The kernel
    /// keeps this time only with write-back; otherwise each reply with attributes replaces the time.
    size: Option<(u64, Timestamp)>,
}

fn version(attrs: &Attrs) -> (u64, u64) {
    (attrs.change, attrs.size)
}

impl KernelCache {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the kernel receives an entry with the given attributes. The kernel never discards the first entry
    /// of a file.
    pub(super) fn entry_sent(&self, number: u64, attrs: &Attrs) {
        let first = || Cached {
            sent: version(attrs),
            sent_mtime: attrs.mtime,
            pages: None,
            bypassed: false,
            size: Some((attrs.size, attrs.mtime)),
        };
        let mut record = self.record();
        let cached = record.files.entry(number).or_insert_with(first);
        (cached.sent, cached.sent_mtime) = (version(attrs), attrs.mtime);
    }

    /// Records that the kernel has dropped the inode of a file (FORGET).
    pub(super) fn forgotten(&self, number: u64) {
        let files = &mut self.record().files;
        files.remove(&number);
        // Free unused memory of the hash table if the number of files has fallen far below its capacity.
        if files.capacity() > 4096 && files.len() < files.capacity() / 8 {
            let most = files.capacity() / 4;
            files.shrink_to(most);
        }
    }

    /// Returns whether the kernel has an inode of the file.
    pub(super) fn is_known(&self, number: u64) -> bool {
        self.record().files.contains_key(&number)
    }

    /// Records that the kernel receives the given attributes of a file. Returns whether they differ from the attributes
    /// that the kernel received before.
    pub(super) fn attrs_sent(&self, number: u64, attrs: &Attrs) -> bool {
        let mut record = self.record();
        let Some(cached) = record.files.get_mut(&number) else { return false };
        cached.sent_mtime = attrs.mtime;
        std::mem::replace(&mut cached.sent, version(attrs)) != version(attrs)
    }

    /// Records attributes that the mgr has sent to the mount. Returns whether the kernel possibly still uses older
    /// attributes: it can have discarded the last reply and consider the attributes of an earlier reply valid.
    /// `keeps_sizes`: the kernel ignores the sizes in replies (write-back).
    pub(super) fn is_outdated(&self, number: u64, attrs: &Attrs, keeps_sizes: bool) -> bool {
        let unsure = !keeps_sizes && !self.has_size(number, attrs.size);
        self.attrs_sent(number, attrs) || unsure
    }

    /// Records that the kernel receives the given attributes in the reply to a GETATTR by a thread of the mount itself.
    /// That thread then reads the kernel's cached size and records it ([`KernelCache::shown`]). Until then, the cached
    /// size is unknown if the reply contains another size.
    pub(super) fn may_take_own(&self, number: u64, attrs: &Attrs) {
        if let Some(cached) = self.record().files.get_mut(&number)
            && cached.size.is_some_and(|(size, _)| size != attrs.size)
        {
            cached.size = None;
        }
    }

    /// Returns the modification time of a file that the kernel last received.
    pub(super) fn sent_mtime(&self, number: u64) -> Option<Timestamp> {
        self.record().files.get(&number).map(|cached| cached.sent_mtime)
    }

    /// Returns the size and modification time that the kernel has cached, or `None` if the mount does not know them.
    pub(super) fn size_and_time(&self, number: u64) -> Option<(u64, Timestamp)> {
        self.record().files.get(&number).and_then(|cached| cached.size)
    }

    /// Returns whether the kernel is certain to have the given size of a file cached.
    pub(super) fn has_size(&self, number: u64, size: u64) -> bool {
        self.size_and_time(number).is_some_and(|(cached, _)| cached == size)
    }

    /// Returns whether the kernel is certain to have the given size and modification time of a file cached. Used on
    /// mounts with write-back.
    pub(super) fn has(&self, number: u64, attrs: &Attrs) -> bool {
        self.size_and_time(number) == Some((attrs.size, attrs.mtime))
    }

    /// Records that the kernel has the given attributes cached: it receives them in a reply that it never discards.
    pub(super) fn has_now(&self, number: u64, attrs: &Attrs) {
        self.set(number, Some((attrs.size, attrs.mtime)));
    }

    /// Records that the mount does not know the size and times in the kernel's cache, because the kernel changes them
    /// itself.
    pub(super) fn is_unknown(&self, number: u64) {
        self.set(number, None);
    }

    fn set(&self, number: u64, size: Option<(u64, Timestamp)>) {
        let mut record = self.record();
        if let Some(cached) = record.files.get_mut(&number) {
            cached.size = size;
            record.doubts += 1;
        }
    }

    /// Records that the kernel receives the given attributes in a reply that it may discard.
    pub(super) fn may_take(&self, number: u64, attrs: &Attrs) {
        if !self.has_size(number, attrs.size) {
            self.is_unknown(number);
        }
    }

    /// Records that the kernel writes the file up to `end`, so the kernel's cached size becomes at least `end`. Counts
    /// a change unless the recorded size is already as large: a size that the mount reads from the kernel's cache at
    /// the same time may be the one before the write.
    pub(super) fn grew(&self, number: u64, end: u64) {
        let mut record = self.record();
        let Some(cached) = record.files.get_mut(&number) else { return };
        if let Some((size, _)) = &mut cached.size {
            if *size >= end {
                return;
            }
            *size = end;
        }
        record.doubts += 1;
    }

    /// Records that a read of a page found the end of the file at `end`. If the kernel has a larger size cached, the
    /// kernel may lower this size to `end`.
    pub(super) fn may_end_at(&self, number: u64, end: u64) {
        if self.size_and_time(number).is_some_and(|(size, _)| size > end) {
            self.is_unknown(number);
        }
    }

    /// Returns the number of counted changes of recorded sizes, for [`KernelCache::shown`]. The caller takes this
    /// number before it reads the kernel's cached size.
    pub(super) fn doubts(&self) -> u64 {
        self.record().doubts
    }

    /// Records the size that the mount has read from the kernel's cache. Has no effect if [`KernelCache::doubts`] no
    /// longer returns `doubts`, because the size may then be outdated.
    pub(super) fn shown(&self, number: u64, size: u64, doubts: u64) {
        let mut record = self.record();
        if record.doubts == doubts
            && let Some(cached) = record.files.get_mut(&number)
        {
            cached.size = Some((size, cached.sent_mtime));
        }
    }

    /// Records an open of a file. Returns whether the kernel's cached pages belong to the opened version of the file.
    /// If not, the kernel drops these pages, and pages that the kernel reads later belong to the opened version. A
    /// reply to a request other than an open proves nothing: the kernel accepts the attributes in the reply and keeps
    /// its pages.
    pub(super) fn pages_are_of(&self, number: u64, attrs: &Attrs) -> bool {
        let now = Some(version(attrs));
        self.record().files.get_mut(&number).is_some_and(|cached| {
            cached.bypassed = false;
            std::mem::replace(&mut cached.pages, now) == now
        })
    }

    /// Records that the kernel's cached pages belong to the given version of the file, because the kernel's own writes
    /// made this version. Has no effect after a direct write.
    pub(super) fn pages_became(&self, number: u64, attrs: &Attrs) {
        if let Some(cached) = self.record().files.get_mut(&number).filter(|cached| !cached.bypassed) {
            cached.pages = Some(version(attrs));
        }
    }

    /// Records a direct write. Pages that the kernel reads during the write may be older than the written bytes.
    pub(super) fn written_directly(&self, number: u64) {
        if let Some(cached) = self.record().files.get_mut(&number) {
            (cached.pages, cached.bypassed) = (None, true);
        }
    }

    /// Returns whether this mount has made a direct write to the file since the last open.
    pub(super) fn is_written_directly(&self, number: u64) -> bool {
        self.record().files.get(&number).is_some_and(|cached| cached.bypassed)
    }
}

#[cfg(test)]
mod explorer;
#[cfg(test)]
mod tests;
