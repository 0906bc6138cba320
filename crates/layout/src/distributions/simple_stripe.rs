//! The simple stripe distribution: round robin by stripe unit, densely packed. Stripe unit `u` of a file is stripe unit
//! `u / count` of the object with the index `u % count`.

use super::{Mapping, Place};

/// Parameters of a simple stripe: the stripe unit in bytes and the number of objects. Both are at least 1, and their
/// product is below 2^39.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SimpleStripe {
    unit: u64,
    count: u64,
}

impl SimpleStripe {
    /// Returns a stripe distribution. The caller must have checked the parameters against their limits.
    pub(super) fn new(unit: u64, count: usize) -> Self {
        SimpleStripe { unit, count: count as u64 }
    }
}

impl Mapping for SimpleStripe {
    fn count(&self) -> usize {
        self.count as usize
    }

    fn place(&self, offset: u64) -> Place {
        if self.count == 1 {
            return Place { index: 0, offset, run: (u64::MAX - offset).max(1) };
        }
        let (unit, within) = (offset / self.unit, offset % self.unit);
        Place {
            index: (unit % self.count) as usize,
            offset: unit / self.count * self.unit + within,
            run: self.unit - within,
        }
    }

    fn file_offset(&self, index: usize, offset: u64) -> Option<u64> {
        let (row, within) = (offset / self.unit, offset % self.unit);
        let unit = row.checked_mul(self.count)?.checked_add(index as u64)?;
        unit.checked_mul(self.unit)?.checked_add(within)
    }

    fn object_size(&self, file_size: u64, index: usize) -> u64 {
        let stripe = self.unit * self.count;
        let (rows, rest) = (file_size / stripe, file_size % stripe);
        rows * self.unit + rest.saturating_sub(index as u64 * self.unit).min(self.unit)
    }
}
