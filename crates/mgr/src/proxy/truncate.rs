//! Truncation of the objects of a file on their iods.

use super::Objects;
use super::rebuild::Copy;
use crate::iods::Link;
use crate::kinds::Stored;
use types::{Status, limits};
use wire::native::{Procedure, Rights, SeekArgs, SeekReply, SeekWhat, TruncateArgs, TruncateReply};

impl Objects<'_> {
    /// Fails with `Delay` unless every iod of the file is up.
    pub(crate) fn all_up(&self) -> Result<(), Status> {
        (0..self.count()).try_for_each(|index| self.link(index).map(drop))
    }

    /// Checks whether every iod can truncate its object for a file size of `size` bytes. Fails with `Delay` while an
    /// iod is down, and with the status of an iod that refuses to use its object. Fails with `Lost` if an object has
    /// lost bytes before `size`, because the truncation would turn these bytes into zeros.
    pub(crate) async fn may_be_cut(&self, size: u64) -> Result<(), Status> {
        self.all_up()?;
        let seek = |index| async move {
            let kept = self.least(index).min(self.distribution.object_size(size, self.column(index)));
            if self.reaches(&*self.link(index)?, kept).await? { Ok(()) } else { Err(Status::Lost) }
        };
        self.each(seek).await.map(drop)
    }

    /// Returns whether the object on an iod has at least `size` bytes. Changes nothing on the iod and reads no data.
    pub(super) async fn reaches(&self, link: &Link, size: u64) -> Result<bool, Status> {
        // SEEK for a hole at the last byte before `size` shows whether the object has this byte. If so, SEEK finds a
        // hole, at the latest at the end of the object. If the object ends before this byte, SEEK finds nothing.
        let offset = size.checked_sub(1).unwrap_or(limits::FILE_SIZE_MAX);
        let arguments = |cap| SeekArgs { cap, offset, what: SeekWhat::Hole };
        let reply: SeekReply = self.ask(link, Procedure::Seek, Rights::READ, arguments).await?;
        Ok(size == 0 || reply.offset.is_some())
    }

    /// If one copy of an object is longer than a file of `size` bytes requires and another copy is not, truncates the
    /// longer copy. Returns whether it has truncated any copy. No client may write the file during this call.
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

    /// Truncates every object durably, so that no byte of the file at or after `size` remains.
    ///
    /// Truncates no object while an iod is down (`Delay`). If an iod fails during the truncation, objects on other iods
    /// may be truncated.
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
