//! Rebuild of lost copies: if one copy of an object has lost bytes, the mgr copies them from another copy.

use super::Objects;
use super::data::assemble;
use crate::iods::{Link, RequestError};
use crate::kinds::Stored;
use layout::list_io::Request;
use std::sync::Arc;
use types::limits::PAYLOAD_MAX;
use types::{ByteRange, Status};
use wire::native::{
    Nothing, ObjectArgs, PULL_MAX, Procedure, PullExtent, Rights, SeekArgs, SeekReply, SeekWhat, TruncateArgs,
    TruncateReply, WriteArgs, WriteExtent, WriteHead, WriteReply, crc32c,
};

/// A copy of an object that the mgr has rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rebuilt {
    /// Index of the object among the objects of the file.
    pub(crate) index: usize,
    /// Number of bytes that the mgr has copied into the object.
    pub(crate) bytes: u64,
}

/// The state of one copy of an object, as its iod reports it.
pub(super) struct Copy {
    pub(super) index: usize,
    pub(super) link: Arc<Link>,
    pub(super) size: u64,
    pub(super) absent: bool,
    /// Whether the iod cannot read the header of the object.
    damaged: bool,
}

/// Returns the longest copy of an object among those whose header is readable.
pub(super) fn best(copies: &[Copy]) -> Option<&Copy> {
    copies.iter().filter(|copy| !copy.damaged).max_by_key(|copy| copy.size)
}

impl Objects<'_> {
    /// Rebuilds every copy that has lost bytes, if another copy has them. No client may write the file during the
    /// rebuild. The bytes of the longest copy replace those of a copy that has lost bytes. So bytes that only the
    /// replaced copy had are lost, even if a client has read them.
    ///
    /// # Errors
    /// `Delay` while an iod of the file is down. `Lost` if all copies of an object have lost the same durable bytes;
    /// all other bytes are rebuilt then.
    pub(crate) async fn rebuild(&self) -> Result<Vec<Rebuilt>, Status> {
        self.all_up()?;
        let mut rebuilt = Vec::new();
        let mut lost = false;
        for column in 0..self.distribution.count() {
            let copies = self.look_at_all(column).await?;
            let Some(best) = best(&copies) else {
                lost = true;
                continue;
            };
            lost |= best.size < self.least(column);
            for copy in copies.iter().filter(|copy| self.has_lost(copy, best)) {
                self.replace(copy, best).await?;
                rebuilt.push(Rebuilt { index: copy.index, bytes: best.size });
            }
        }
        if lost { Err(Status::Lost) } else { Ok(rebuilt) }
    }

    /// Returns whether a copy has lost bytes that another copy has. No client may write the file during the check.
    pub(crate) async fn has_lost_copy(&self) -> Result<bool, Status> {
        for column in 0..self.distribution.count() {
            let copies = self.look_at_all(column).await?;
            if best(&copies).is_some_and(|best| copies.iter().any(|copy| self.has_lost(copy, best))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_lost(&self, copy: &Copy, best: &Copy) -> bool {
        let short = copy.size < self.least_of_copies(copy.index, best.size).min(best.size);
        copy.index != best.index && (copy.damaged || short || (copy.absent && best.size > 0))
    }

    pub(super) async fn look_at_all(&self, column: usize) -> Result<Vec<Copy>, Status> {
        let mut copies = Vec::new();
        for index in self.copies(column) {
            copies.push(self.look(index).await?);
        }
        Ok(copies)
    }

    pub(super) async fn look(&self, index: usize) -> Result<Copy, Status> {
        let link = self.link(index)?;
        Ok(match self.ask_size(index).await {
            Ok(reply) => {
                let absent = reply.size == 0 && reply.allocated == 0;
                Copy { index, link, size: reply.size, absent, damaged: false }
            }
            Err(RequestError::Refused(Status::Corrupt, _)) => {
                Copy { index, link, size: 0, absent: false, damaged: true }
            }
            Err(RequestError::Refused(status, _)) => return Err(status),
            Err(RequestError::Down) => return Err(Status::Delay),
        })
    }

    /// Fills a copy with the bytes of another copy, durably. Holes stay holes.
    async fn replace(&self, copy: &Copy, best: &Copy) -> Result<(), Status> {
        if copy.damaged {
            let arguments = ObjectArgs { cap: self.capability(&copy.link, Rights::ADMIN) };
            copy.link.call::<Nothing>(Procedure::Remove, &arguments).await?;
        }
        let mut at = 0;
        while let Some(data) = self.next_data(best, at).await? {
            at = data.end();
            self.copy_range(copy, best, data).await?;
        }
        let arguments = TruncateArgs { cap: self.capability(&copy.link, Rights::WRITE), size: best.size };
        copy.link.call::<TruncateReply>(Procedure::Truncate, &arguments).await.map(drop)
    }

    async fn copy_range(&self, copy: &Copy, best: &Copy, mut range: ByteRange) -> Result<(), Status> {
        while !range.is_empty() {
            let mut len = range.len.min(PULL_MAX);
            let source = best.link.to_pull(self.object(), self.known.generation).await;
            let extents = [PullExtent { from: range.offset, to: range.offset, len: len as u32 }];
            if self.pull_from(source, &copy.link, &extents, true).await?.is_none() {
                // The iod of the lost copy cannot copy from the iod of the intact copy, so the mgr reads and writes the
                // bytes itself.
                len = len.min(PAYLOAD_MAX as u64);
                self.carry(best.index, copy.index, ByteRange { offset: range.offset, len }).await?;
            }
            range = ByteRange { offset: range.offset + len, len: range.len - len };
        }
        Ok(())
    }

    /// Reads a range from one copy and writes it to another copy, durably.
    pub(super) async fn carry(&self, from: usize, to: usize, range: ByteRange) -> Result<(), Status> {
        let request = Request { index: from, extents: vec![range], parts: vec![range], bytes: range.len };
        let (_, stretches) = self.read_copy(&request, &*self.link(from)?).await?;
        let data = assemble(range, stretches).to_bytes();
        let extent = WriteExtent { offset: range.offset, len: range.len as u32, crc32c: crc32c(&data) };
        let link = self.link(to)?;
        let cap = self.capability(&link, Rights::WRITE);
        let head = WriteHead { cap, stable: true, least: 0, extents: vec![extent] };
        let reply: WriteReply = link.call(Procedure::Write, &WriteArgs { head, data: data.into() }).await?;
        if reply.stable { Ok(()) } else { Err(Status::Io) }
    }

    /// Returns the first range of data in an object at or after the offset `at`; `None` if no data follow.
    pub(super) async fn next_data(&self, best: &Copy, at: u64) -> Result<Option<ByteRange>, Status> {
        let seek = async |offset, what| {
            let arguments = |cap| SeekArgs { cap, offset, what };
            let reply = self.ask::<_, SeekReply>(&best.link, Procedure::Seek, Rights::READ, arguments).await?;
            Ok::<_, Status>(reply.offset)
        };
        let Some(offset) = seek(at, SeekWhat::Data).await? else { return Ok(None) };
        let end = seek(offset, SeekWhat::Hole).await?.unwrap_or(best.size);
        Ok((end > offset).then(|| ByteRange { offset, len: end - offset }))
    }
}
