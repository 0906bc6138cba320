//! Write-back: decides which files the kernel may write through its page cache. When another client wants a file, the
//! mount makes the kernel drop the pages of the file.
//!
//! The kernel writes a file through its page cache while this mount has a write delegation for the file. Otherwise
//! writes bypass the page cache. When another client wants the file, the mount makes the kernel write back and drop
//! its pages, and then returns the delegation. Opens that already use the page cache continue to use it, and the file
//! is *shared*.
//!
//! The attributes of a shared file have no lifetime, so the kernel requests them before each read and write. Before the
//! mount replies, it makes the kernel write back and drop its pages. Each write(2) is written back before it returns
//! ([`crate::coherence::sync_mount`]).

use crate::coherence::kernel_size;
use crate::coherence::page_twins::{self, PageTwins};
use crate::coherence::writers::{Writers, Writing};
use crate::mounting;
use bytes::Bytes;
use client::{File, Segment};
use rustix::fs::OFlags;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use types::ByteRange;

/// The share of the machine's dirty page limit that this mount may use, in percent. The kernel's default for FUSE
/// file systems is one percent, above which writers wait.
const DIRTY_PERCENT: u32 = 25;
/// Largest number of bytes of the page twins of one file. Above this number, the mount makes the kernel drop the
/// file's pages, to free the twins.
const TWINS_MAX: u64 = 16 << 20;

/// The write-back state of a mount: whether write-back is on, and the files that the kernel writes.
pub(super) struct WriteBack {
    on: AtomicBool,
    writers: Arc<Writers>,
}

/// The result for an open that cannot use the page cache, because the mount has no write delegation, or the open cannot
/// use the delegation. The mount then answers OPEN with FOPEN_DIRECT_IO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotDelegated;

/// Returns whether the given flags of open(2) permit writes.
fn writes(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).intersects(OFlags::WRONLY | OFlags::RDWR)
}

impl WriteBack {
    /// Creates the write-back state of a mount; `on`: the mount uses write-back.
    pub(super) fn new(on: bool) -> Self {
        WriteBack { on: AtomicBool::new(on), writers: Arc::default() }
    }

    /// Returns the reason why this process cannot use write-back, or `None` if it can.
    pub(super) fn unavailable() -> Option<io::Error> {
        let why = "writing back needs root's right to open files by their numbers (CAP_DAC_READ_SEARCH)";
        (!kernel_size::may()).then(|| io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// Returns whether the mount uses write-back.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Turns write-back off, because the kernel does not support it.
    pub(super) fn switch_off(&self) {
        self.on.store(false, Relaxed);
    }

    /// Returns whether an open with the given flags needs a write delegation. An append and an open with O_DIRECT need
    /// none: only the mgr knows the end of the file, and O_DIRECT bypasses the page cache.
    pub(super) fn wants(&self, flags: u32) -> bool {
        self.is_on() && writes(flags) && !OFlags::from_bits_retain(flags).intersects(OFlags::APPEND | OFlags::DIRECT)
    }

    /// Begins an open with the given flags that may use the page cache. While the returned guard exists, the kernel may
    /// write to the page cache of the file. Returns `None` if the open does not write to the page cache.
    ///
    /// # Errors
    /// Fails if the writes of this open must bypass the page cache.
    pub(super) fn begin(&self, number: u64, file: &File, flags: u32) -> Result<Option<Writing>, NotDelegated> {
        if !self.is_on() || !writes(flags) {
            return Ok(None);
        }
        if !self.wants(flags) {
            return Err(NotDelegated);
        }
        let writing = Writing::begin(&self.writers, number);
        // Check the delegation only now that this open is in the table of writers: a recall after this check finds the
        // file in the table. The open must permit reads, because the kernel reads a page before a program writes only
        // a part of the page.
        if file.is_alone() && file.is_readable() { Ok(Some(writing)) } else { Err(NotDelegated) }
    }

    /// Returns whether the kernel writes a file through its page cache, so that only the kernel knows the size of the
    /// file.
    pub(super) fn is_written(&self, number: u64) -> bool {
        self.writers.table().contains_key(&number)
    }

    /// Returns whether the kernel writes a file through its page cache while other clients use the file.
    pub(super) fn is_shared(&self, number: u64) -> bool {
        self.is_on() && self.writers.table().get(&number).is_some_and(|cached| cached.shared)
    }

    /// Returns whether the kernel writes any file through its page cache while other clients use the file.
    pub(super) fn is_any_shared(&self) -> bool {
        self.writers.table().values().any(|cached| cached.shared)
    }

    /// Records bytes that the kernel reads into its page cache. Returns whether the page twins of the file take so
    /// much memory that the mount should make the kernel drop the file's pages, which frees the twins.
    pub(super) fn got(&self, number: u64, (offset, size): (u64, u32), data: &[Segment]) -> bool {
        let mut table = self.writers.table();
        let Some(cached) = table.get_mut(&number).filter(|cached| cached.shared) else { return false };
        let whole: Vec<u8> = data.iter().flat_map(|segment| segment_bytes(segment)).collect();
        cached.twins.got(offset, &whole);
        cached.twins.got_nothing(offset + whole.len() as u64, offset + u64::from(size));
        cached.twins.bytes() > TWINS_MAX
    }

    /// Records bytes that the kernel writes back from its page cache. Returns the bytes that the mount has to write,
    /// and the new size of the file if the write-back extends it.
    pub(super) fn changed(&self, number: u64, offset: u64, data: &Bytes) -> (Vec<(u64, Bytes)>, Option<u64>) {
        let mut table = self.writers.table();
        let Some(cached) = table.get_mut(&number).filter(|cached| cached.shared) else {
            return (vec![(offset, data.clone())], None);
        };
        let page_twins::Changed { runs, end } = cached.twins.changed(offset, data);
        (runs.into_iter().map(|run| (offset + run.start as u64, data.slice(run))).collect(), end)
    }

    /// Records the byte range of a file that a thread is about to write or has written, or `None` if the range is
    /// unknown.
    pub(super) fn thread_writes(&self, number: u64, thread: u32, range: Option<ByteRange>) {
        if let Some(cached) = self.writers.table().get_mut(&number).filter(|cached| cached.shared) {
            cached.twins.thread_writes(thread, range);
        }
    }

    /// Returns whether the mount refuses dirty pages of a file, because other clients may have written the file
    /// without a recall of this mount's delegation.
    pub(super) fn is_given_up(&self, number: u64) -> bool {
        self.writers.table().get(&number).is_some_and(|cached| cached.given_up)
    }

    /// Makes the mount refuse the kernel's dirty pages of a file, or accept them again.
    pub(super) fn set_given_up(&self, number: u64, to: bool) {
        if let Some(cached) = self.writers.table().get_mut(&number) {
            cached.given_up = to;
        }
    }

    /// Records that the kernel has received `end` as the size of a file.
    pub(super) fn reaches(&self, number: u64, end: u64) {
        if let Some(cached) = self.writers.table().get_mut(&number).filter(|cached| cached.shared) {
            cached.twins.reaches(end);
        }
    }

    /// Marks a file as used by this mount only, unless the mount has lost the write delegation of the file again.
    pub(super) fn end_sharing(&self, number: u64, file: &File) {
        let mut table = self.writers.table();
        if let Some(cached) = table.get_mut(&number)
            && file.is_alone()
        {
            (cached.shared, cached.twins) = (false, PageTwins::default());
        }
    }

    /// Records that a range of a file became zeros, also in the page cache. A truncation extends the range to the
    /// largest offset.
    pub(super) fn zeroed(&self, number: u64, range: ByteRange) {
        if self.is_on()
            && let Some(cached) = self.writers.table().get_mut(&number)
        {
            cached.twins.zeroed(range.offset, range.end());
        }
    }

    /// Marks a file as used by other clients. Returns true if the file was not marked before and the kernel writes the
    /// file through its page cache.
    pub(super) fn share(&self, number: u64) -> bool {
        let mut table = self.writers.table();
        table.get_mut(&number).is_some_and(|cached| !std::mem::replace(&mut cached.shared, true))
    }

    /// Records that the mount is about to make the kernel drop pages of a file. Returns the sequence number of this
    /// request, for [`WriteBack::end_invalidation`], or `None` if the kernel does not write the file through its page
    /// cache.
    pub(super) fn begin_invalidation(&self, number: u64) -> Option<u64> {
        self.writers.table().get_mut(&number).map(|cached| cached.twins.begin_dropping())
    }

    /// Records that the kernel has dropped the pages of a range that the kernel had read before the call of
    /// [`WriteBack::begin_invalidation`] that returned `age`.
    pub(super) fn end_invalidation(&self, number: u64, age: u64, range: ByteRange) {
        if let Some(cached) = self.writers.table().get_mut(&number) {
            cached.twins.pages_dropped(age, range);
        }
    }
}

/// Raises the kernel's limit for dirty pages of the mount at this directory.
pub(super) fn raise_dirty_limit(dir: &Path) {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let Some(device) = mounting::device_at(&mounts, dir) else { return };
    let limit = Path::new("/sys/class/bdi").join(device).join("max_ratio");
    if let Err(error) = std::fs::write(&limit, DIRTY_PERCENT.to_string()) {
        tracing::debug!(file = %limit.display(), "cannot raise the kernel's limit for dirty pages of the mount: {error}");
    }
}

/// Returns the bytes of a segment of file data; a hole consists of zeros.
pub(super) fn segment_bytes(segment: &Segment) -> Box<dyn Iterator<Item = u8> + '_> {
    match segment {
        Segment::Data(data) => Box::new(data.iter().copied()),
        Segment::Hole(len) => Box::new(std::iter::repeat_n(0, *len as usize)),
    }
}
