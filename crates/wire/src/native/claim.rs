//! CLAIM: records on an iod which metadata store uses its objects, so that no other store and no older copy of the
//! store uses them.

use types::StoreId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::Capability;

/// The record of an iod about the metadata store that uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The metadata store.
    pub store: StoreId,
    /// The epoch of the mgr that sent the claim; it grows at each start of the mgr.
    pub epoch: u32,
    /// A random number that the store has recorded and that no other copy of the store has; never 0.
    pub mark: u64,
    /// The limit of inode numbers: until its next claim, the mgr assigns only numbers below this one.
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

/// A claim, and the conditions under which an iod accepts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claiming {
    /// The mark that the iod must have recorded; 0 means that it must have recorded no store.
    pub expected: u64,
    /// The first inode number that the store has not assigned. An iod without a recorded store must have no object with
    /// this or a higher number.
    pub next: u64,
    /// The claim to record.
    pub claim: Claim,
}

/// Arguments of CLAIM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimArgs {
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// The claim; `None` only reads the record of the iod.
    pub claiming: Option<Claiming>,
    /// The time of the mgr, in Unix seconds. If the iod accepts the claim, it uses this time to decide whether rights
    /// have expired.
    pub now: u64,
    /// If the iod accepts the claim, it refuses from then on the rights of sessions from epochs of the mgr below this
    /// one.
    pub least_epoch: u32,
    /// Whether to return the highest object number. For this the iod must scan all names of its store.
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
    /// Whether the iod accepted the claim. An accepted claim is durable.
    pub taken: bool,
    /// The record of the iod after the request.
    pub remembered: Option<Claim>,
    /// The highest object number, 0 if there is no object. Present if it was requested, or if the iod has recorded no
    /// store.
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
