//! WRITE and COMMIT on the mgr path: writes to all copies of a file's objects.

use super::Objects;
use crate::kinds::Stored;
use bytes::Bytes;
use futures_util::future;
use layout::gather::{Run, ranges, slices};
use layout::list_io::{Request, RequestLimits, plan};
use types::{ByteRange, Status, Verifier};
use wire::native::{CommitReply, Crc32c, ObjectArgs, Procedure, Rights, WriteArgs, WriteExtent, WriteHead, WriteReply};
use xdr::Segments;

/// The result of a write to the objects of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    /// Whether all iods have made their bytes of this write durable.
    pub(crate) stable: bool,
    /// The mgr's write verifier, combined from the verifiers of the iods.
    pub(crate) verifier: Verifier,
}

/// The write verifiers in the replies of iods, each with the number of the iod.
pub(super) type Seen = Vec<(u16, Verifier)>;

impl Objects<'_> {
    /// Writes the byte ranges `runs`, which are in file order and end below the largest file size. After a failure, any
    /// part of the bytes may be written.
    pub(crate) async fn write(&self, runs: &[Run], stable: bool) -> Result<Written, Status> {
        let (stable, seen) = self.write_seen(runs, stable).await?;
        Ok(Written { stable, verifier: self.iods.verifiers.combine(&seen) })
    }

    /// Writes like [`Objects::write`]. Returns whether all iods have made their bytes durable, and the verifiers of the
    /// iods.
    pub(super) async fn write_seen(&self, runs: &[Run], stable: bool) -> Result<(bool, Seen), Status> {
        let requests = plan(&self.distribution, &ranges(runs), RequestLimits::default());
        let each: Vec<(&Request, usize)> =
            requests.iter().flat_map(|request| self.copies(request.index).map(move |index| (request, index))).collect();
        let replies = each.iter().map(|(request, index)| self.write_one(request, *index, runs, stable));
        // Wait for all write requests, even after a failure: no iod may still be writing when the caller continues.
        let replies = future::join_all(replies).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let seen = each.iter().zip(&replies).map(|((_, index), reply)| (self.iod(*index), reply.verifier)).collect();
        Ok((replies.iter().all(|r| r.stable), seen))
    }

    async fn write_one(
        &self,
        request: &Request,
        index: usize,
        runs: &[Run],
        stable: bool,
    ) -> Result<WriteReply, Status> {
        let link = self.link(index)?;
        let parts: Vec<Bytes> = request.parts.iter().flat_map(|part| slices(runs, *part)).collect();
        let extents = extents(&request.extents, &parts, link.hello.checksums);
        let mut payload = Segments::default();
        parts.into_iter().for_each(|part| payload.push(part));
        let cap = self.capability(&link, Rights::WRITE);
        let head = WriteHead { cap, stable, least: self.least(index), extents };
        link.call(Procedure::Write, &WriteArgs { head, data: payload }).await
    }

    /// Makes all earlier writes to the file durable. Returns a verifier that changes if any of these writes were lost.
    /// Also returns whether all objects are as long as a file of `size` bytes requires.
    pub(crate) async fn commit(&self, size: u64) -> Result<(Verifier, bool), Status> {
        let (seen, whole) = self.commit_seen(size).await?;
        Ok((self.iods.verifiers.combine(&seen), whole))
    }

    /// Does the same as [`Objects::commit`], but returns the verifiers of the iods.
    pub(super) async fn commit_seen(&self, size: u64) -> Result<(Seen, bool), Status> {
        let commit = |index| async move {
            let number = self.iod(index);
            let link = match self.link(index) {
                // Skip a lost iod. Clients that wrote to this iod before it went down see the changed verifier, and no
                // client has written to this iod since then.
                Err(Status::Delay) if self.iods.is_lost(number) => return Ok(None),
                link => link?,
            };
            let reply: CommitReply =
                self.ask(&link, Procedure::Commit, Rights::WRITE, |cap| ObjectArgs { cap }).await?;
            let reaches = reply.size >= self.distribution.object_size(size, self.column(index));
            Ok(Some((number, reply.verifier, reaches)))
        };
        let replies = self.each(commit).await?;
        let whole = replies.iter().all(|reply| reply.is_some_and(|(_, _, reaches)| reaches));
        Ok((replies.into_iter().flatten().map(|(number, verifier, _)| (number, verifier)).collect(), whole))
    }
}

/// Returns the extents of a write request. With `checksums`, computes the CRC-32C of each extent over `parts`, which
/// contain the bytes of all extents one after the other.
fn extents(ranges: &[ByteRange], parts: &[Bytes], checksums: bool) -> Vec<WriteExtent> {
    let mut parts = parts.iter();
    let mut rest: &[u8] = &[];
    let mut extent = |range: &ByteRange| {
        let mut sum = Crc32c::new();
        let mut left = if checksums { range.len as usize } else { 0 };
        while left > 0 {
            if rest.is_empty() {
                // `parts` and the extents have the same total length, so a part is always left while an extent is
                // incomplete.
                let Some(part) = parts.next() else { break };
                rest = part;
            }
            let (now, later) = rest.split_at(left.min(rest.len()));
            sum.update(now);
            rest = later;
            left -= now.len();
        }
        let crc32c = if checksums { sum.finish() } else { 0 };
        WriteExtent { offset: range.offset, len: range.len as u32, crc32c }
    };
    ranges.iter().map(&mut extent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::native::crc32c;

    #[test]
    fn checksums_cover_extents_however_the_buffer_is_divided() {
        let ranges = [ByteRange { offset: 0, len: 5 }, ByteRange { offset: 64, len: 3 }];
        let parts = [Bytes::from_static(b"abc"), Bytes::from_static(b"defg"), Bytes::from_static(b"h")];
        let sums = |checksums| extents(&ranges, &parts, checksums).iter().map(|e| e.crc32c).collect::<Vec<_>>();
        assert_eq!(sums(true), [crc32c(b"abcde"), crc32c(b"fgh")]);
        assert_eq!(sums(false), [0, 0]);
    }
}
