//! The anchor of a batch log: a record in the store that identifies the last log record whose changes are in the
//! database table. A replay begins with the following log record.

use xdr::{Malformed, Reader, Writer};

/// The position in the batch log up to which the database table has all changes. The store writes the anchor in the
/// same transaction as these changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// Random id of the store, which is also in the header of the log and in every record of the log.
    pub store: [u8; 16],
    /// The run number: how many times the store had been opened when the anchor was written. Log records of other runs
    /// do not continue the history of this run.
    pub run: u64,
    /// Sequence number of the last log record whose changes are in the database table. Sequence numbers of records only
    /// increase.
    pub index: u64,
    /// Checksum of the log record with the sequence number `index`.
    pub chain: u32,
    /// Offset in bytes at which the next record begins in the ring (the blocks that log records overwrite again and
    /// again).
    pub position: u64,
    /// Size in bytes of the ring (the blocks that log records overwrite again and again); a multiple of
    /// [`BLOCK`](super::BLOCK).
    pub size: u64,
}

/// Version number of the formats of the anchor, of the log, and of the record checksums.
const VERSION: u32 = 1;

impl Anchor {
    /// Returns the anchor of a new store with an empty log.
    pub fn new(store: [u8; 16], size: u64) -> Self {
        Anchor { store, run: 1, index: 0, chain: 0, position: 0, size }
    }

    /// Encodes the anchor for storage in the database.
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

    /// Decodes an anchor that was read from the database.
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
        // No store reaches such large run numbers, sequence numbers or ring sizes, so the anchor is damaged.
        if [anchor.run, anchor.index, anchor.size].into_iter().any(|count| count > u64::MAX / 4) {
            return Err(Malformed::Invalid("a number out of range"));
        }
        Ok(anchor)
    }
}
