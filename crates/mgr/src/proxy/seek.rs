//! SEEK on the mgr path: every column is asked, and the nearest answer counts.

use super::Objects;
use futures_util::future;
use nfs::fs::Content;
use types::Status;
use wire::native::{Procedure, Rights, SeekArgs, SeekReply, SeekWhat};

impl Objects<'_> {
    /// Returns the first position of the file at or after `offset` with this content, whatever the size of the file;
    /// `None` when no data follow. Bytes that no object holds are a hole.
    pub(crate) async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        // Known written bytes are data, even if an object has lost them: programs that copy only data must read them
        // and get the error.
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

    /// Returns the first such position in one object of a copy.
    async fn seek_in(&self, column: usize, offset: u64, what: SeekWhat) -> Result<Option<u64>, Status> {
        // The first byte of the object that is not before `offset`.
        let start = self.distribution.object_size(offset, column);
        let reply = self.any_copy(column, |link| async move {
            let arguments = |cap| SeekArgs { cap, offset: start, what };
            self.ask::<_, SeekReply>(&link, Procedure::Seek, Rights::READ, arguments).await
        });
        let reply = reply.await?;
        let found = match what {
            SeekWhat::Data => reply.offset,
            // At and after the end of the object everything is a hole.
            SeekWhat::Hole => Some(reply.offset.unwrap_or(start)),
        };
        Ok(found.and_then(|at| self.distribution.file_offset(column, at)))
    }
}
