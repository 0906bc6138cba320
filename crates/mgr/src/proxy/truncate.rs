//! Cutting the objects of a file.

use super::Objects;
use super::rebuild::Copy;
use crate::iods::Link;
use types::{Status, limits};
use wire::native::{Procedure, Rights, SeekArgs, SeekReply, SeekWhat, TruncateArgs, TruncateReply};

impl Objects<'_> {
    /// Whether every iod of the file is up: `Delay` otherwise.
    pub(crate) fn all_up(&self) -> Result<(), Status> {
        (0..self.count()).try_for_each(|index| self.link(index).map(drop))
    }

    /// Whether every iod would truncate its object so that the file has `size` bytes: `Delay` while one is down, its own status if it refuses to touch
    /// the object, `Lost` if it has lost bytes that the file is to keep: they would read as zeros.
    pub(crate) async fn may_be_cut(&self, size: u64) -> Result<(), Status> {
        self.all_up()?;
        let seek = |index| async move {
            let kept = self.least(index).min(self.distribution.object_size(size, self.column(index)));
            if self.reaches(&*self.link(index)?, kept).await? { Ok(()) } else { Err(Status::Lost) }
        };
        self.each(seek).await.map(drop)
    }

    /// Whether the object on an iod has so many bytes. Changes nothing and reads nothing.
    pub(super) async fn reaches(&self, link: &Link, size: u64) -> Result<bool, Status> {
        // Behind its last byte an object ends with a hole, and there is nothing to find at its end or behind it.
        let offset = size.checked_sub(1).unwrap_or(limits::FILE_SIZE_MAX);
        let arguments = |cap| SeekArgs { cap, offset, what: SeekWhat::Hole };
        let reply: SeekReply = self.ask(link, Procedure::Seek, Rights::READ, arguments).await?;
        Ok(size == 0 || reply.offset.is_some())
    }

    /// Cuts the copies of objects that have more than a file of `size` bytes has there, where another copy has not; whether there were any. Nobody may
    /// write the file meanwhile.
    pub(crate) async fn cut_copies(&self, size: u64) -> Result<bool, Status> {
        self.all_up()?;
        let mut cut = false;
        for column in 0..self.distribution.count() {
            let most = self.distribution.object_size(size, column);
            let copies = self.look_at_all(column).await?;
            let is_longer = |copy: &&Copy| copy.size > most;
            if copies.iter().all(|copy| is_longer(&copy)) {
                continue;
            }
            for copy in copies.iter().filter(is_longer) {
                let arguments = TruncateArgs { cap: self.capability(&copy.link, Rights::WRITE), size: most };
                copy.link.call::<TruncateReply>(Procedure::Truncate, &arguments).await?;
                cut = true;
            }
        }
        Ok(cut)
    }

    /// Cuts every object so that nothing of the file at and behind `size` is left, durably.
    ///
    /// Nothing is cut when an iod is down (`Delay`). When one fails on the way, others may have been cut.
    pub(crate) async fn truncate(&self, size: u64) -> Result<(), Status> {
        self.all_up()?;
        let cut = |index| async move {
            let size = self.distribution.object_size(size, self.column(index));
            let link = self.link(index)?;
            let arguments = TruncateArgs { cap: self.capability(&link, Rights::WRITE), size };
            link.call::<TruncateReply>(Procedure::Truncate, &arguments).await
        };
        self.each(cut).await.map(drop)
    }
}
