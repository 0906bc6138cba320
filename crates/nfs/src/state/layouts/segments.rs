//! Layout segments: the byte ranges of a file for which one client holds layouts, each with its iomode.

use crate::fs::Iomode;
use types::ByteRange;

/// A byte range of a layout, with one iomode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The iomode of the segment.
    pub iomode: Iomode,
    /// The byte range; a length of `u64::MAX` reaches to the end of the file, even if the file grows.
    pub range: ByteRange,
    /// Whether the segment ends with the client's last CLOSE (`logr_return_on_close`).
    pub return_on_close: bool,
}

/// Selects segments by iomode and byte range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The iomode to select; `None` selects every iomode (`LAYOUTIOMODE4_ANY`).
    pub iomode: Option<Iomode>,
    /// The byte range to select; a segment matches if it overlaps the range.
    pub range: ByteRange,
}

impl Filter {
    /// Selects every segment.
    pub const ALL: Filter = Filter { iomode: None, range: ByteRange::ALL };

    fn matches(self, segment: &Segment) -> bool {
        self.iomode.is_none_or(|i| i == segment.iomode) && self.range.overlaps(segment.range)
    }

    /// Returns whether some segment could match both filters.
    pub fn overlaps(self, other: Filter) -> bool {
        let same_use = self.iomode.is_none() || other.iomode.is_none() || self.iomode == other.iomode;
        same_use && self.range.overlaps(other.range)
    }

    /// Returns whether this filter selects every segment that `other` selects.
    pub fn covers(self, other: Filter) -> bool {
        (self.iomode.is_none() || self.iomode == other.iomode)
            && self.range.offset <= other.range.offset
            && self.range.end() >= other.range.end()
    }
}

/// Returns the range from `start` to `end`; an end of `u64::MAX` becomes the length `u64::MAX`.
fn between(start: u64, end: u64) -> ByteRange {
    ByteRange { offset: start, len: if end == u64::MAX { u64::MAX } else { end - start } }
}

/// A set of segments. Two adjacent or overlapping segments differ in iomode or return-on-close.
#[derive(Clone, Debug, Default)]
pub(super) struct Segments(Vec<Segment>);

impl Segments {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.0.iter()
    }

    /// Returns whether the set contains a byte that `filter` selects.
    pub(super) fn any(&self, filter: Filter) -> bool {
        self.0.iter().any(|s| filter.matches(s))
    }

    /// Adds a segment, and merges it with adjacent or overlapping segments of the same iomode and return-on-close.
    pub(super) fn add(&mut self, new: Segment) {
        if new.range.is_empty() {
            return;
        }
        let (mut start, mut end) = (new.range.offset, new.range.end());
        self.0.retain(|s| {
            let same = s.iomode == new.iomode && s.return_on_close == new.return_on_close;
            let joins = same && s.range.offset <= end && start <= s.range.end();
            if joins {
                start = start.min(s.range.offset);
                end = end.max(s.range.end());
            }
            !joins
        });
        self.0.push(Segment { range: between(start, end), ..new });
    }

    /// Removes the byte ranges that `filter` selects, and returns them as pairs of iomode and range. A range that is
    /// held both with and without return-on-close is returned once.
    pub(super) fn take(&mut self, filter: Filter) -> Vec<(Iomode, ByteRange)> {
        let mut taken = Segments::default();
        let mut kept = Vec::with_capacity(self.0.len());
        for segment in self.0.drain(..) {
            let (start, end) = (segment.range.offset, segment.range.end());
            if !filter.matches(&segment) {
                kept.push(segment);
                continue;
            }
            let (from, to) = (start.max(filter.range.offset), end.min(filter.range.end()));
            taken.add(Segment { range: between(from, to), return_on_close: false, ..segment });
            if start < from {
                kept.push(Segment { range: between(start, from), ..segment });
            }
            if to < end {
                kept.push(Segment { range: between(to, end), ..segment });
            }
        }
        self.0 = kept;
        taken.0.into_iter().map(|s| (s.iomode, s.range)).collect()
    }
}
