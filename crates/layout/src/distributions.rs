//! The registry of distributions, which map the bytes of a file to the bytes of the file's objects.
//!
//! A distribution uses object *indices*, `0..count`. The order of iods in the layout record says which iod serves an
//! index. Rotating the order of iods from file to file spreads the first stripe units over all iods.

mod simple_stripe;

use simple_stripe::SimpleStripe;
use types::ByteRange;
use types::limits::{STRIPE_COUNT_MAX, STRIPE_UNIT_MAX, STRIPE_UNIT_MIN};

/// The number of a distribution in layout records and layout bodies. A distribution has the same number in every
/// version of Weir.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum DistributionId {
    /// Round robin by stripe unit. Each object holds its stripe units without gaps (dense packing).
    #[default]
    SimpleStripe = 1,
}

impl DistributionId {
    /// Every distribution that this version supports.
    pub const ALL: [DistributionId; 1] = [DistributionId::SimpleStripe];

    /// Returns the distribution with this number; `None` if this version of Weir does not have such a distribution.
    pub fn from_number(n: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|id| *id as u32 == n)
    }

    /// Returns the number that represents the distribution on disk and on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Returns the name of the distribution, as users write it in a policy.
    pub fn name(self) -> &'static str {
        match self {
            DistributionId::SimpleStripe => "simple_stripe",
        }
    }

    /// Returns the distribution with this name; `None` if this version of Weir does not have such a distribution.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.name() == name)
    }
}

/// The reason why a distribution refuses its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadGeometry {
    /// The stripe unit (the value of this variant, in bytes) is out of bounds or not a multiple of [`STRIPE_UNIT_MIN`].
    #[error("stripe unit {0}: write a multiple of {STRIPE_UNIT_MIN} from {STRIPE_UNIT_MIN} to {STRIPE_UNIT_MAX} bytes")]
    StripeUnit(u64),
    /// The number of iods (the value of this variant) is zero or exceeds [`STRIPE_COUNT_MAX`].
    #[error("stripe count {0}: a file is striped over 1 to {STRIPE_COUNT_MAX} iods")]
    Count(usize),
}

/// The position of a file byte in an object, and the number of contiguous bytes that begin with this byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of the object in the distribution, `0..count`.
    pub index: usize,
    /// Offset of the byte in the object.
    pub offset: u64,
    /// Number of bytes, beginning with this byte, that are contiguous in both the file and the object; at least 1.
    pub run: u64,
}

/// A piece of a file range: bytes that are contiguous both in the file and in one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Index of the object in the distribution, `0..count`.
    pub index: usize,
    /// The piece's range in the object.
    pub object: ByteRange,
    /// The piece's range in the file. It has the same length as the piece's range in the object.
    pub file: ByteRange,
}

/// The functions that each distribution implements: they map file offsets to object offsets and back. The mapping is
/// monotonic: in each object, larger file offsets have larger object offsets.
trait Mapping {
    /// Returns the number of objects over which the distribution spreads a file.
    fn count(&self) -> usize;
    /// Returns the object and the object offset that hold the file byte at `offset`.
    fn place(&self, offset: u64) -> Place;
    /// Returns the file offset of the byte at `offset` of object `index`; `None` if the result would exceed the largest
    /// file offset.
    fn file_offset(&self, index: usize, offset: u64) -> Option<u64>;
    /// Returns the length of object `index` if the file has `file_size` bytes and no hole at its end.
    fn object_size(&self, file_size: u64, index: usize) -> u64;
}

/// A distribution with its parameters: a one-to-one mapping between file offsets and pairs of object index and object
/// offset.
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
    /// Returns a distribution over `count` objects with a stripe unit of `stripe_unit` bytes.
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

    /// Returns the number that identifies the distribution.
    pub fn id(&self) -> DistributionId {
        self.id
    }

    /// Returns the stripe unit in bytes.
    pub fn stripe_unit(&self) -> u64 {
        self.stripe_unit
    }

    /// Returns the number of objects over which the file is distributed, 1 to [`STRIPE_COUNT_MAX`].
    pub fn count(&self) -> usize {
        self.mapping().count()
    }

    /// Returns the object and the object offset that hold the file byte at `offset`.
    pub fn place(&self, offset: u64) -> Place {
        self.mapping().place(offset)
    }

    /// Returns the pieces of a file range in file order: each piece is contiguous in one object. Together the pieces
    /// cover the range exactly.
    pub fn pieces(&self, range: ByteRange) -> Pieces<'_> {
        Pieces { distribution: self, next: range.offset, end: range.end() }
    }

    /// Returns the file offset of the byte at `offset` of object `index`; `None` if the result would exceed the largest
    /// file offset.
    ///
    /// # Panics
    /// If `index` is not below the number of objects.
    pub fn file_offset(&self, index: usize, offset: u64) -> Option<u64> {
        assert!(index < self.count(), "object index out of range");
        self.mapping().file_offset(index, offset)
    }

    /// Returns the file ranges whose bytes lie in `range` of object `index`, in file order. Contiguous file ranges are
    /// joined into one. The result omits bytes beyond the largest file offset.
    ///
    /// # Panics
    /// If `index` is not below the number of objects.
    pub fn file_ranges(&self, index: usize, range: ByteRange) -> impl Iterator<Item = ByteRange> + '_ {
        let mut at = range.offset;
        // The bytes of one stripe unit in an object are contiguous in the file. If the file has only one object, the
        // whole object is contiguous in the file.
        let unit = if self.count() == 1 { u64::MAX } else { self.stripe_unit };
        std::iter::from_fn(move || {
            let left = range.end().checked_sub(at).filter(|left| *left > 0)?;
            let file = self.file_offset(index, at)?;
            let len = left.min(unit - at % unit).min(u64::MAX - file);
            at += len;
            (len > 0).then_some(ByteRange { offset: file, len })
        })
    }

    /// Returns the length of object `index` if the file has `file_size` bytes and no hole at the end of the file. When
    /// a client truncates a file to `file_size`, each object is truncated to this length.
    ///
    /// # Panics
    /// If `index` is not below the number of objects.
    pub fn object_size(&self, file_size: u64, index: usize) -> u64 {
        assert!(index < self.count(), "object index out of range");
        self.mapping().object_size(file_size, index)
    }

    /// Returns the smallest file size that is consistent with the object sizes, given in index order. This size is the
    /// offset after the last file byte that any object holds. Returns `u64::MAX` if an object is longer than any file
    /// can make it.
    pub fn file_size(&self, object_sizes: &[u64]) -> u64 {
        let ends = object_sizes.iter().enumerate().take(self.count()).filter(|(_, size)| **size > 0);
        let end = |(index, size): (usize, &u64)| match self.mapping().file_offset(index, size - 1) {
            Some(last) => last.saturating_add(1),
            None => u64::MAX,
        };
        ends.map(end).max().unwrap_or(0)
    }
}

/// Returns an error for a stripe unit that is out of bounds or not a multiple of [`STRIPE_UNIT_MIN`].
pub fn check_stripe_unit(stripe_unit: u64) -> Result<(), BadGeometry> {
    let fits = (STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&stripe_unit);
    if fits && stripe_unit.is_multiple_of(STRIPE_UNIT_MIN) { Ok(()) } else { Err(BadGeometry::StripeUnit(stripe_unit)) }
}

/// Returns an error if the number of iods is zero or exceeds [`STRIPE_COUNT_MAX`].
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
