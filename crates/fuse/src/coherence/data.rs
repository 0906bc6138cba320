//! Reads, writes and other changes of file data, through the page cache or as direct I/O.

use crate::Errno;
use crate::coherence::Coherence;
use crate::coherence::mmap::{DirectWriteGuard, PageReadGuard, WriteBackGuard};
use crate::coherence::open_pages::PageUse;
use crate::opens::OpenFile;
use bytes::Bytes;
use client::Segment;
use types::{Attrs, ByteRange, SetAttrs, SetTime};

impl Coherence {
    /// Records that a READ begins: a direct read if `direct`, otherwise a read into the kernel's page cache. The
    /// caller passes the bytes that the mount has read to the returned guard.
    pub(crate) fn read_begins<'a>(
        &self,
        number: u64,
        pages: &'a PageUse,
        range: ByteRange,
        direct: bool,
    ) -> Option<PageReadGuard<'a>> {
        if !direct && self.is_shared(number) {
            // Record the pages of the READ before the mount reads the bytes. The kernel may send a GETATTR during a
            // read-ahead, and the mount then has to make the kernel drop the pages of the read-ahead.
            self.keep_pages_briefly(number, pages);
        }
        let fills = !direct && !pages.is_cached() && !self.write_back.is_written(number);
        fills.then(|| pages.mapped().fill(range))
    }

    /// Records the bytes that the kernel receives for its page cache. `asked` is the offset and the length of the
    /// READ.
    pub(crate) fn pages_read(&self, number: u64, asked: (u64, u32), found: &[Segment]) {
        let len: u64 = found.iter().map(Segment::len).sum();
        if len < u64::from(asked.1) && !self.write_back.is_on() {
            self.cache.may_end_at(number, asked.0 + len);
        }
        if self.write_back.is_shared(number) {
            self.kernel_gets(number, asked, found);
        }
    }

    /// Returns whether the mount refuses dirty pages of a file, because other clients may have written the file
    /// without a recall of this mount's delegation.
    pub(crate) fn refuses_pages(&self, number: u64) -> bool {
        self.write_back.is_on() && self.write_back.is_given_up(number)
    }

    /// Records that a WRITE begins: a write-back of dirty pages (`of_pages`), or the bytes of a program's write(2). For
    /// an append, the kernel does not know the offset, so the cached size becomes unknown. For a direct write, waits
    /// for write-backs of pages in its range, and returns a guard.
    pub(crate) async fn write_begins<'a>(
        &self,
        number: u64,
        pages: &'a PageUse,
        (offset, data): (u64, &Bytes),
        (of_pages, appends): (bool, bool),
    ) -> Option<DirectWriteGuard<'a>> {
        let len = data.len() as u64;
        // The kernel raises its cached size when it receives the reply to the WRITE. Record the new size now, and again
        // before the reply: in between, the mount may read the kernel's size and record the smaller one.
        match self.write_back.is_on() || appends {
            true => self.size_may_change(number),
            false => self.cache.grew(number, offset.saturating_add(len)),
        }
        match (of_pages, pages.is_cached()) {
            (true, _) => None,
            (false, true) => {
                pages.mapped().has_now(offset, data);
                None
            }
            (false, false) => {
                let range = if appends { ByteRange::ALL } else { ByteRange { offset, len } };
                Some(pages.mapped().begin_direct_write(range).await)
            }
        }
    }

    /// Records that the mount is about to reply to a WRITE, which `succeeded` or failed.
    pub(crate) fn write_is_replied(&self, number: u64, (offset, len): (u64, u32), appends: bool, succeeded: bool) {
        if appends || !succeeded {
            self.size_may_change(number);
        } else if !self.write_back.is_on() {
            self.cache.grew(number, offset.saturating_add(len.into()));
        }
    }

    /// Records that a direct write has ended. Makes the kernel drop pages that the kernel may have read before the
    /// servers received the written bytes.
    pub(crate) async fn write_ended(&self, number: u64, write: DirectWriteGuard<'_>) {
        if self.write_back.is_on() {
            // Record the direct write before the check whether the kernel reads pages of the file. An open that began
            // between the check and the record would let the kernel keep pages that are older than this write.
            self.cache.written_directly(number);
        }
        if self.pages.are_read(number) {
            // The kernel dropped the pages of the written range before it sent the direct write. But the kernel may
            // have read some of these pages again before the servers received the written bytes, so make the kernel
            // drop these pages again.
            Box::pin(self.drop_pages(number)).await;
        } else if let Some((range, mark)) = write.written() {
            Box::pin(self.drop_pages_of(number, range)).await;
            write.pages_dropped(mark);
        }
    }

    /// Returns whether other clients, or direct writes of this mount, may change bytes of the pages that the kernel
    /// writes back.
    pub(crate) fn are_pages_of_several(&self, number: u64) -> bool {
        self.write_back.is_shared(number) || !self.write_back.is_written(number)
    }

    /// Writes back dirty pages whose bytes other clients or direct writes may change: sends only the bytes that
    /// programs on this mount wrote to these pages.
    pub(crate) async fn write_pages_of_several(
        &self,
        number: u64,
        open: &OpenFile,
        offset: u64,
        data: Bytes,
    ) -> Result<(), Errno> {
        if self.write_back.is_shared(number) {
            let (runs, end) = self.write_back.changed(number, offset, &data);
            let reached = runs.last().map_or(0, |(offset, data)| offset + data.len() as u64);
            open.file.write_list(runs).await?;
            if let Some(end) = end.filter(|end| *end > reached) {
                open.file.grow(end).await?;
            }
            return Ok(());
        }
        let (_back, runs): (WriteBackGuard<'_>, _) = open.pages.mapped().write_back(offset, &data);
        let runs = runs.into_iter().map(|run| (offset + run.start as u64, data.slice(run)));
        Ok(open.file.write_list_behind(runs.collect()).await?)
    }

    /// Records that a range of a file was zeroed, truncated or overwritten by a copy. The kernel makes the same
    /// change to its cached pages.
    pub(crate) fn range_changed(&self, number: u64, range: ByteRange) {
        self.write_back.zeroed(number, range);
        self.pages.changed_otherwise(number);
    }

    /// Records that a program syncs a file, or that the kernel syncs the file at the end of a synchronous write of
    /// `thread`.
    pub(crate) fn fsync_begins(&self, thread: u32, number: u64) {
        self.write_back.thread_writes(number, thread, None);
    }

    /// Records that the kernel has written back a file, and has sent the time of the last write in a SETATTR. If no
    /// other client uses the file, the kernel keeps this time and the size in `attrs` cached until its next write. So
    /// GETATTR need not check what the kernel has cached.
    pub(crate) fn write_time_set(&self, number: u64, attrs: &Attrs, changes: &SetAttrs) {
        if let Some(SetTime::To(mtime)) = changes.mtime
            && self.write_back.is_written(number)
            && !self.write_back.is_shared(number)
        {
            self.cache.has_now(number, &Attrs { mtime, ..*attrs });
        }
    }

    /// Returns whether `mtime` equals the modification time that the kernel is known to have cached. If so, no program
    /// has set this time.
    pub(crate) fn is_time_of_mount(&self, number: u64, mtime: Option<SetTime>) -> bool {
        let cached = self.cache.size_and_time(number).map(|(_, mtime)| SetTime::To(mtime));
        cached.is_some() && mtime == cached
    }

    /// Records that a program has locked an open file. Makes the kernel drop the cached pages of the file, and corrects
    /// the size that the kernel has cached.
    pub(crate) async fn lock_taken(&self, thread: u32, number: u64, open: &OpenFile) -> Result<(), Errno> {
        self.drop_pages(number).await;
        let attrs = open.file.refresh().await?;
        self.correct_if_needed(thread, number, &attrs).await;
        Ok(())
    }

    /// Returns whether the kernel writes back each write before write(2) returns, because another client uses a file
    /// that this mount writes.
    pub(crate) fn writes_synchronously(&self) -> bool {
        self.sync.is_on()
    }

    /// Records that a file was closed. Ends synchronous writes if no file is both written through the page cache and
    /// used by other clients.
    pub(crate) fn closed(&self) {
        if let Some(coherence) = self.shared() {
            tokio::spawn(async move { coherence.settle_sync().await });
        }
    }
}
