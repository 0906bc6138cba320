//! Layout segments: the byte ranges of a file that one client holds layouts of, for each use.

use crate::fs::Iomode;
use types::ByteRange;

/// A range of a file that a layout covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The use.
    pub iomode: Iomode,
    /// The bytes; a length of `u64::MAX` reaches to the end of the file, even if it grows.
    pub range: ByteRange,
    /// Whether it ends with the client's last CLOSE (`logr_return_on_close`).
    pub return_on_close: bool,
}

/// Selects layouts by use and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The use; `None` is any (`LAYOUTIOMODE4_ANY`).
    pub iomode: Option<Iomode>,
    /// The bytes.
    pub range: ByteRange,
}

impl Filter {
    /// Selects every layout.
    pub const ALL: Filter = Filter { iomode: None, range: ByteRange::ALL };

    fn matches(self, segment: &Segment) -> bool {
        self.iomode.is_none_or(|i| i == segment.iomode) && self.range.overlaps(segment.range)
    }

    /// Returns whether a layout could match both filters.
    pub fn overlaps(self, other: Filter) -> bool {
        let same_use = self.iomode.is_none() || other.iomode.is_none() || self.iomode == other.iomode;
        same_use && self.range.overlaps(other.range)
    }

    /// Returns whether this filter selects everything that `other` selects.
    pub fn covers(self, other: Filter) -> bool {
        (self.iomode.is_none() || self.iomode == other.iomode)
            && self.range.offset <= other.range.offset
            && self.range.end() >= other.range.end()
    }
}

/// Returns the range between two ends; an end of `u64::MAX` becomes the unbounded length.
fn between(start: u64, end: u64) -> ByteRange {
    ByteRange { offset: start, len: if end == u64::MAX { u64::MAX } else { end - start } }
}

/// The segments held; no two adjacent segments are of the same kind.
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

    /// Returns whether the set holds a byte that `filter` selects.
    pub(super) fn any(&self, filter: Filter) -> bool {
        self.0.iter().any(|s| filter.matches(s))
    }

    /// Adds a segment, and merges it with segments of the same kind that it touches.
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

    /// Removes and returns the segments that `filter` selects. Bytes held both with and without return-on-close are
    /// returned only once.
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
