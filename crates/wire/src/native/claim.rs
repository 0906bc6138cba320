//! CLAIM: makes an iod record which metadata store uses its objects. The iod then refuses all other metadata stores,
//! and older copies of the recorded metadata store.

use types::StoreId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::Capability;

/// The metadata store that uses an iod, as the iod records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Id of the metadata store.
    pub store: StoreId,
    /// The epoch of the mgr that sent the claim. The epoch grows at each start of the mgr.
    pub epoch: u32,
    /// A random number (mark), never 0, that identifies one copy of the metadata store. The mgr writes this number to
    /// the metadata store before it sends the claim, so an older copy of the metadata store does not contain the
    /// number.
    pub mark: u64,
    /// Limit of inode numbers. Until its next claim, the mgr assigns only inode numbers below this limit.
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

/// The claim by which a metadata store takes over the volume of an iod, and the conditions under which the iod accepts
/// the claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claiming {
    /// The random number (mark) of the claim that the iod must have recorded. 0 means that the iod must have recorded
    /// no claim.
    pub expected: u64,
    /// The first inode number that the metadata store has not assigned. An iod that has recorded no claim accepts
    /// this claim only if the iod has no object of an inode with this or a higher number.
    pub next: u64,
    /// The new record, which replaces the recorded claim if the iod accepts it.
    pub claim: Claim,
}

/// Arguments of CLAIM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimArgs {
    /// Capability for the whole store ([`super::STORE_OBJECT`]); needs the right ADMIN.
    pub cap: Capability,
    /// The new claim of the mgr. With `None`, the mgr only reads the claim that the iod has recorded.
    pub claiming: Option<Claiming>,
    /// The time on the mgr's clock, as Unix time in seconds. An iod that accepts the claim compares the expiry of
    /// capabilities and tickets with the mgr's clock from now on.
    pub now: u64,
    /// An iod that accepts the claim refuses, from now on, all sessions of mgr epochs below this epoch.
    pub least_epoch: u32,
    /// Whether the iod also returns the highest inode number of its objects, for which it must scan the names of all
    /// object files.
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
    /// Whether the iod accepted the claim. An iod that accepts the claim replies only after the claim is durable.
    pub taken: bool,
    /// The claim that the iod has recorded after this request; `None` if it has recorded none.
    pub remembered: Option<Claim>,
    /// The highest inode number of any object on the iod; 0 if the iod has no object. Present if the mgr requested
    /// it, or if the iod has recorded no claim.
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
