//! Fencing of a file's objects on their iods: the iods refuse capabilities of older generations.

use super::Objects;
use types::{Generation, Status};
use wire::native::{FenceArgs, Nothing, Procedure, Rights};

impl Objects<'_> {
    /// Makes the iods refuse capabilities older than `generation`, durably. While an iod is down, sends the fence to
    /// the other iods and fails with `Delay`.
    pub(crate) async fn fence(&self, generation: Generation) -> Result<(), Status> {
        let fence = |index| async move {
            let link = self.link(index)?;
            let arguments = FenceArgs { cap: self.capability(&link, Rights::ADMIN), generation };
            link.call::<Nothing>(Procedure::Fence, &arguments).await
        };
        self.each(fence).await.map(drop)
    }
}
