//! READ of a log file on the mgr path: from the data logs that the index names, and from the striped base.

use super::LogFile;
use crate::proxy::data::{Stretch, assemble};
use futures_util::future;
use layout::kinds::log::LogPlaces;
use layout::list_io::Request;
use log_index::{Extent, LOGS_MAX, Source};
use std::collections::BTreeMap;
use types::limits::{EXTENTS_MAX, PAYLOAD_MAX};
use types::{ByteRange, ObjectId, Status};
use xdr::Segments;

/// A read request to an object of a data log.
struct LogRequest {
    log: u32,
    request: Request,
}

impl LogFile<'_> {
    /// Reads `range`, which must end within the size of the file. Bytes that are in no object are zeros.
    ///
    /// # Errors
    /// `Lost`: durable bytes are missing.
    pub(crate) async fn read(&self, range: ByteRange) -> Result<Segments, Status> {
        let extents = self.look_up_all(range, false).await?;
        let (mut stretches, missing) = self.read_from(range, &extents).await?;
        for range in missing {
            // The iod of a data log has lost bytes that were not durable. The file has the bytes before that write.
            let extents = self.look_up_all(range, true).await?;
            let (older, missing) = self.read_from(range, &extents).await?;
            if !missing.is_empty() {
                return Err(Status::Lost);
            }
            stretches.extend(older);
        }
        Ok(assemble(range, stretches))
    }

    /// Reads a range, of which the bytes in `extents` are in data logs and all other bytes in the base. Also returns the
    /// ranges whose bytes are missing from their data log.
    async fn read_from(&self, range: ByteRange, extents: &[Extent]) -> Result<(Vec<Stretch>, Vec<ByteRange>), Status> {
        let requests = self.requests(extents)?;
        let logs = future::try_join_all(requests.iter().map(|request| self.read_log(request)));
        let gaps = gaps(range, extents);
        let (mut stretches, logs) = future::try_join(self.base.read_parts(&gaps), logs).await?;
        let mut missing = Vec::new();
        for (found, lost) in logs {
            stretches.extend(found);
            missing.extend(lost);
        }
        Ok((stretches, missing))
    }

    /// Returns the requests that read these extents from the data logs.
    fn requests(&self, extents: &[Extent]) -> Result<Vec<LogRequest>, Status> {
        let (unit, count) = (self.base.distribution.stripe_unit(), self.base.distribution.count());
        let mut requests: Vec<LogRequest> = Vec::new();
        // For each log and iod: the index in `requests` of the last request.
        let mut open: BTreeMap<(u32, usize), usize> = BTreeMap::new();
        for extent in extents {
            let Source::Log { log, position } = extent.source else { continue };
            if log.0 >= LOGS_MAX {
                tracing::error!(file = self.known.file.0, log = log.0, "the index names an impossible data log");
                return Err(Status::Corrupt);
            }
            let places = LogPlaces::new(log.0, unit, count).map_err(|_| Status::Corrupt)?;
            for piece in places.pieces(ByteRange { offset: position, len: extent.file.len }) {
                let offset = extent.file.offset + (piece.file.offset - position);
                let (mut object, mut file) = (piece.object, ByteRange { offset, len: piece.file.len });
                while !object.is_empty() {
                    let key = (log.0, piece.index);
                    let at = open.get(&key).copied().filter(|at| has_room(&requests[*at].request));
                    let at = at.unwrap_or_else(|| {
                        let request = Request { index: piece.index, extents: vec![], parts: vec![], bytes: 0 };
                        requests.push(LogRequest { log: log.0, request });
                        requests.len() - 1
                    });
                    open.insert(key, at);
                    add_front(&mut requests[at].request, &mut object, &mut file);
                }
            }
        }
        Ok(requests)
    }

    /// Reads from an object of a data log. Returns the data, and the ranges of the file whose bytes the object has not.
    async fn read_log(&self, wanted: &LogRequest) -> Result<(Vec<Stretch>, Vec<ByteRange>), Status> {
        let link = self.base.link(wanted.request.index)?;
        let object = ObjectId::log(self.known.file, wanted.log);
        let (_, stretches) = self.base.read_object(object, &wanted.request, &link).await?;
        Ok(split_missing(&wanted.request.parts, stretches))
    }
}

fn has_room(request: &Request) -> bool {
    request.bytes < PAYLOAD_MAX as u64 && request.extents.len() < EXTENTS_MAX
}

/// Moves as many bytes from the beginning of `object` and `file` to a request as the request can take. Each range of
/// the file stays a part of its own, because the bytes of each may be missing alone.
fn add_front(request: &mut Request, object: &mut ByteRange, file: &mut ByteRange) {
    let len = object.len.min(PAYLOAD_MAX as u64 - request.bytes);
    match request.extents.last_mut() {
        Some(last) if last.end() == object.offset => last.len += len,
        _ => request.extents.push(ByteRange { offset: object.offset, len }),
    }
    request.parts.push(ByteRange { offset: file.offset, len });
    request.bytes += len;
    for rest in [object, file] {
        *rest = ByteRange { offset: rest.offset + len, len: rest.len - len };
    }
}

/// Returns the data of the parts that are complete, and the other parts. `stretches` are in the order of the parts.
fn split_missing(parts: &[ByteRange], stretches: Vec<Stretch>) -> (Vec<Stretch>, Vec<ByteRange>) {
    let mut rest = stretches.into_iter().peekable();
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for part in parts {
        let before = found.len();
        let mut has = 0;
        while let Some(stretch) = rest.next_if(|stretch| part.offset <= stretch.offset && stretch.offset < part.end()) {
            has += stretch.data.len() as u64;
            found.push(stretch);
        }
        if has < part.len {
            found.truncate(before);
            missing.push(*part);
        }
    }
    (found, missing)
}

/// Returns the parts of a range that are in no extent. `extents` are in file order and lie in the range.
fn gaps(range: ByteRange, extents: &[Extent]) -> Vec<ByteRange> {
    let ends = extents.iter().map(|extent| extent.file).chain([ByteRange { offset: range.end(), len: 0 }]);
    let (mut gaps, mut at) = (Vec::new(), range.offset);
    for next in ends {
        if at < next.offset {
            gaps.push(ByteRange { offset: at, len: next.offset - at });
        }
        at = next.end();
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    #[test]
    fn parts_are_missing_alone() {
        let stretch = |offset, data: &'static [u8]| Stretch { offset, data: Bytes::from_static(data) };
        let parts = [range(100, 4), range(10, 2), range(200, 3)];
        let data = vec![stretch(100, b"ab"), stretch(102, b"cd"), stretch(11, b"x"), stretch(200, b"abc")];
        let (found, missing) = split_missing(&parts, data.clone());
        assert_eq!((found, missing), (vec![data[0].clone(), data[1].clone(), data[3].clone()], vec![range(10, 2)]));
        assert_eq!(split_missing(&parts, vec![]), (vec![], parts.to_vec()));
    }

    #[test]
    fn gaps_are_what_no_extent_has() {
        let extent = |offset, len| Extent { file: range(offset, len), source: Source::Base };
        assert_eq!(gaps(range(5, 10), &[]), [range(5, 10)]);
        assert_eq!(gaps(range(5, 10), &[extent(5, 2), extent(9, 3)]), [range(7, 2), range(12, 3)]);
        assert_eq!(gaps(range(5, 10), &[extent(5, 4), extent(9, 6)]), []);
    }
}
