//! Ranges of bytes in a file or object.

/// `len` bytes from `offset`; the end never overflows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl ByteRange {
    /// Everything (`0..u64::MAX`), as `NFS4_UINT64_MAX` lengths mean in layouts and locks.
    pub const ALL: ByteRange = ByteRange { offset: 0, len: u64::MAX };

    /// A range, refused when its end would pass `u64::MAX`.
    pub fn new(offset: u64, len: u64) -> Option<Self> {
        offset.checked_add(len).map(|_| ByteRange { offset, len })
    }

    /// One past the last byte.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Whether no byte is in it.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether the two share a byte.
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    /// Whether it shares a byte with any of `sorted`, ranges in order that do not overlap: in a time that their number hardly matters for, as a
    /// writer may have tens of thousands of them.
    pub fn overlaps_any(self, sorted: &[ByteRange]) -> bool {
        let at = sorted.partition_point(|range| range.end() <= self.offset);
        sorted.get(at).is_some_and(|range| range.overlaps(self))
    }

    /// The shortest range that has both in it.
    pub fn around(self, other: ByteRange) -> ByteRange {
        let offset = self.offset.min(other.offset);
        ByteRange { offset, len: self.end().max(other.end()) - offset }
    }

    /// The bytes that both hold, `None` when there are none.
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
    fn overlaps_of_sorted_ranges_are_those_of_any_ranges() {
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
