//! The registry of distributions: which byte of a file is which byte of which object.
//!
//! A distribution speaks of object *indices*, `0..count`. Which iod serves an index is the order of iods in the layout
//! record; rotating that order from file to file spreads the first stripes over all iods.

mod simple_stripe;

use simple_stripe::SimpleStripe;
use types::ByteRange;
use types::limits::{STRIPE_COUNT_MAX, STRIPE_UNIT_MAX, STRIPE_UNIT_MIN};

/// The stable number of a distribution, as layout records and bodies carry it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum DistributionId {
    /// Round robin by stripe unit, densely packed: each object holds its stripe units back to back.
    #[default]
    SimpleStripe = 1,
}

impl DistributionId {
    /// Every distribution of this version.
    pub const ALL: [DistributionId; 1] = [DistributionId::SimpleStripe];

    /// The distribution with this number, `None` for one this version does not know.
    pub fn from_number(n: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|id| *id as u32 == n)
    }

    /// The number on disk and on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The name people write in a policy.
    pub fn name(self) -> &'static str {
        match self {
            DistributionId::SimpleStripe => "simple_stripe",
        }
    }

    /// The distribution of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.name() == name)
    }
}

/// Numbers that no distribution can be made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadGeometry {
    /// The stripe unit is out of bounds or crooked.
    #[error("stripe unit {0} is not a multiple of {STRIPE_UNIT_MIN} from {STRIPE_UNIT_MIN} to {STRIPE_UNIT_MAX} bytes")]
    StripeUnit(u64),
    /// No iod, or too many.
    #[error("a file is striped over 1 to {STRIPE_COUNT_MAX} iods, not over {0}")]
    Count(usize),
}

/// Where one byte of a file lives, and how many bytes follow it there without a break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which object, below the count of the distribution.
    pub index: usize,
    /// Offset of the byte in the object.
    pub offset: u64,
    /// Bytes from this one on that are neighbours in file and object alike; at least 1.
    pub run: u64,
}

/// A part of a file range that lies in one object without a break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Which object, below the count of the distribution.
    pub index: usize,
    /// Where it lies in the object.
    pub object: ByteRange,
    /// Where it lies in the file; as long as `object`.
    pub file: ByteRange,
}

/// What a file on this shelf provides; offsets grow with offsets, in file and objects alike.
trait Mapping {
    /// Number of objects.
    fn count(&self) -> usize;
    /// Where the file byte at `offset` lives.
    fn place(&self, offset: u64) -> Place;
    /// The file byte that lives at `offset` of object `index`; `None` beyond the largest file offset.
    fn file_offset(&self, index: usize, offset: u64) -> Option<u64>;
    /// Length of object `index` of a file of `file_size` bytes that has no holes at its end.
    fn object_size(&self, file_size: u64, index: usize) -> u64;
}

/// A distribution with its numbers: a bijection between file bytes and (object, byte).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Distribution {
    id: DistributionId,
    stripe_unit: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    SimpleStripe(SimpleStripe),
}

impl Distribution {
    /// A distribution over `count` objects with this stripe unit in bytes.
    pub fn new(id: DistributionId, stripe_unit: u64, count: usize) -> Result<Self, BadGeometry> {
        check_stripe_unit(stripe_unit)?;
        check_count(count)?;
        let kind = match id {
            DistributionId::SimpleStripe => Kind::SimpleStripe(SimpleStripe::new(stripe_unit, count)),
        };
        Ok(Distribution { id, stripe_unit, kind })
    }

    fn mapping(&self) -> &dyn Mapping {
        match &self.kind {
            Kind::SimpleStripe(m) => m,
        }
    }

    /// Which distribution it is.
    pub fn id(&self) -> DistributionId {
        self.id
    }

    /// The stripe unit in bytes.
    pub fn stripe_unit(&self) -> u64 {
        self.stripe_unit
    }

    /// Number of objects, 1 to [`STRIPE_COUNT_MAX`].
    pub fn count(&self) -> usize {
        self.mapping().count()
    }

    /// Where the file byte at `offset` lives.
    pub fn place(&self, offset: u64) -> Place {
        self.mapping().place(offset)
    }

    /// The pieces of a file range in file order; they cover it exactly.
    pub fn pieces(&self, range: ByteRange) -> Pieces<'_> {
        Pieces { distribution: self, next: range.offset, end: range.end() }
    }

    /// The file byte at `offset` of object `index`; `None` when no file reaches that far.
    ///
    /// # Panics
    /// When `index` is not below the count.
    pub fn file_offset(&self, index: usize, offset: u64) -> Option<u64> {
        assert!(index < self.count(), "object index out of range");
        self.mapping().file_offset(index, offset)
    }

    /// The ranges of the file that live in `range` of object `index`, in order, neighbours joined; what lies beyond the
    /// largest file offset is left out.
    ///
    /// # Panics
    /// When `index` is not below the count.
    pub fn file_ranges(&self, index: usize, range: ByteRange) -> impl Iterator<Item = ByteRange> + '_ {
        let mut at = range.offset;
        // Runs in an object are stripe units, unless all of the file is in it.
        let unit = if self.count() == 1 { u64::MAX } else { self.stripe_unit };
        std::iter::from_fn(move || {
            let left = range.end().checked_sub(at).filter(|left| *left > 0)?;
            let file = self.file_offset(index, at)?;
            let len = left.min(unit - at % unit).min(u64::MAX - file);
            at += len;
            (len > 0).then_some(ByteRange { offset: file, len })
        })
    }

    /// The length that object `index` has when the file is `file_size` bytes of data without a hole, which is also the
    /// length to cut the object to when the file is truncated to `file_size`.
    ///
    /// # Panics
    /// When `index` is not below the count.
    pub fn object_size(&self, file_size: u64, index: usize) -> u64 {
        assert!(index < self.count(), "object index out of range");
        self.mapping().object_size(file_size, index)
    }

    /// The file size that object lengths, in index order, are proof of: one past the last byte that any of them holds.
    /// Saturates at `u64::MAX` for lengths that no file has.
    pub fn file_size(&self, object_sizes: &[u64]) -> u64 {
        let ends = object_sizes.iter().enumerate().take(self.count()).filter(|(_, size)| **size > 0);
        let end = |(index, size): (usize, &u64)| match self.mapping().file_offset(index, size - 1) {
            Some(last) => last.saturating_add(1),
            None => u64::MAX,
        };
        ends.map(end).max().unwrap_or(0)
    }
}

/// Refuses a stripe unit that is out of bounds or not a multiple of 64.
pub fn check_stripe_unit(stripe_unit: u64) -> Result<(), BadGeometry> {
    let fits = (STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&stripe_unit);
    if fits && stripe_unit.is_multiple_of(STRIPE_UNIT_MIN) { Ok(()) } else { Err(BadGeometry::StripeUnit(stripe_unit)) }
}

/// Refuses a number of iods out of bounds.
pub fn check_count(count: usize) -> Result<(), BadGeometry> {
    if (1..=STRIPE_COUNT_MAX).contains(&count) { Ok(()) } else { Err(BadGeometry::Count(count)) }
}

/// Iterator over the pieces of a file range; see [`Distribution::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    distribution: &'a Distribution,
    next: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.next >= self.end {
            return None;
        }
        let place = self.distribution.place(self.next);
        let len = place.run.min(self.end - self.next);
        let file = ByteRange { offset: self.next, len };
        self.next += len;
        Some(Piece { index: place.index, object: ByteRange { offset: place.offset, len }, file })
    }
}
