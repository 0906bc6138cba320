//! The record of one region in a checksum file: the checksums of 64 blocks in one disk sector, because disks write a
//! sector atomically.

use wire::native::crc32c;

/// Size of a block in bytes. The checksum file has one checksum for each block.
pub(crate) const BLOCK: u64 = 4096;
/// Number of blocks in a region.
pub(super) const BLOCKS: usize = 64;
/// Number of bytes of an object in one region.
pub(super) const REGION: u64 = BLOCK * BLOCKS as u64;
/// Size of a record in the checksum file, in bytes: one disk sector.
pub(super) const RECORD: usize = 512;

const MAGIC: [u8; 4] = *b"WSUM";
const LENS: usize = 24;
const SUMS: usize = LENS + 2 * BLOCKS;
const END: usize = SUMS + 4 * BLOCKS;

const _: () = assert!(END <= RECORD);

/// The checksums of the blocks of one region (64 blocks).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// For each block, the number of bytes from its start that the checksum covers; 0 if the block has no checksum.
    pub(super) lens: [u16; BLOCKS],
    /// For each block, the CRC-32C of its covered bytes.
    pub(super) sums: [u32; BLOCKS],
}

impl Record {
    /// A record in which no block has a checksum.
    pub(super) const EMPTY: Record = Record { lens: [0; BLOCKS], sums: [0; BLOCKS] };

    /// Encodes the record as a sector, for region number `region` of the object with this nonce. Integers are
    /// big-endian.
    pub(super) fn encode(&self, nonce: u64, region: u64) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        out[..4].copy_from_slice(&MAGIC);
        out[8..16].copy_from_slice(&nonce.to_be_bytes());
        out[16..24].copy_from_slice(&region.to_be_bytes());
        for (bytes, len) in out[LENS..SUMS].chunks_exact_mut(2).zip(self.lens) {
            bytes.copy_from_slice(&len.to_be_bytes());
        }
        for (bytes, sum) in out[SUMS..END].chunks_exact_mut(4).zip(self.sums) {
            bytes.copy_from_slice(&sum.to_be_bytes());
        }
        let crc = crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_be_bytes());
        out
    }

    /// Decodes a sector of a checksum file. Returns an empty record for a sector that was never written, or that
    /// belongs to an earlier object with the same id. Returns `None` for a damaged sector.
    pub(super) fn decode(bytes: &[u8; RECORD], nonce: u64, region: u64) -> Option<Record> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        if bytes.iter().all(|b| *b == 0) {
            return Some(Record::EMPTY);
        }
        if bytes[..4] != MAGIC || word(4) != crc32c(&bytes[8..]) || long(16) != region {
            return None;
        }
        let mut record = Record::EMPTY;
        if long(8) == nonce {
            for (index, len) in record.lens.iter_mut().enumerate() {
                let at = LENS + 2 * index;
                *len = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            }
            for (index, sum) in record.sums.iter_mut().enumerate() {
                *sum = word(SUMS + 4 * index);
            }
        }
        record.lens.iter().all(|len| u64::from(*len) <= BLOCK).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let mut record = Record::EMPTY;
        (record.lens[0], record.sums[0]) = (4096, 0x0102_0304);
        (record.lens[63], record.sums[63]) = (5, 0xa1a2_a3a4);
        record
    }

    #[test]
    fn a_record_has_its_golden_bytes() {
        let bytes = sample().encode(0x1112_1314_1516_1718, 3);
        let hex = |from: usize, to: usize| bytes[from..to].iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(0, 26), "5753554d9351c70311121314151617180000000000000003".to_owned() + "1000");
        assert_eq!(hex(148, 156), "0000000501020304");
        assert_eq!(hex(400, 412), "00000000a1a2a3a400000000");
        assert!(bytes[408..].iter().all(|b| *b == 0));
        assert_eq!(Record::decode(&bytes, 0x1112_1314_1516_1718, 3), Some(sample()));
    }

    #[test]
    fn every_damage_is_detected_and_records_of_an_earlier_object_count_as_empty() {
        let bytes = sample().encode(7, 3);
        for bit in 0..RECORD * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&bad, 7, 3), None, "bit {bit}");
        }
        assert_eq!(Record::decode(&bytes, 7, 4), None, "the record of another region");
        assert_eq!(Record::decode(&bytes, 8, 3), Some(Record::EMPTY));
        assert_eq!(Record::decode(&[0; RECORD], 7, 3), Some(Record::EMPTY));
        let mut long = sample();
        long.lens[1] = 4097;
        assert_eq!(Record::decode(&long.encode(7, 3), 7, 3), None);
    }
}
