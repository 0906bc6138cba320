//! The pieces of a file that one client holds layouts of, as a set of bytes for each use.

use crate::fs::Iomode;
use types::ByteRange;

/// A piece of a file that a layout covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// For which use.
    pub iomode: Iomode,
    /// Which bytes; a length of `u64::MAX` reaches to the end of the file, whatever it will be.
    pub range: ByteRange,
    /// Whether it goes with the client's last CLOSE (`logr_return_on_close`).
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
    /// Everything.
    pub const ALL: Filter = Filter { iomode: None, range: ByteRange::ALL };

    fn matches(self, segment: &Segment) -> bool {
        self.iomode.is_none_or(|i| i == segment.iomode) && self.range.overlaps(segment.range)
    }

    /// Whether some layout could match both.
    pub fn overlaps(self, other: Filter) -> bool {
        let same_use = self.iomode.is_none() || other.iomode.is_none() || self.iomode == other.iomode;
        same_use && self.range.overlaps(other.range)
    }

    /// Whether everything that `other` selects is selected.
    pub fn covers(self, other: Filter) -> bool {
        (self.iomode.is_none() || self.iomode == other.iomode)
            && self.range.offset <= other.range.offset
            && self.range.end() >= other.range.end()
    }
}

/// A range from its two ends, with an end of `u64::MAX` written as the endless length.
fn between(start: u64, end: u64) -> ByteRange {
    ByteRange { offset: start, len: if end == u64::MAX { u64::MAX } else { end - start } }
}

/// Pieces held; no two of the same kind touch.
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

    /// Whether a byte that `filter` selects is held.
    pub(super) fn any(&self, filter: Filter) -> bool {
        self.0.iter().any(|s| filter.matches(s))
    }

    /// Adds a piece, joined with those of the same kind that it touches.
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

    /// Removes what `filter` selects and returns it, without doubles for bytes held both to be and not to be returned
    /// on close.
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
