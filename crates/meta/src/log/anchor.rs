//! The anchor of a batch log, which the store keeps: the last record whose changes the store has, and the values that
//! the next record must have.

use xdr::{Malformed, Reader, Writer};

/// The state of a log as of one state of the store. The store keeps the anchor together with the changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// Identity of the store, which is in the head of the log and in every record.
    pub store: [u8; 16],
    /// Number of times that the store was opened. A record of another run never continues the history of this run.
    pub run: u64,
    /// Number of the last record whose changes the store has. The number increases forever.
    pub index: u64,
    /// Checksum of that record.
    pub chain: u32,
    /// Start of the next record, in bytes from the beginning of the ring.
    pub position: u64,
    /// Size of the ring in bytes, a multiple of [`BLOCK`](super::BLOCK).
    pub size: u64,
}

/// Version of the anchor, the log and the checksums of records.
const VERSION: u32 = 1;

impl Anchor {
    /// Returns the anchor of a store that never had a log.
    pub fn new(store: [u8; 16], size: u64) -> Self {
        Anchor { store, run: 1, index: 0, chain: 0, position: 0, size }
    }

    /// Returns the encoding that the store keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(VERSION);
        out.fixed(&self.store);
        out.u64(self.run);
        out.u64(self.index);
        out.u32(self.chain);
        out.u64(self.position);
        out.u64(self.size);
        out.finish().to_bytes().to_vec()
    }

    /// Decodes the anchor in `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes::Bytes::copy_from_slice(bytes));
        match input.u32()? {
            VERSION => {}
            value => return Err(Malformed::BadValue { what: "version of a batch log", value }),
        }
        let anchor = Anchor {
            store: input.fixed()?,
            run: input.u64()?,
            index: input.u64()?,
            chain: input.u32()?,
            position: input.u64()?,
            size: input.u64()?,
        };
        input.finish()?;
        let aligned = anchor.position.is_multiple_of(super::BLOCK) && anchor.size.is_multiple_of(super::BLOCK);
        let inside = anchor.position < anchor.size || (anchor.position, anchor.size) == (0, 0);
        if !aligned || !inside {
            return Err(Malformed::Invalid("a place outside of the batch log"));
        }
        // No store counts that far.
        if [anchor.run, anchor.index, anchor.size].into_iter().any(|count| count > u64::MAX / 4) {
            return Err(Malformed::Invalid("a number out of range"));
        }
        Ok(anchor)
    }
}
