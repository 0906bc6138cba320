//! A run: equally long pieces of a file at equal distances, whose bytes follow one another in a data log.

use std::ops::Range;
use types::ByteRange;
use types::limits::FILE_SIZE_MAX;

/// Largest number of pieces of a run. Limits the work that one run of a hostile client causes; longer patterns need
/// several runs.
pub const PIECES_MAX: u64 = 1 << 16;

/// Number of a data log within its file. Each client that has the file open for writing has its own data log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LogNumber(pub u32);

/// Where the bytes of a file range are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// In the data log `log`, from its byte `position` on.
    Log {
        /// The data log.
        log: LogNumber,
        /// Offset in the data log, in bytes.
        position: u64,
    },
    /// In the striped base of the file, at the same file offset, and in no log. After a truncation or a punched hole
    /// the base has a hole there, which reads as zeros.
    Base,
}

impl Source {
    /// Returns the source of the byte that follows `bytes` bytes after the first byte of this source.
    pub fn after(self, bytes: u64) -> Source {
        match self {
            Source::Log { log, position } => Source::Log { log, position: position + bytes },
            Source::Base => Source::Base,
        }
    }
}

/// A contiguous range of a file, and where its bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Range of the file; not empty.
    pub file: ByteRange,
    /// Source of the first byte. The other bytes follow it in the same log.
    pub source: Source,
}

/// Why numbers do not describe a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRun {
    /// The run has no piece, or its pieces have no bytes.
    #[error("a run of the index is empty")]
    Empty,
    /// Two pieces of the run overlap or are adjacent.
    #[error("the pieces of a run of the index are {len} bytes long, but only {stride} bytes apart")]
    Stride {
        /// Distance between the first bytes of two neighbouring pieces, in bytes.
        stride: u64,
        /// Length of each piece, in bytes.
        len: u64,
    },
    /// The run has more than [`PIECES_MAX`] pieces.
    #[error("a run of the index has more than {PIECES_MAX} pieces")]
    TooMany,
    /// The run ends beyond the largest file or the largest log.
    #[error("a run of the index ends beyond {FILE_SIZE_MAX} bytes")]
    TooFar,
}

/// Equally long pieces of a file at equal distances, whose bytes follow one another in one data log. A single
/// contiguous range is a run of one piece. The pieces never overlap and are never adjacent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Run {
    offset: u64,
    len: u64,
    /// Distance between the first bytes of two neighbouring pieces; equal to `len` if there is only one piece.
    stride: u64,
    count: u64,
    source: Source,
}

impl Run {
    /// Creates a run of `count` pieces. `first` is the file range of the first piece, and `source` is the source of its
    /// first byte. The first bytes of two neighbouring pieces are `stride` bytes apart; a run of one piece ignores
    /// `stride`.
    ///
    /// # Errors
    /// See [`BadRun`].
    pub fn new(first: ByteRange, source: Source, stride: u64, count: u64) -> Result<Run, BadRun> {
        let ByteRange { offset, len } = first;
        if len == 0 || count == 0 {
            return Err(BadRun::Empty);
        }
        if count > PIECES_MAX {
            return Err(BadRun::TooMany);
        }
        let stride = if count == 1 { len } else { stride };
        if count > 1 && stride <= len {
            return Err(BadRun::Stride { stride, len });
        }
        let end = (count - 1).checked_mul(stride).and_then(|last| last.checked_add(offset)?.checked_add(len));
        let log_end = match source {
            Source::Log { position, .. } => count.checked_mul(len).and_then(|bytes| bytes.checked_add(position)),
            Source::Base => Some(0),
        };
        match end.max(log_end) {
            Some(_) if end.is_none() || log_end.is_none() => Err(BadRun::TooFar),
            Some(far) if far <= FILE_SIZE_MAX => Ok(Run { offset, len, stride, count, source }),
            _ => Err(BadRun::TooFar),
        }
    }

    /// Creates a run of one piece.
    ///
    /// # Errors
    /// See [`BadRun`].
    pub fn single(file: ByteRange, source: Source) -> Result<Run, BadRun> {
        Run::new(file, source, file.len, 1)
    }

    /// Returns the file range of the first piece.
    pub fn first(&self) -> ByteRange {
        ByteRange { offset: self.offset, len: self.len }
    }

    /// Returns the distance between the first bytes of two neighbouring pieces; the length of the piece if there is
    /// only one.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Returns the number of pieces; at least 1.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the source of the first byte of the first piece.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the number of bytes of all pieces together.
    pub fn bytes(&self) -> u64 {
        self.len * self.count
    }

    /// Returns the file range from the first byte of the first piece to the last byte of the last piece.
    pub fn bounds(&self) -> ByteRange {
        ByteRange { offset: self.offset, len: (self.count - 1) * self.stride + self.len }
    }

    /// Returns the piece with this index, which must be smaller than the number of pieces.
    fn piece(&self, index: u64) -> Extent {
        let file = ByteRange { offset: self.offset + index * self.stride, len: self.len };
        Extent { file, source: self.source.after(index * self.len) }
    }

    /// Returns the indices of the pieces that have bytes in `range`.
    fn indices(&self, range: ByteRange) -> Range<u64> {
        if range.is_empty() || !self.bounds().overlaps(range) {
            return 0..0;
        }
        // The first piece with bytes in `range` has the smallest `index` for which the end of the piece, `offset +
        // index * stride + len`, is after the beginning of `range`.
        let first_end = self.offset + self.len;
        let start = if range.offset < first_end { 0 } else { (range.offset - first_end) / self.stride + 1 };
        let end = (range.end() - self.offset).div_ceil(self.stride).min(self.count);
        start..end.max(start)
    }

    /// Returns the parts of the run in `range`, in the order of their file offsets.
    pub fn extents_in(&self, range: ByteRange) -> impl Iterator<Item = Extent> + use<> {
        let run = *self;
        run.indices(range).filter_map(move |index| cut(run.piece(index), range))
    }

    /// Returns the part of the run in `range`, as at most three runs.
    pub fn clip(&self, range: ByteRange) -> Vec<Run> {
        let mut whole = self.indices(range);
        if whole.is_empty() {
            return Vec::new();
        }
        let (first, last) = (self.piece(whole.start), self.piece(whole.end - 1));
        let partial = |piece: Extent| cut(piece, range).filter(|cut| *cut != piece).map(Run::from);
        let before = partial(first);
        whole.start += u64::from(before.is_some());
        let after = if whole.is_empty() { None } else { partial(last) };
        whole.end -= u64::from(after.is_some());
        let middle = (!whole.is_empty()).then(|| self.pieces(whole));
        [before, middle, after].into_iter().flatten().collect()
    }

    /// Returns the run of the pieces with these indices, of which there must be at least one.
    fn pieces(&self, indices: Range<u64>) -> Run {
        let Extent { file, source } = self.piece(indices.start);
        let count = indices.end - indices.start;
        let stride = if count == 1 { self.len } else { self.stride };
        Run { offset: file.offset, len: self.len, stride, count, source }
    }

    /// Returns whether a byte of the file is in both runs.
    pub fn overlaps(&self, other: &Run) -> bool {
        let Some(common) = self.bounds().intersection(other.bounds()) else { return false };
        // Runs with equal strides often come from processes that write the file together. If their pieces do not
        // overlap modulo the stride, then they do not overlap anywhere.
        if self.stride == other.stride {
            let (low, high) = if self.offset <= other.offset { (self, other) } else { (other, self) };
            let phase = (high.offset - low.offset) % self.stride;
            if phase >= low.len && phase + high.len <= self.stride {
                return false;
            }
        }
        let (mine, others) = (self.indices(common), other.indices(common));
        let (few, indices, many) = if mine.end - mine.start <= others.end - others.start {
            (self, mine, other)
        } else {
            (other, others, self)
        };
        indices.into_iter().any(|index| !many.indices(few.piece(index).file).is_empty())
    }

    /// Returns the part of this run that is not in `other`, in the order of the file offsets.
    pub fn minus(&self, other: &Run) -> Vec<Run> {
        if !self.overlaps(other) {
            return vec![*self];
        }
        self.without(other.extents_in(self.bounds()).map(|extent| extent.file))
    }

    /// Returns the part of this run that is outside of `ranges`, which must be in ascending order and must not overlap.
    pub(super) fn without(&self, ranges: impl IntoIterator<Item = ByteRange>) -> Vec<Run> {
        let mut left = Vec::new();
        let mut from = self.offset;
        for range in ranges {
            left.extend(self.clip(between(from, range.offset)));
            from = range.end();
        }
        left.extend(self.clip(between(from, self.bounds().end())));
        left
    }
}

impl From<Extent> for Run {
    fn from(extent: Extent) -> Run {
        let ByteRange { offset, len } = extent.file;
        Run { offset, len, stride: len, count: 1, source: extent.source }
    }
}

fn between(from: u64, to: u64) -> ByteRange {
    ByteRange { offset: from, len: to.saturating_sub(from) }
}

/// Returns the part of an extent in `range`.
pub(super) fn cut(extent: Extent, range: ByteRange) -> Option<Extent> {
    let file = extent.file.intersection(range)?;
    Some(Extent { file, source: extent.source.after(file.offset - extent.file.offset) })
}
