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
