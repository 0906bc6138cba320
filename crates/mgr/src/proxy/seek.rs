//! Looking for data and holes: every object is asked, the nearest answer counts.

use super::Objects;
use nfs::fs::Content;
use types::Status;
use wire::native::{Procedure, Rights, SeekArgs, SeekReply, SeekWhat};

impl Objects<'_> {
    /// The first position of the file at or behind `offset` with this content, however large the file; `None` when no
    /// data follow. What no object holds is a hole.
    pub(crate) async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        let what = match content {
            Content::Data => SeekWhat::Data,
            Content::Hole => SeekWhat::Hole,
        };
        let seek = |index| async move {
            // The first byte of the object that does not lie before `offset`.
            let start = self.distribution.object_size(offset, index);
            let arguments = |cap| SeekArgs { cap, offset: start, what };
            let link = self.link(index)?;
            let reply: SeekReply = self.ask(&link, Procedure::Seek, Rights::READ, arguments).await?;
            let found = match what {
                SeekWhat::Data => reply.offset,
                // At and behind its end everything is a hole.
                SeekWhat::Hole => Some(reply.offset.unwrap_or(start)),
            };
            Ok(found.and_then(|at| self.distribution.file_offset(index, at)))
        };
        Ok(self.each(seek).await?.into_iter().flatten().min())
    }
}
