//! CLAIM: by which metadata store the objects of an iod are used, so that neither another store nor an older copy uses them.

use types::StoreId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::Capability;

/// What an iod remembers of the metadata store that uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The metadata store.
    pub store: StoreId,
    /// The epoch of the mgr that claimed: larger at each start.
    pub epoch: u32,
    /// A random number that the store has recorded and no other copy of it knows; never 0.
    pub mark: u64,
    /// The mgr gives out no inode number from this one on before it has claimed again.
    pub numbers: u64,
}

impl Xdr for Claim {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.store.0);
        out.u32(self.epoch);
        out.u64(self.mark);
        out.u64(self.numbers);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let store = StoreId(input.fixed()?);
        Ok(Claim { store, epoch: input.u32()?, mark: input.u64()?, numbers: input.u64()? })
    }
}

/// A claim, and the conditions under which an iod takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claiming {
    /// The mark that the iod must remember; 0: it must remember no store.
    pub expected: u64,
    /// The first inode number that the store has not given out. An iod that remembers no store must have no object from it on.
    pub next: u64,
    /// What the iod is to remember.
    pub claim: Claim,
}

/// Arguments of CLAIM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimArgs {
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// The claim; `None` only asks what the iod remembers.
    pub claiming: Option<Claiming>,
    /// The time at the mgr, in Unix seconds. A claim that is taken has the iod go by it when it looks whether a right has ended.
    pub now: u64,
    /// With a claim that is taken: rights of sessions that earlier epochs of the mgr gave, smaller than this, are refused from now on.
    pub least_epoch: u32,
    /// Whether the highest number of an object is wanted; the iod has to look at all names of its store for it.
    pub highest: bool,
}

impl Xdr for ClaimArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.optional(self.claiming.as_ref(), |out, claiming| {
            out.u64(claiming.expected);
            out.u64(claiming.next);
            claiming.claim.encode(out);
        });
        out.u64(self.now);
        out.u32(self.least_epoch);
        out.bool(self.highest);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let cap = Capability::decode(input)?;
        let claiming = input.optional(|input| {
            Ok(Claiming { expected: input.u64()?, next: input.u64()?, claim: Claim::decode(input)? })
        })?;
        Ok(ClaimArgs { cap, claiming, now: input.u64()?, least_epoch: input.u32()?, highest: input.bool()? })
    }
}

/// Result of CLAIM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClaimReply {
    /// Whether the claim was taken; it is durable then.
    pub taken: bool,
    /// What the iod remembers now.
    pub remembered: Option<Claim>,
    /// The highest number of an object, 0 when there is none: when it was asked for, and when the iod remembers no store.
    pub highest: Option<u64>,
}

impl Xdr for ClaimReply {
    fn encode(&self, out: &mut Writer) {
        out.bool(self.taken);
        out.optional(self.remembered.as_ref(), |out, claim| claim.encode(out));
        out.optional(self.highest.as_ref(), |out, highest| out.u64(*highest));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let taken = input.bool()?;
        Ok(ClaimReply { taken, remembered: input.optional(Claim::decode)?, highest: input.optional(Reader::u64)? })
    }
}
