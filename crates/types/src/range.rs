//! Byte ranges of a file or object.

/// A range of `len` bytes from `offset`. The end must not exceed `u64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ByteRange {
    /// Offset of the first byte of the range.
    pub offset: u64,
    /// Number of bytes in the range.
    pub len: u64,
}

impl ByteRange {
    /// The range of all bytes (`0..u64::MAX`). In layouts and locks, the length of this range is encoded as
    /// `NFS4_UINT64_MAX`.
    pub const ALL: ByteRange = ByteRange { offset: 0, len: u64::MAX };

    /// Returns the range of `len` bytes from `offset`, or `None` if the end of the range exceeds `u64::MAX`.
    pub fn new(offset: u64, len: u64) -> Option<Self> {
        offset.checked_add(len).map(|_| ByteRange { offset, len })
    }

    /// Returns the offset after the last byte of the range.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Returns whether the range is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns whether both ranges have a byte in common.
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    /// Returns whether this range overlaps a range in `sorted`. The ranges in `sorted` are in ascending order and do
    /// not overlap each other. Uses binary search, because a writer may have tens of thousands of ranges.
    pub fn overlaps_any(self, sorted: &[ByteRange]) -> bool {
        let at = sorted.partition_point(|range| range.end() <= self.offset);
        sorted.get(at).is_some_and(|range| range.overlaps(self))
    }

    /// Returns the shortest range that contains both ranges.
    pub fn around(self, other: ByteRange) -> ByteRange {
        let offset = self.offset.min(other.offset);
        ByteRange { offset, len: self.end().max(other.end()) - offset }
    }

    /// Returns the bytes that both ranges have in common, or `None`.
    pub fn intersection(self, other: ByteRange) -> Option<ByteRange> {
        let offset = self.offset.max(other.offset);
        let end = self.end().min(other.end());
        (offset < end).then(|| ByteRange { offset, len: end - offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_search_in_sorted_ranges_agrees_with_a_linear_search() {
        let range = |offset, len| ByteRange { offset, len };
        let sorted = [range(3, 2), range(5, 1), range(9, 4), range(20, 1)];
        for (offset, len) in (0..24).flat_map(|offset| (0..24).map(move |len| (offset, len))) {
            let asked = range(offset, len);
            let any = sorted.iter().any(|range| range.overlaps(asked));
            assert_eq!(asked.overlaps_any(&sorted), any, "{asked:?}");
        }
        assert!(!range(0, 9).overlaps_any(&[]));
    }
}
