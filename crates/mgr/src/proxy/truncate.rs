//! Cutting the objects of a file.

use super::Objects;
use types::{Status, limits};
use wire::native::{Procedure, Rights, SeekArgs, SeekReply, SeekWhat, TruncateArgs, TruncateReply};

impl Objects<'_> {
    /// Whether every iod of the file is up: `Delay` otherwise.
    pub(crate) fn all_up(&self) -> Result<(), Status> {
        (0..self.count()).try_for_each(|index| self.link(index).map(drop))
    }

    /// Whether every iod would cut its object: `Delay` while one is down, its own status if it refuses to touch the object.
    ///
    /// Asks for data behind every end, which changes nothing and reads nothing.
    pub(crate) async fn may_be_cut(&self) -> Result<(), Status> {
        self.all_up()?;
        let seek = |index| async move {
            let arguments = |cap| SeekArgs { cap, offset: limits::FILE_SIZE_MAX, what: SeekWhat::Data };
            self.ask::<_, SeekReply>(&*self.link(index)?, Procedure::Seek, Rights::READ, arguments).await
        };
        self.each(seek).await.map(drop)
    }

    /// Cuts every object so that nothing of the file at and behind `size` is left, durably.
    ///
    /// Nothing is cut when an iod is down (`Delay`). When one fails on the way, others may have been cut.
    pub(crate) async fn truncate(&self, size: u64) -> Result<(), Status> {
        self.all_up()?;
        let cut = |index| async move {
            let size = self.distribution.object_size(size, self.column(index));
            let arguments = TruncateArgs { cap: self.capability(Rights::WRITE), size };
            self.link(index)?.call::<TruncateReply>(Procedure::Truncate, &arguments).await
        };
        self.each(cut).await.map(drop)
    }
}
