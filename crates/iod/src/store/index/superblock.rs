//! The superblocks of a shard's object, which say where its valid records begin.

use wire::native::crc32c;

/// Number of bytes at the beginning of the object in front of the records.
pub(super) const RECORDS: u64 = 4096;
/// Distance between the two superblocks, so that a torn write damages only one of them.
const DISTANCE: u64 = 512;
/// Number of bytes at the beginning of the object that hold both superblocks.
pub(super) const SUPERBLOCKS: u64 = 2 * DISTANCE;

const MAGIC: [u8; 8] = *b"WEIRINDX";
const VERSION: u32 = 1;
/// Length of the encoded superblock: magic, version, counter, start, CRC-32C.
const LEN: usize = 32;

/// A superblock. The valid superblock with the higher counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    /// Number of the checkpoint that wrote the superblock, counted from 1.
    pub(super) counter: u64,
    /// Offset in the object at which the records of this checkpoint begin.
    pub(super) start: u64,
}

impl Superblock {
    /// The state of an object without superblocks: the records begin behind them.
    pub(super) const NONE: Superblock = Superblock { counter: 0, start: RECORDS };

    /// Returns the offset of the superblock in the object. Consecutive superblocks are at different offsets.
    pub(super) fn offset(self) -> u64 {
        self.counter % 2 * DISTANCE
    }

    pub(super) fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.counter.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.start.to_be_bytes());
        let sum = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Returns the superblock that counts, from the first bytes of the object.
    pub(super) fn newest(bytes: &[u8]) -> Superblock {
        let both = bytes.chunks(DISTANCE as usize).filter_map(Self::decode);
        both.max_by_key(|superblock| superblock.counter).unwrap_or(Self::NONE)
    }

    fn decode(bytes: &[u8]) -> Option<Superblock> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        let number = |at: usize| bytes[at..].first_chunk().map(|number| u64::from_be_bytes(*number));
        let superblock = Superblock { counter: number(12)?, start: number(20)? };
        // The encoding is canonical, so the comparison checks the magic, the version and the CRC.
        (superblock.encode() == *bytes && superblock.start >= RECORDS).then_some(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_valid_superblock_with_the_higher_counter_counts() {
        let mut bytes = vec![0; SUPERBLOCKS as usize];
        assert_eq!(Superblock::newest(&bytes), Superblock::NONE);
        assert_eq!(Superblock::newest(&[]), Superblock::NONE);
        let (older, newer) = (Superblock { counter: 1, start: 5000 }, Superblock { counter: 2, start: 9000 });
        for superblock in [older, newer] {
            let at = superblock.offset() as usize;
            bytes[at..at + LEN].copy_from_slice(&superblock.encode());
            assert_eq!(Superblock::newest(&bytes), superblock);
        }
        for at in 0..LEN {
            bytes[newer.offset() as usize + at] ^= 4;
            assert_eq!(Superblock::newest(&bytes), older, "byte {at}");
            bytes[newer.offset() as usize + at] ^= 4;
        }
    }
}
