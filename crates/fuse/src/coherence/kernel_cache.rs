//! The record of the data that the kernel has cached of each file that it knows: size, times, and the version of its
//! pages.
//!
//! The kernel drops an answer with attributes if it has changed its own attributes of the file since it asked. So after
//! most answers with a new size, the cached size is unknown. The record says so, and never names a wrong size.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::{Attrs, Timestamp};

/// What the kernel has cached, by file number.
#[derive(Default)]
pub(super) struct KernelCache(Mutex<Record>);

#[derive(Clone, Default)]
struct Record {
    files: HashMap<u64, Cached>,
    /// Number of changes to `size` of any file, apart from [`KernelCache::shown`].
    doubts: u64,
}

/// What the kernel has cached of a file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Cached {
    /// Change attribute and size when the kernel last received attributes.
    told: (u64, u64),
    /// The modification time that the kernel last received.
    told_time: Timestamp,
    /// Change attribute and size of the version to which the kernel's pages belong.
    pages: Option<(u64, u64)>,
    /// Whether a write of this mount has bypassed the page cache since the last open, so that the kernel's pages may be
    /// older than the attributes say.
    past: bool,
    /// Size and modification time that the kernel has cached; `None` if they are unknown. Only a kernel that writes
    /// back keeps the time itself.
    size: Option<(u64, Timestamp)>,
}

fn version(attrs: &Attrs) -> (u64, u64) {
    (attrs.change, attrs.size)
}

impl KernelCache {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the kernel receives an entry with these attributes. It never drops the first one of a file.
    pub(super) fn entry_told(&self, number: u64, attrs: &Attrs) {
        let first = || Cached {
            told: version(attrs),
            told_time: attrs.mtime,
            pages: None,
            past: false,
            size: Some((attrs.size, attrs.mtime)),
        };
        let mut record = self.record();
        let cached = record.files.entry(number).or_insert_with(first);
        (cached.told, cached.told_time) = (version(attrs), attrs.mtime);
    }

    /// Records that the kernel has forgotten a file.
    pub(super) fn forgotten(&self, number: u64) {
        let files = &mut self.record().files;
        files.remove(&number);
        // Free the memory of a table that has become much smaller.
        if files.capacity() > 4096 && files.len() < files.capacity() / 8 {
            let most = files.capacity() / 4;
            files.shrink_to(most);
        }
    }

    /// Returns whether the kernel knows a file.
    pub(super) fn is_known(&self, number: u64) -> bool {
        self.record().files.contains_key(&number)
    }

    /// Records that the kernel receives these attributes. Returns whether they differ from the last ones that it
    /// received.
    pub(super) fn told(&self, number: u64, attrs: &Attrs) -> bool {
        let mut record = self.record();
        let Some(cached) = record.files.get_mut(&number) else { return false };
        cached.told_time = attrs.mtime;
        std::mem::replace(&mut cached.told, version(attrs)) != version(attrs)
    }

    /// Records attributes that the mount has from the mgr. Returns whether the kernel may continue with older ones: it
    /// may have dropped the last answer, and may consider an older answer valid. A kernel that `keeps_sizes` takes them
    /// from no answer.
    pub(super) fn is_outdated(&self, number: u64, attrs: &Attrs, keeps_sizes: bool) -> bool {
        let unsure = !keeps_sizes && !self.has_size(number, attrs.size);
        self.told(number, attrs) || unsure
    }

    /// Records that the kernel receives these attributes as the answer to a thread of the mount itself. That thread
    /// then reads the size that the kernel has cached and records it ([`KernelCache::shown`]). Until then the cached
    /// size is unknown if the answer has another size.
    pub(super) fn may_take_own(&self, number: u64, attrs: &Attrs) {
        if let Some(cached) = self.record().files.get_mut(&number)
            && cached.size.is_some_and(|(size, _)| size != attrs.size)
        {
            cached.size = None;
        }
    }

    /// Returns the modification time that the kernel last received of a file.
    pub(super) fn told_time(&self, number: u64) -> Option<Timestamp> {
        self.record().files.get(&number).map(|cached| cached.told_time)
    }

    /// Returns the size and modification time that the kernel is known to have cached, where it keeps them itself.
    pub(super) fn size_and_time(&self, number: u64) -> Option<(u64, Timestamp)> {
        self.record().files.get(&number).and_then(|cached| cached.size)
    }

    /// Returns whether the kernel is known to have this size cached.
    pub(super) fn has_size(&self, number: u64, size: u64) -> bool {
        self.size_and_time(number).is_some_and(|(cached, _)| cached == size)
    }

    /// Returns whether the kernel is known to have this size and modification time cached, where it keeps them itself.
    pub(super) fn has(&self, number: u64, attrs: &Attrs) -> bool {
        self.size_and_time(number) == Some((attrs.size, attrs.mtime))
    }

    /// Records that the kernel has these attributes cached: they come in an answer that it never drops.
    pub(super) fn has_now(&self, number: u64, attrs: &Attrs) {
        self.set(number, Some((attrs.size, attrs.mtime)));
    }

    /// Records that size and times in the kernel's cache are unknown, because the kernel changes them itself.
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

    /// Records that the kernel receives these attributes in an answer that it may drop.
    pub(super) fn may_take(&self, number: u64, attrs: &Attrs) {
        if !self.has_size(number, attrs.size) {
            self.is_unknown(number);
        }
    }

    /// Records that the kernel has written up to `end`, and raises its cached size to that.
    pub(super) fn grew(&self, number: u64, end: u64) {
        if let Some((size, _)) = self.record().files.get_mut(&number).and_then(|cached| cached.size.as_mut()) {
            *size = end.max(*size);
        }
    }

    /// Records that a read of a page found the end of the file at `end`. A kernel with a larger cached size may lower
    /// it to that.
    pub(super) fn may_end_at(&self, number: u64, end: u64) {
        if self.size_and_time(number).is_some_and(|(size, _)| size > end) {
            self.is_unknown(number);
        }
    }

    /// Returns a number for [`KernelCache::shown`]. The caller takes it before it looks at the kernel's cached size.
    pub(super) fn doubts(&self) -> u64 {
        self.record().doubts
    }

    /// Records that the kernel was seen to have this size cached. Has no effect if the record of any size changed since
    /// `doubts` was taken.
    pub(super) fn shown(&self, number: u64, size: u64, doubts: u64) {
        let mut record = self.record();
        if record.doubts == doubts
            && let Some(cached) = record.files.get_mut(&number)
        {
            cached.size = Some((size, cached.told_time));
        }
    }

    /// Records an open of a file. Returns whether the kernel's cached pages belong to this version. If not, the kernel
    /// drops them, and the pages that it gets from now on belong to this version. Attributes that the kernel received
    /// meanwhile prove nothing: it accepts them and keeps its pages.
    pub(super) fn pages_are_of(&self, number: u64, attrs: &Attrs) -> bool {
        let now = Some(version(attrs));
        self.record().files.get_mut(&number).is_some_and(|cached| {
            cached.past = false;
            std::mem::replace(&mut cached.pages, now) == now
        })
    }

    /// Records that the kernel's cached pages belong to this version, because the kernel itself made it. Has no effect
    /// after a write past the page cache.
    pub(super) fn pages_became(&self, number: u64, attrs: &Attrs) {
        if let Some(cached) = self.record().files.get_mut(&number).filter(|cached| !cached.past) {
            cached.pages = Some(version(attrs));
        }
    }

    /// Records a write past the page cache: pages that the kernel got meanwhile may be older.
    pub(super) fn written_past(&self, number: u64) {
        if let Some(cached) = self.record().files.get_mut(&number) {
            (cached.pages, cached.past) = (None, true);
        }
    }

    /// Returns whether this mount has written past the page cache since the last open.
    pub(super) fn is_written_past(&self, number: u64) -> bool {
        self.record().files.get(&number).is_some_and(|cached| cached.past)
    }
}

#[cfg(test)]
mod explorer;
#[cfg(test)]
mod tests;
