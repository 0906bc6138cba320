//! The head of an object file: who the object is, in the first sector of the file, under a checksum.

use types::{FileId, Fsid, Generation};
use wire::native::crc32c;

/// Bytes before the object's own bytes: a page, so that data pages stay aligned.
pub(crate) const HEAD_LEN: u64 = 4096;
/// Everything with a meaning lies in the first sector, which disks write whole or not at all.
pub(crate) const SECTOR: usize = 512;

const MAGIC: [u8; 8] = *b"WEIROBJ\0";
const VERSION: u32 = 1;
const CHECKED: usize = 48;

/// What the head says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) fsid: Fsid,
    pub(crate) object: FileId,
    pub(crate) generation: Generation,
    /// Unix time in seconds.
    pub(crate) created: u64,
}

impl Head {
    /// The whole head; integers are big-endian.
    pub(crate) fn encode(&self) -> [u8; HEAD_LEN as usize] {
        let mut out = [0; HEAD_LEN as usize];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_be_bytes());
        out[12..16].copy_from_slice(&self.generation.0.to_be_bytes());
        out[16..32].copy_from_slice(&self.fsid.0);
        out[32..40].copy_from_slice(&self.object.0.to_be_bytes());
        out[40..48].copy_from_slice(&self.created.to_be_bytes());
        let crc = crc32c(&out[..CHECKED]);
        out[48..52].copy_from_slice(&crc.to_be_bytes());
        out
    }

    /// Reads the beginning of an object file, which may be shorter than a head.
    ///
    /// `Ok(None)`: nothing but zeros, the trace of an object that was never committed before a power cut.
    /// `Err`: why it is not an object of `fsid` called `object` that this version understands.
    pub(crate) fn decode(bytes: &[u8], fsid: Fsid, object: FileId) -> Result<Option<Head>, String> {
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if bytes.len() < HEAD_LEN as usize {
            return Err(format!("the head is cut off after {} bytes", bytes.len()));
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        if bytes[..8] != MAGIC {
            return Err("the head has a wrong magic number".into());
        }
        if word(8) > VERSION {
            return Err(format!("the object has format version {}, this iod knows up to {VERSION}", word(8)));
        }
        if word(48) != crc32c(&bytes[..CHECKED]) {
            return Err("the checksum of the head does not match".into());
        }
        let mut found = [0; 16];
        found.copy_from_slice(&bytes[16..32]);
        let head =
            Head { fsid: Fsid(found), object: FileId(long(32)), generation: Generation(word(12)), created: long(40) };
        if head.fsid != fsid {
            return Err(format!("the object belongs to file system {}", head.fsid));
        }
        if head.object != object {
            return Err(format!("the head is that of object {}", head.object));
        }
        Ok(Some(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSID: Fsid = Fsid(*b"0123456789abcdef");

    fn head() -> Head {
        Head { fsid: FSID, object: FileId(0x0102_0304), generation: Generation(5), created: 0x6000_0000 }
    }

    #[test]
    fn golden_bytes() {
        let bytes = head().encode();
        let hex: String = bytes[..52].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "574549524f424a00",
                "0000000100000005",
                "30313233343536373839616263646566",
                "0000000001020304",
                "0000000060000000",
                "4baa2199"
            )
        );
        assert!(bytes[52..].iter().all(|b| *b == 0));
        assert_eq!(Head::decode(&bytes, FSID, FileId(0x0102_0304)), Ok(Some(head())));
    }

    #[test]
    fn zeros_mean_never_committed() {
        for len in [0, 1, 511, 4096] {
            assert_eq!(Head::decode(&vec![0; len], FSID, FileId(1)), Ok(None));
        }
    }

    #[test]
    fn every_damage_is_noticed() {
        let bytes = head().encode();
        for bit in 0..52 * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::decode(&bad, FSID, head().object).is_err(), "bit {bit}");
        }
        for len in 1..bytes.len() {
            assert!(Head::decode(&bytes[..len], FSID, head().object).is_err(), "length {len}");
        }
        assert!(Head::decode(&bytes, Fsid([1; 16]), head().object).unwrap_err().contains("file system"));
        assert!(Head::decode(&bytes, FSID, FileId(9)).unwrap_err().contains("object"));
    }
}
