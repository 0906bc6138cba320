//! SEEK on the mgr path: the mgr queries one copy of each object of the file, and returns the smallest file offset in
//! the replies.

use super::Objects;
use futures_util::future;
use nfs::fs::Content;
use types::Status;
use wire::native::{Procedure, Rights, SeekArgs, SeekReply, SeekWhat};

impl Objects<'_> {
    /// Returns the first offset of the file at or after `offset` that has data or that lies in a hole (`content` says
    /// which of both), whatever the size of the file. Returns `None` if no data follow. Bytes that no object holds are
    /// a hole.
    pub(crate) async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        // Bytes that the namespace records as written count as data, even if an object has lost them. A program that
        // copies only data then reads these bytes, and gets the read error.
        let what = match content {
            Content::Data if offset < self.known.whole => return Ok(Some(offset)),
            Content::Data => SeekWhat::Data,
            Content::Hole => SeekWhat::Hole,
        };
        let offset = if what == SeekWhat::Hole { offset.max(self.known.whole) } else { offset };
        let seek = |column| self.seek_in(column, offset, what);
        let found = future::try_join_all((0..self.distribution.count()).map(seek)).await?;
        Ok(found.into_iter().flatten().min())
    }

    /// Returns the first file offset at or after `offset` at which one object of the file has data or a hole (`what`
    /// says which of both). Queries the copies of the object one after the other.
    async fn seek_in(&self, column: usize, offset: u64, what: SeekWhat) -> Result<Option<u64>, Status> {
        // The offset, within the object, of the object's first byte at or after the file offset `offset`.
        let start = self.distribution.object_size(offset, column);
        let reply = self.any_copy(column, |link| async move {
            let arguments = |cap| SeekArgs { cap, offset: start, what };
            self.ask::<_, SeekReply>(&link, Procedure::Seek, Rights::READ, arguments).await
        });
        let reply = reply.await?;
        let found = match what {
            SeekWhat::Data => reply.offset,
            // Everything at and after the end of the object is a hole.
            SeekWhat::Hole => Some(reply.offset.unwrap_or(start)),
        };
        Ok(found.and_then(|at| self.distribution.file_offset(column, at)))
    }
}
