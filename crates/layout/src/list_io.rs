//! Planning of list I/O: merges file ranges into as few requests per object as the limits of a request allow.

use crate::distributions::Distribution;
use types::ByteRange;
use types::limits::{EXTENTS_MAX, PAYLOAD_MAX};

/// Limits of one list I/O request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLimits {
    /// Maximum number of object ranges (extents) in a request; at least 1.
    pub extents: usize,
    /// Maximum number of payload bytes in a request; at least 1.
    pub bytes: u64,
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits { extents: EXTENTS_MAX, bytes: PAYLOAD_MAX as u64 }
    }
}

/// A list I/O request to one object.
///
/// `extents` and `parts` describe the same bytes in the same order: `extents` as object ranges, `parts` as file ranges.
/// A write request sends the bytes of the file ranges `parts`. The reply to a read request has the bytes of the file
/// ranges `parts`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Index of the object in the distribution.
    pub index: usize,
    /// Object ranges of the request. No range is empty; contiguous neighbours are merged.
    pub extents: Vec<ByteRange>,
    /// File ranges of the request. No range is empty; contiguous neighbours are merged.
    pub parts: Vec<ByteRange>,
    /// Number of payload bytes, which is the sum of the lengths of `extents`.
    pub bytes: u64,
}

/// Plans the requests that read or write `ranges` of a file.
///
/// The plan processes the ranges in the given order, and orders the requests by the position of their first byte in
/// `ranges`. Consecutive stripe units are on different iods, so the first requests go to different iods. The ranges
/// of a write must not overlap, because the iods execute the requests in parallel.
///
/// # Panics
/// If a limit is zero.
pub fn plan(distribution: &Distribution, ranges: &[ByteRange], limits: RequestLimits) -> Vec<Request> {
    assert!(limits.extents > 0 && limits.bytes > 0, "a request carries something");
    let mut requests: Vec<Request> = Vec::new();
    // For each object, the index in `requests` of the request that can take more ranges of the object; `None` if there
    // is none.
    let mut open: Vec<Option<usize>> = vec![None; distribution.count()];
    for piece in ranges.iter().flat_map(|range| distribution.pieces(*range)) {
        let (mut object, mut file) = (piece.object, piece.file);
        while object.len > 0 {
            let slot = open[piece.index].filter(|at| requests[*at].has_room(object.offset, limits));
            let at = slot.unwrap_or_else(|| {
                requests.push(Request { index: piece.index, extents: Vec::new(), parts: Vec::new(), bytes: 0 });
                requests.len() - 1
            });
            open[piece.index] = Some(at);
            let request = &mut requests[at];
            let len = object.len.min(limits.bytes - request.bytes);
            append(&mut request.extents, split_front(&mut object, len));
            append(&mut request.parts, split_front(&mut file, len));
            request.bytes += len;
        }
    }
    requests
}

impl Request {
    fn has_room(&self, next: u64, limits: RequestLimits) -> bool {
        let merges = self.extents.last().is_some_and(|e| e.end() == next);
        self.bytes < limits.bytes && (merges || self.extents.len() < limits.extents)
    }
}

fn split_front(range: &mut ByteRange, len: u64) -> ByteRange {
    let front = ByteRange { offset: range.offset, len };
    *range = ByteRange { offset: range.offset + len, len: range.len - len };
    front
}

fn append(ranges: &mut Vec<ByteRange>, next: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end() == next.offset => last.len += next.len,
        _ => ranges.push(next),
    }
}
