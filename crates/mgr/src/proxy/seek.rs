//! Looking for data and holes: every object is asked, the nearest answer counts.

use super::Objects;
use futures_util::future;
use nfs::fs::Content;
use types::Status;
use wire::native::{Procedure, Rights, SeekArgs, SeekReply, SeekWhat};

impl Objects<'_> {
    /// The first position of the file at or behind `offset` with this content, however large the file; `None` when no
    /// data follow. What no object holds is a hole.
    pub(crate) async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        // What is known to be written is data, also where an object has lost it: programs that copy data alone are to read it, and to be told.
        let what = match content {
            Content::Data if offset < self.whole => return Ok(Some(offset)),
            Content::Data => SeekWhat::Data,
            Content::Hole => SeekWhat::Hole,
        };
        let offset = if what == SeekWhat::Hole { offset.max(self.whole) } else { offset };
        let seek = |column| self.seek_in(column, offset, what);
        let found = future::try_join_all((0..self.distribution.count()).map(seek)).await?;
        Ok(found.into_iter().flatten().min())
    }

    /// The first position of the file in one object of a copy.
    async fn seek_in(&self, column: usize, offset: u64, what: SeekWhat) -> Result<Option<u64>, Status> {
        // The first byte of the object that does not lie before `offset`.
        let start = self.distribution.object_size(offset, column);
        let reply = self.any_copy(column, |link| async move {
            let arguments = |cap| SeekArgs { cap, offset: start, what };
            self.ask::<_, SeekReply>(&link, Procedure::Seek, Rights::READ, arguments).await
        });
        let reply = reply.await?;
        let found = match what {
            SeekWhat::Data => reply.offset,
            // At and behind its end everything is a hole.
            SeekWhat::Hole => Some(reply.offset.unwrap_or(start)),
        };
        Ok(found.and_then(|at| self.distribution.file_offset(column, at)))
    }
}
