//! A set of non-overlapping extents of written bytes, ordered by file offset.

use bytes::Bytes;
use std::collections::BTreeMap;
use types::ByteRange;
use xdr::Segments;

/// Written bytes as extents, keyed by file offset; a later write replaces the earlier bytes that it overlaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    map: BTreeMap<u64, Bytes>,
    bytes: u64,
}

impl Extents {
    /// Returns the total number of bytes in the extents.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the file offset just after the last byte, or 0 if there are no extents.
    pub(crate) fn end(&self) -> u64 {
        self.map.last_key_value().map_or(0, |(start, data)| start + data.len() as u64)
    }

    /// Returns whether there are no extents.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Inserts `data` at `offset`, and returns the number of earlier bytes that it replaces. `offset` plus the length
    /// must not exceed `u64::MAX`.
    pub(crate) fn insert(&mut self, offset: u64, data: Bytes) -> u64 {
        if data.is_empty() {
            return 0;
        }
        let end = offset + data.len() as u64;
        let mut replaced = 0;
        // The last extent that begins before `offset` may overlap the new data: remove the overlap from it.
        let before = self.map.range(..offset).next_back().map(|(start, old)| (*start, old.clone()));
        if let Some((start, old)) = before {
            let old_end = start + old.len() as u64;
            if old_end > offset {
                self.map.insert(start, old.slice(..(offset - start) as usize));
                replaced += old_end.min(end) - offset;
                if old_end > end {
                    self.map.insert(end, old.slice((end - start) as usize..));
                }
            }
        }
        while let Some((start, old)) = self.map.range(offset..end).next().map(|(start, old)| (*start, old.clone())) {
            self.map.remove(&start);
            let old_end = start + old.len() as u64;
            replaced += old_end.min(end) - start;
            if old_end > end {
                self.map.insert(end, old.slice((end - start) as usize..));
            }
        }
        self.bytes += data.len() as u64 - replaced;
        self.map.insert(offset, data);
        replaced
    }

    /// Returns whether an extent overlaps `range`.
    pub(crate) fn overlaps(&self, range: ByteRange) -> bool {
        let last = self.map.range(..range.end()).next_back();
        last.is_some_and(|(start, data)| !range.is_empty() && start + data.len() as u64 > range.offset)
    }

    /// Returns the extents that overlap `range`, ordered by file offset.
    pub(crate) fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = (u64, &Bytes)> {
        let first = self.map.range(..=range.offset).next_back().map_or(range.offset, |(start, _)| *start);
        let touches = move |start: u64, data: &Bytes| start + data.len() as u64 > range.offset;
        let from_first = self.map.range(first..range.end()).map(|(start, data)| (*start, data));
        from_first.filter(move |(start, data)| touches(*start, data))
    }

    /// Returns the file ranges of the extents in order; adjacent extents form one range.
    pub(crate) fn ranges(&self) -> Vec<ByteRange> {
        let mut ranges: Vec<ByteRange> = Vec::new();
        for (start, data) in &self.map {
            let len = data.len() as u64;
            match ranges.last_mut() {
                Some(last) if last.end() == *start => last.len += len,
                _ => ranges.push(ByteRange { offset: *start, len }),
            }
        }
        ranges
    }

    /// Returns the stored bytes of these file ranges, concatenated, without copying them. Bytes that no extent stores
    /// are left out.
    pub(crate) fn gather(&self, ranges: &[ByteRange]) -> Segments {
        let mut out = Segments::default();
        for range in ranges {
            let first = self.map.range(..=range.offset).next_back().map_or(range.offset, |(start, _)| *start);
            for (start, data) in self.map.range(first..range.end()) {
                let have = ByteRange { offset: *start, len: data.len() as u64 };
                if let Some(part) = have.intersection(*range) {
                    let from = (part.offset - start) as usize;
                    out.push(data.slice(from..from + part.len as usize));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_match_a_byte_map(writes in prop::collection::vec((0u64..200, 0usize..60), 0..40), asked in (0u64..260, 0u64..60)) {
            let mut extents = Extents::default();
            let mut model: BTreeMap<u64, u8> = BTreeMap::new();
            for (i, (offset, len)) in writes.iter().enumerate() {
                let fill = i as u8;
                let older = (*offset..offset + *len as u64).filter(|at| model.contains_key(at)).count() as u64;
                prop_assert_eq!(extents.insert(*offset, vec![fill; *len].into()), older);
                model.extend((*offset..offset + *len as u64).map(|at| (at, fill)));
            }
            prop_assert_eq!(extents.bytes(), model.len() as u64);
            prop_assert_eq!(extents.is_empty(), model.is_empty());
            let ranges = extents.ranges();
            let covered: Vec<u64> = ranges.iter().flat_map(|r| r.offset..r.end()).collect();
            prop_assert_eq!(covered, model.keys().copied().collect::<Vec<_>>());
            prop_assert!(ranges.windows(2).all(|w| w[0].end() < w[1].offset));
            let all = extents.gather(&ranges).to_bytes();
            prop_assert_eq!(all.to_vec(), model.values().copied().collect::<Vec<_>>());
            let asked = ByteRange { offset: asked.0, len: asked.1 };
            let part: Vec<u8> = model.range(asked.offset..asked.end()).map(|(_, b)| *b).collect();
            prop_assert_eq!(extents.overlaps(asked), !part.is_empty());
            prop_assert_eq!(extents.gather(&[asked]).to_bytes().to_vec(), part);
        }
    }
}
