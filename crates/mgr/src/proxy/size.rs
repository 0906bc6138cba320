//! What the objects tell of the size of their file.

use super::Objects;
use futures_util::future;
use types::Status;
use wire::native::{ObjectArgs, Procedure, Rights, SizeReply};

impl Objects<'_> {
    /// One past the last byte of the file that any object holds. Every iod that is up is asked; those that are down hold
    /// nothing anybody could see now.
    pub(crate) async fn end(&self) -> u64 {
        let ask = |index| async move {
            let arguments = ObjectArgs { cap: self.capability(Rights::READ) };
            let reply: SizeReply = self.link(index)?.call(Procedure::Size, &arguments).await?;
            Ok::<_, Status>(reply.size)
        };
        let answers = future::join_all((0..self.distribution.count()).map(ask)).await;
        let sizes: Vec<u64> = answers.into_iter().map(|size| size.unwrap_or(0)).collect();
        self.distribution.file_size(&sizes).min(types::limits::FILE_SIZE_MAX)
    }
}
