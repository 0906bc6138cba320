//! Moves of objects: copying all objects of a file to new objects, and deletion of unused objects.

use super::Objects;
use super::data::assemble;
use super::rebuild::{Copy, best};
use crate::iods::Link;
use crate::kinds::Stored;
use futures_util::{StreamExt, stream};
use layout::list_io::Request;
use types::limits::PAYLOAD_MAX;
use types::{ByteRange, Status};
use wire::native::{
    Nothing, ObjectArgs, PULL_MAX, Procedure, PullExtent, Rights, TruncateArgs, TruncateReply, WriteArgs, WriteExtent,
    WriteHead, WriteReply, crc32c,
};

/// Number of objects of a file that the mgr copies at a time.
const AT_ONCE: usize = 4;

impl Objects<'_> {
    /// Copies the bytes of every object of the file durably to all copies of the corresponding new object in `to`.
    /// Holes stay holes, and every object gets the length of the longest copy. `to` has the same distribution as the
    /// file, and its objects do not exist yet. No client may write the file during the copy.
    ///
    /// # Errors
    /// `Delay` while an iod of the old or the new objects is down. `Lost` if an object has lost bytes that were on
    /// disk. The status of an iod that refuses a request, such as `NoSpc`. After an error, any part of the new objects
    /// may exist.
    pub(crate) async fn move_to(&self, to: &Objects<'_>) -> Result<(), Status> {
        let each = (0..self.distribution.count()).map(|column| self.move_column(to, column));
        // Wait for the copies of all objects, even after a failure: no iod may still be writing when the caller
        // continues.
        let moved: Vec<Result<(), Status>> = stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
        moved.into_iter().collect()
    }

    async fn move_column(&self, to: &Objects<'_>, column: usize) -> Result<(), Status> {
        let copies = self.look_at_all(column).await?;
        let best = best(&copies).ok_or(Status::Corrupt)?;
        if best.size < self.least(column) {
            return Err(Status::Lost);
        }
        if best.absent {
            return Ok(());
        }
        for index in to.copies(column) {
            self.fill(best, (to, index)).await?;
        }
        Ok(())
    }

    /// Fills a new object with the bytes of an object of this file, and then makes the new object durable.
    async fn fill(&self, best: &Copy, (to, index): (&Objects<'_>, usize)) -> Result<(), Status> {
        // Send all requests over one link. When the last request has succeeded, the iod can then no longer be executing
        // an earlier request.
        let link = to.link(index)?;
        let mut at = 0;
        while let Some(data) = self.next_data(best, at).await? {
            at = data.end();
            let mut rest = data;
            while !rest.is_empty() {
                let done = self.fill_part(best, (to, &link), rest).await?;
                rest = ByteRange { offset: rest.offset + done, len: rest.len - done };
            }
        }
        #[cfg(feature = "planted")]
        if types::planted::is_planted(types::planted::Planted::EarlySwap) {
            return Ok(());
        }
        let arguments = TruncateArgs { cap: to.capability(&link, Rights::WRITE), size: best.size };
        link.call::<TruncateReply>(Procedure::Truncate, &arguments).await.map(drop)
    }

    /// Copies the beginning of a range, and returns the number of copied bytes. The bytes need not be durable, because
    /// the truncation at the end of [`Self::fill`] syncs the object.
    async fn fill_part(&self, best: &Copy, (to, link): (&Objects<'_>, &Link), range: ByteRange) -> Result<u64, Status> {
        let len = range.len.min(PULL_MAX);
        let extents = [PullExtent { from: range.offset, to: range.offset, len: len as u32 }];
        let source = best.link.to_pull(self.object(), self.known.generation).await;
        if to.pull_from(source, link, &extents, false).await?.is_some() {
            return Ok(len);
        }
        // The iod of the new object cannot copy from the iod of the old object, so the mgr reads and writes the bytes
        // itself.
        let len = len.min(PAYLOAD_MAX as u64);
        let range = ByteRange { offset: range.offset, len };
        let request = Request { index: best.index, extents: vec![range], parts: vec![range], bytes: len };
        let (_, stretches) = self.read_copy(&request, &best.link).await?;
        let data = assemble(range, stretches).to_bytes();
        let extent = WriteExtent { offset: range.offset, len: len as u32, crc32c: crc32c(&data) };
        let head =
            WriteHead { cap: to.capability(link, Rights::WRITE), stable: false, least: 0, extents: vec![extent] };
        link.call::<WriteReply>(Procedure::Write, &WriteArgs { head, data: data.into() }).await?;
        Ok(len)
    }

    /// Deletes the objects of an unfinished move. A missing object counts as deleted. The next move may use the same
    /// stream, so the iods keep no tombstones. An object stays if its generation is newer than that in the record of
    /// the unused objects.
    ///
    /// # Errors
    /// `Delay` while an iod is down; the objects on the other iods are deleted nevertheless.
    pub(crate) async fn remove_unused(&self) -> Result<(), Status> {
        let remove = |index| async move {
            let link = self.link(index)?;
            let arguments = ObjectArgs { cap: self.capability(&link, Rights::ADMIN) };
            link.call::<Nothing>(Procedure::Remove, &arguments).await
        };
        self.each(remove).await.map(drop)
    }
}
