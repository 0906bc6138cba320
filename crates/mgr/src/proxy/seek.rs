//! SEEK on the mgr path: the mgr queries one copy of each object of the file, and returns the smallest file offset in
//! the replies.

use super::Objects;
use futures_util::future;
use nfs::fs::Content;
use types::Status;
use wire::native::{ObjectArgs, Procedure, Rights, SeekArgs, SeekReply, SeekResult, SeekWhat, SizeReply};

impl Objects<'_> {
    /// Returns the first offset of the file at or after `offset` that has the requested `content` (data or a hole),
    /// whatever the size of the file. Bytes that no object holds are a hole. For data, returns `None` if the objects
    /// have no data at or after `offset`. A hole that the function returns may start after the end of the file.
    pub(crate) async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        let what = match content {
            Content::Data => SeekWhat::Data,
            Content::Hole => SeekWhat::Hole,
        };
        let seek = |column| self.seek_in(column, offset, what);
        let found = future::try_join_all((0..self.distribution.count()).map(seek)).await?;
        Ok(found.into_iter().flatten().min())
    }

    /// Returns the first file offset at or after `offset` at which one object of the file has `what` (data or a hole).
    /// Queries the copies of the object one after the other. Durable bytes that the object has lost count as data.
    async fn seek_in(&self, column: usize, offset: u64, what: SeekWhat) -> Result<Option<u64>, Status> {
        // The offset, within the object, of the object's first byte at or after the file offset `offset`.
        let start = self.distribution.object_size(offset, column);
        let least = self.least(column);
        let found = self.any_copy(column, |link| async move {
            let arguments = |cap| SeekArgs { cap, offset: start, what };
            let reply: SeekReply = self.ask(&link, Procedure::Seek, Rights::READ, arguments).await?;
            let result = SeekResult { what, start, found: reply.offset };
            if !result.depends_on_size(least) {
                return Ok(result.with_lost(least, least));
            }
            let reply: SizeReply = self.ask(&link, Procedure::Size, Rights::READ, |cap| ObjectArgs { cap }).await?;
            Ok(result.with_lost(reply.size, least))
        });
        Ok(found.await?.and_then(|at| self.distribution.file_offset(column, at)))
    }
}
