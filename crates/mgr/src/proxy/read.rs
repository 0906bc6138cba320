//! READ on the mgr path: the mgr reads from the objects of a file. If a copy has lost bytes, the mgr reads another
//! copy.

use super::Objects;
use super::data::{Stretch, assemble};
use crate::iods::Link;
use crate::kinds::Stored;
use futures_util::future;
use layout::list_io::{Request, RequestLimits, plan};
use types::{ByteRange, ObjectId, Status};
use wire::native::{Extent, PieceKind, Procedure, ReadArgs, ReadReply, Rights, crc32c};
use xdr::Segments;

impl Objects<'_> {
    /// Reads `range`, which must end within the size of the file. Bytes that no object holds are zeros.
    ///
    /// # Errors
    /// `Lost`: an object lacks bytes that were on its disk, and no other copy has them. A concurrent truncation of the
    /// file may also cause this error.
    pub(crate) async fn read(&self, range: ByteRange) -> Result<Segments, Status> {
        Ok(assemble(range, self.read_parts(&[range]).await?))
    }

    /// Reads ranges of the file like [`Objects::read`], and returns their data. Holes are in no [`Stretch`].
    pub(super) async fn read_parts(&self, ranges: &[ByteRange]) -> Result<Vec<Stretch>, Status> {
        let requests = plan(&self.distribution, ranges, RequestLimits::default());
        let stretches = future::try_join_all(requests.iter().map(|request| self.read_one(request))).await?;
        Ok(stretches.into_iter().flatten().collect())
    }

    /// Reads the first copy that has all requested bytes. If no copy has all of them, reads the longest copy, because
    /// bytes of writes that are not durable may be in one copy only.
    async fn read_one(&self, request: &Request) -> Result<Vec<Stretch>, Status> {
        let end = request.extents.iter().map(|extent| extent.end()).max().unwrap_or(0);
        let (mut longest, mut failed): (Option<(u64, Vec<Stretch>)>, Option<Status>) = (None, None);
        for index in self.copies(request.index) {
            let read = match self.link(index) {
                Ok(link) => self.read_copy(request, &link).await,
                Err(e) => Err(e),
            };
            match read {
                Ok((size, stretches)) => {
                    self.found(size < self.least(index));
                    if longest.as_ref().is_none_or(|(longest, _)| *longest < size) {
                        longest = Some((size, stretches));
                    }
                    if size >= end {
                        break;
                    }
                }
                Err(e) => {
                    if e == Status::Io {
                        self.found(true);
                        self.suspect(request, index);
                    }
                    failed = failed.or(Some(e));
                }
            }
        }
        match longest {
            // If another copy could not be read, return its error instead of `Lost`, because the unread copy may have
            // the bytes.
            Some((size, _)) if size < end.min(self.least(request.index)) => Err(failed.unwrap_or(Status::Lost)),
            Some((_, stretches)) => Ok(stretches),
            None => Err(failed.unwrap_or(Status::ServerFault)),
        }
    }

    /// Reads from one copy of an object. Returns the length of this copy, and the requested bytes.
    pub(super) async fn read_copy(&self, request: &Request, link: &Link) -> Result<(u64, Vec<Stretch>), Status> {
        self.read_object(self.object(), request, link).await
    }

    /// Reads from any object of the file. Returns the length of this object, and the requested bytes.
    pub(super) async fn read_object(
        &self,
        object: ObjectId,
        request: &Request,
        link: &Link,
    ) -> Result<(u64, Vec<Stretch>), Status> {
        let extents: Vec<_> = request.extents.iter().map(|e| Extent { offset: e.offset, len: e.len as u32 }).collect();
        let arguments = |cap| ReadArgs { cap, extents: extents.clone() };
        let reply: ReadReply = self.ask_about(object, link, (Procedure::Read, Rights::READ), arguments).await?;
        let stretches = scatter(request, &reply, link.hello.checksums).map_err(|why| {
            tracing::error!(iod = %link.hello.iod, file = self.known.file.0, "invalid reply to READ: {why}");
            Status::Delay
        })?;
        Ok((reply.head.size, stretches))
    }
}

/// Assigns the data and holes in an iod's reply to the requested ranges of the file.
fn scatter(request: &Request, reply: &ReadReply, checksums: bool) -> Result<Vec<Stretch>, &'static str> {
    let told: u64 = reply.head.pieces.iter().map(|p| u64::from(p.len)).sum();
    if told != request.bytes {
        return Err("its pieces do not cover the requested range");
    }
    let mut data = reply.data.clone();
    let mut parts = request.parts.iter().copied();
    let mut part = ByteRange::default();
    let mut stretches = Vec::new();
    for piece in &reply.head.pieces {
        let is_data = piece.kind == PieceKind::Data;
        // The decoder of the reply has checked that the reply contains all data bytes that its list of data and holes
        // announces.
        let mut bytes = if is_data { data.split_to(piece.len as usize) } else { Default::default() };
        if is_data && checksums && crc32c(&bytes) != piece.crc32c {
            return Err("its data do not match their checksum");
        }
        let mut left = u64::from(piece.len);
        while left > 0 {
            if part.is_empty() {
                part = parts.next().ok_or("it has more pieces than were asked for")?;
            }
            let len = left.min(part.len);
            if is_data {
                stretches.push(Stretch { offset: part.offset, data: bytes.split_to(len as usize) });
            }
            part = ByteRange { offset: part.offset + len, len: part.len - len };
            left -= len;
        }
    }
    Ok(stretches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use wire::native::{Piece, ReadHead};

    fn piece(kind: PieceKind, data: &[u8]) -> Piece {
        let crc32c = if kind == PieceKind::Data { crc32c(data) } else { 0 };
        Piece { kind, len: data.len() as u32, crc32c }
    }

    #[test]
    fn the_pieces_of_a_reply_may_differ_from_the_requested_parts() {
        let range = |offset, len| ByteRange { offset, len };
        let request =
            Request { index: 0, extents: vec![range(0, 10)], parts: vec![range(100, 4), range(200, 6)], bytes: 10 };
        let pieces = vec![
            piece(PieceKind::Data, b"ab"),
            piece(PieceKind::Hole, b"--"),
            piece(PieceKind::Data, b"cdef"),
            piece(PieceKind::Beyond, b"--"),
        ];
        let good = ReadReply { head: ReadHead { size: 8, pieces }, data: Bytes::from_static(b"abcdef") };
        let stretch = |offset, data| Stretch { offset, data: Bytes::from_static(data) };
        assert_eq!(scatter(&request, &good, true), Ok(vec![stretch(100, b"ab"), stretch(200, b"cdef")]));
        let mut damaged = good.clone();
        damaged.data = Bytes::from_static(b"abcdeF");
        assert!(scatter(&request, &damaged, true).is_err());
        assert!(scatter(&request, &damaged, false).is_ok());
        let mut short = good;
        short.head.pieces.pop();
        assert!(scatter(&request, &short, true).is_err());
    }
}
