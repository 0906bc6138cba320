//! The layout record of a file to which the mgr has not assigned iods yet. The record says how to choose the iods.
//!
//! The mgr creates this record for a file if no iod is up. The record keeps the placement settings of the directory's
//! policy until the first write.

use crate::Policy;
use crate::distributions::{DistributionId, check_stripe_unit};
use crate::kinds::native::{MIRRORED_VERSION, VERSION, copies};
use crate::policy::StoredLayout;
use types::limits::STRIPE_COUNT_MAX;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Version number of the record of a file that will be a log file. The number of copies follows the version number.
const LOG_VERSION: u32 = 3;

/// A layout record without iods: the placement settings of the policy at the time when the file was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unassigned {
    /// The stored kind of the file.
    pub layout: StoredLayout,
    /// The distribution of the file's bytes over objects.
    pub distribution: DistributionId,
    /// Size of the stripe unit in bytes.
    pub stripe_unit: u64,
    /// Number of iods over which each copy is striped; 0 for all iods.
    pub stripe_count: u32,
    /// Number of copies of the file.
    pub mirrors: u32,
}

impl From<&Policy> for Unassigned {
    fn from(policy: &Policy) -> Self {
        let Policy { layout, distribution, stripe_unit, stripe_count, mirrors, .. } = *policy;
        Unassigned { layout, distribution, stripe_unit, stripe_count, mirrors }
    }
}

impl Unassigned {
    /// Returns `policy` with its placement settings replaced by the values of this record.
    pub fn policy(&self, policy: Policy) -> Policy {
        let Unassigned { layout, distribution, stripe_unit, stripe_count, mirrors } = *self;
        Policy { layout, distribution, stripe_unit, stripe_count, mirrors, ..policy }
    }
}

impl Xdr for Unassigned {
    fn encode(&self, out: &mut Writer) {
        let version = match (self.layout, self.mirrors) {
            (StoredLayout::Log, _) => LOG_VERSION,
            (StoredLayout::Stripe, 1) => VERSION,
            (StoredLayout::Stripe, _) => MIRRORED_VERSION,
        };
        out.u32(version);
        if version != VERSION {
            out.u32(self.mirrors);
        }
        out.u32(self.distribution.number());
        out.u32(self.stripe_unit as u32);
        out.u32(self.stripe_count);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let (layout, mirrors) = match input.u32()? {
            VERSION => (StoredLayout::Stripe, 1),
            MIRRORED_VERSION => (StoredLayout::Stripe, copies(input, 2)?),
            LOG_VERSION => (StoredLayout::Log, copies(input, 1)?),
            value => return Err(Malformed::BadValue { what: "version of a layout for later", value }),
        };
        let value = input.u32()?;
        let distribution = DistributionId::from_number(value)
            .ok_or(Malformed::BadValue { what: "distribution of a layout for later", value })?;
        let stripe_unit = u64::from(input.u32()?);
        check_stripe_unit(stripe_unit)
            .map_err(|_| Malformed::Invalid("stripe unit out of bounds or not a multiple of 64"))?;
        let stripe_count = input.u32()?;
        if stripe_count as usize > STRIPE_COUNT_MAX {
            return Err(Malformed::BadValue { what: "iods of a layout for later", value: stripe_count });
        }
        Ok(Unassigned { layout, distribution, stripe_unit, stripe_count, mirrors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_has_its_golden_bytes() {
        let distribution = DistributionId::SimpleStripe;
        let unassigned =
            Unassigned { layout: StoredLayout::Stripe, distribution, stripe_unit: 65536, stripe_count: 3, mirrors: 1 };
        let golden = [0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 3];
        assert_eq!(unassigned.to_bytes(), &golden[..]);
        assert_eq!(Unassigned::from_bytes(&golden.to_vec().into()), Ok(unassigned));
        let twice = Unassigned { mirrors: 2, ..unassigned };
        assert_eq!(twice.to_bytes()[..8], [0, 0, 0, 2, 0, 0, 0, 2]);
        assert_eq!(Unassigned::from_bytes(&twice.to_bytes()), Ok(twice));
        for mirrors in [1, 2] {
            let log = Unassigned { layout: StoredLayout::Log, mirrors, ..unassigned };
            assert_eq!(log.to_bytes()[..8], [0, 0, 0, 3, 0, 0, 0, mirrors as u8]);
            assert_eq!(log.to_bytes()[8..], golden[4..]);
            assert_eq!(Unassigned::from_bytes(&log.to_bytes()), Ok(log));
            assert_eq!(log.policy(Policy::default()).layout, StoredLayout::Log);
        }
        for (at, value) in [(3, 3), (3, 4), (7, 9), (11, 1), (13, 1)] {
            let mut bad = golden.to_vec();
            bad[at] = value;
            assert!(Unassigned::from_bytes(&bad.into()).is_err(), "byte {at}");
        }
        let policy = Policy { read_threshold: 5, ..Policy::default() };
        assert_eq!(Unassigned::from(&unassigned.policy(policy)), unassigned);
        assert_eq!(unassigned.policy(policy).read_threshold, 5);
    }
}
