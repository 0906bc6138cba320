//! Sets of locked byte ranges: the byte-range locks of one lock-owner on one file, with POSIX split, merge, upgrade and
//! downgrade.
//!
//! The server uses such a set to detect conflicts. The client uses a set to know which locks it must reclaim (RFC 8881
//! §9.2, §9.3).

use types::ByteRange;

/// The kind of a byte-range lock: shared or exclusive (RFC 8881 §9.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockKind {
    /// A shared lock, which excludes write locks of other lock-owners (`READ_LT`).
    Read,
    /// An exclusive lock, which excludes all locks of other lock-owners (`WRITE_LT`).
    Write,
}

impl LockKind {
    /// Returns whether locks of these two kinds conflict if two lock-owners hold them on the same byte.
    pub fn conflicts(self, other: LockKind) -> bool {
        self == LockKind::Write || other == LockKind::Write
    }
}

/// A byte range of a lock, from byte `first` to byte `last`, both included. A `last` of `u64::MAX` reaches to the end
/// of the file, even if the file grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// The offset of the first byte.
    pub first: u64,
    /// The offset of the last byte.
    pub last: u64,
}

impl Span {
    /// The range of all bytes of a file.
    pub const ALL: Span = Span { first: 0, last: u64::MAX };

    /// Converts offset and length of a lock request to a range (RFC 8881 §18.10.3). A length of `u64::MAX` reaches to
    /// the end of the file. Returns `None` if the length is 0, or if the sum of offset and length exceeds `u64::MAX`;
    /// the server then replies INVAL.
    pub fn new(offset: u64, length: u64) -> Option<Span> {
        match length {
            0 => None,
            u64::MAX => Some(Span { first: offset, last: u64::MAX }),
            _ => offset.checked_add(length).map(|end| Span { first: offset, last: end - 1 }),
        }
    }

    /// Returns the length for the wire; `u64::MAX` if the range reaches to the end of the file.
    pub fn length(self) -> u64 {
        if self.last == u64::MAX { u64::MAX } else { self.last - self.first + 1 }
    }

    /// Returns whether the two ranges have a byte in common.
    pub fn overlaps(self, other: Span) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns whether this range contains every byte of `other`.
    pub fn covers(self, other: Span) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

impl From<Span> for ByteRange {
    fn from(span: Span) -> Self {
        ByteRange { offset: span.first, len: span.length() }
    }
}

/// A locked byte range: consecutive bytes with the same lock kind and tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held<T> {
    /// The locked bytes.
    pub span: Span,
    /// Whether the lock is shared or exclusive.
    pub kind: LockKind,
    /// The caller's tag of the lock, such as the stateid under which the lock-owner locked the bytes.
    pub tag: T,
}

/// The locks of one lock-owner on one file. The ranges are ordered and disjoint, and two adjacent ranges differ in kind
/// or tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spans<T>(Vec<Held<T>>);

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Spans(Vec::new())
    }
}

impl<T: Copy + PartialEq> Spans<T> {
    /// Returns the number of locked ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the lock-owner holds no lock.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the locked ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Held<T>> {
        self.0.iter()
    }

    /// Returns the indices of the locked ranges that overlap `span`.
    fn touched(&self, span: Span) -> std::ops::Range<usize> {
        let start = self.0.partition_point(|h| h.span.last < span.first);
        let end = self.0.partition_point(|h| h.span.first <= span.last);
        start..end.max(start)
    }

    /// Returns the locked ranges that overlap `span`.
    pub fn overlapping(&self, span: Span) -> &[Held<T>] {
        &self.0[self.touched(span)]
    }

    /// Returns the first locked range that conflicts with a lock of this kind on `span` by another lock-owner.
    pub fn conflict(&self, span: Span, kind: LockKind) -> Option<&Held<T>> {
        self.overlapping(span).iter().find(|h| h.kind.conflicts(kind))
    }

    /// Replaces the locks on the bytes of `span` by one lock. If `lock` is `None`, unlocks the bytes.
    pub fn set(&mut self, span: Span, lock: Option<(LockKind, T)>) {
        let touched = self.touched(span);
        // Include the adjacent locked ranges, because the new range may merge with them.
        let from = touched.start.saturating_sub(1);
        let to = (touched.end + 1).min(self.0.len());
        let mut out: Vec<Held<T>> = Vec::with_capacity(to - from + 2);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for held in &self.0[from..to] {
            if held.span.first < span.first {
                let last = held.span.last.min(span.first - 1);
                before.push(Held { span: Span { last, ..held.span }, ..*held });
            }
            if held.span.last > span.last {
                let first = held.span.first.max(span.last + 1);
                after.push(Held { span: Span { first, ..held.span }, ..*held });
            }
        }
        let new = lock.map(|(kind, tag)| Held { span, kind, tag });
        for held in before.into_iter().chain(new).chain(after) {
            match out.last_mut() {
                Some(last) if joins(last, &held) => last.span.last = held.span.last,
                _ => out.push(held),
            }
        }
        self.0.splice(from..to, out);
    }

    /// Returns an upper bound of the number of ranges that [`Spans::set`] of `span` adds, for a lock or for an unlock.
    pub fn growth(&self, span: Span, unlock: bool) -> usize {
        let touched = self.overlapping(span);
        let left = touched.first().is_some_and(|h| h.span.first < span.first);
        let right = touched.last().is_some_and(|h| span.last < h.span.last);
        (usize::from(left) + usize::from(right) + usize::from(!unlock)).saturating_sub(touched.len())
    }

    /// Unlocks every range with this tag.
    pub fn remove_tag(&mut self, tag: T) {
        self.0.retain(|h| h.tag != tag);
    }
}

/// Returns whether range `b` directly follows range `a` with the same kind and tag, so that the two merge.
fn joins<T: PartialEq>(a: &Held<T>, b: &Held<T>) -> bool {
    a.kind == b.kind && a.tag == b.tag && a.span.last.checked_add(1) == Some(b.span.first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wire_lengths_become_spans() {
        assert_eq!(Span::new(5, 0), None);
        assert_eq!(Span::new(5, 1), Some(Span { first: 5, last: 5 }));
        assert_eq!(Span::new(5, u64::MAX), Some(Span { first: 5, last: u64::MAX }));
        assert_eq!(Span::new(u64::MAX, u64::MAX), Some(Span { first: u64::MAX, last: u64::MAX }));
        assert_eq!(Span::new(2, u64::MAX - 2), Some(Span { first: 2, last: u64::MAX - 1 }));
        assert_eq!(Span::new(2, u64::MAX - 1), None);
        for (offset, length) in [(5, 1), (0, u64::MAX), (7, u64::MAX), (2, u64::MAX - 2)] {
            assert_eq!(Span::new(offset, length).unwrap().length(), length);
        }
    }

    const BYTES: u64 = 12;

    /// Generates a range within the first `BYTES` bytes, or a range that reaches to the end of the file.
    fn span() -> impl Strategy<Value = Span> {
        (0..BYTES, 0..=BYTES).prop_map(|(first, len)| match first + len {
            end if end >= BYTES => Span { first, last: u64::MAX },
            end => Span { first, last: end },
        })
    }

    proptest! {
        #[test]
        fn a_set_of_spans_agrees_with_an_array_of_bytes(
            steps in prop::collection::vec((span(), prop::option::of((any::<bool>(), 0..2u8))), 1..40)
        ) {
            let mut spans = Spans::default();
            // `model` is the expected result: for each of the first `BYTES` bytes of the file, the lock on this byte.
            // One more entry at the end stands for all later bytes.
            let mut model = [None; BYTES as usize + 1];
            for (span, lock) in steps {
                let lock = lock.map(|(write, tag)| (if write { LockKind::Write } else { LockKind::Read }, tag));
                let room = spans.len() + spans.growth(span, lock.is_none());
                spans.set(span, lock);
                prop_assert!(spans.len() <= room);
                for byte in span.first..=span.last.min(BYTES) {
                    model[byte as usize] = lock;
                }
                for (byte, expected) in model.iter().enumerate() {
                    let byte = if byte as u64 == BYTES { u64::MAX } else { byte as u64 };
                    let here = spans.overlapping(Span { first: byte, last: byte });
                    prop_assert_eq!(here.first().map(|h| (h.kind, h.tag)), *expected);
                    prop_assert!(here.len() <= 1);
                }
                let held: Vec<_> = spans.iter().collect();
                for pair in held.windows(2) {
                    prop_assert!(pair[0].span.last < pair[1].span.first && !joins(pair[0], pair[1]));
                }
            }
        }
    }
}
