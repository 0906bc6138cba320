//! The end of a file's objects, and fencing them.

use super::Objects;
use types::{Generation, Status};
use wire::native::{FenceArgs, Nothing, ObjectArgs, Procedure, Rights};

impl Objects<'_> {
    /// Deletes every object; one that is not there is as good. Fails with `Delay` while an iod is down, after all others
    /// have deleted theirs.
    pub(crate) async fn remove(&self) -> Result<(), Status> {
        let remove = |index| async move {
            let arguments = ObjectArgs { cap: self.capability(Rights::ADMIN) };
            self.link(index)?.call::<Nothing>(Procedure::Remove, &arguments).await
        };
        self.each(remove).await.map(drop)
    }

    /// Makes the iods refuse capabilities older than `generation`, durably. Those that are down learn it when they see
    /// a newer capability or a later fence; until then nobody reaches them either.
    pub(crate) async fn fence(&self, generation: Generation) -> Result<(), Status> {
        let fence = |index| async move {
            let arguments = FenceArgs { cap: self.capability(Rights::ADMIN), generation };
            self.link(index)?.call::<Nothing>(Procedure::Fence, &arguments).await
        };
        self.each(fence).await.map(drop)
    }
}
