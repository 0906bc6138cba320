//! The head of an object file: the identity of the object, with a checksum, in the first sector.

use types::{FileId, Fsid, Generation};
use wire::native::crc32c;

/// Bytes before the object's own bytes: one page, so that data pages stay aligned.
pub(crate) const HEAD_LEN: u64 = 4096;
/// All fields are in the first sector, which disks write atomically.
pub(crate) const SECTOR: usize = 512;

const MAGIC: [u8; 8] = *b"WEIROBJ\0";
/// Version without and with a nonce.
const VERSIONS: [u32; 2] = [1, 2];
/// Bytes covered by the checksum, by version.
const CHECKED: [usize; 2] = [48, 56];

/// The fields of the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) fsid: Fsid,
    pub(crate) object: FileId,
    pub(crate) generation: Generation,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// For objects with checksums: distinguishes their sum file from that of an earlier object with the same number.
    pub(crate) nonce: Option<u64>,
}

impl Head {
    /// Encodes the whole head; integers are big-endian.
    pub(crate) fn encode(&self) -> [u8; HEAD_LEN as usize] {
        let mut out = [0; HEAD_LEN as usize];
        out[..8].copy_from_slice(&MAGIC);
        let kind = usize::from(self.nonce.is_some());
        out[8..12].copy_from_slice(&VERSIONS[kind].to_be_bytes());
        out[12..16].copy_from_slice(&self.generation.0.to_be_bytes());
        out[16..32].copy_from_slice(&self.fsid.0);
        out[32..40].copy_from_slice(&self.object.0.to_be_bytes());
        out[40..48].copy_from_slice(&self.created.to_be_bytes());
        if let Some(nonce) = self.nonce {
            out[48..56].copy_from_slice(&nonce.to_be_bytes());
        }
        let checked = CHECKED[kind];
        let crc = crc32c(&out[..checked]);
        out[checked..checked + 4].copy_from_slice(&crc.to_be_bytes());
        out
    }

    /// Returns the used bytes from the beginning of the head: different bytes mean another object or another
    /// generation.
    pub(crate) fn mark(&self) -> Vec<u8> {
        let checked = CHECKED[usize::from(self.nonce.is_some())];
        self.encode()[..checked + 4].to_vec()
    }

    /// Decodes the beginning of an object file, which may be shorter than a head.
    ///
    /// `Ok(None)`: only zeros, the remains of an object that was never committed before a power cut.
    /// `Err`: the reason why this is not an object of `fsid` called `object` that this version understands.
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
        let Some(kind) = VERSIONS.iter().position(|version| *version == word(8)) else {
            return Err(format!("the object has format version {}, this iod knows up to {}", word(8), VERSIONS[1]));
        };
        let checked = CHECKED[kind];
        if word(checked) != crc32c(&bytes[..checked]) {
            return Err("the checksum of the head does not match".into());
        }
        let mut found = [0; 16];
        found.copy_from_slice(&bytes[16..32]);
        let head = Head {
            fsid: Fsid(found),
            object: FileId(long(32)),
            generation: Generation(word(12)),
            created: long(40),
            nonce: (kind == 1).then(|| long(48)),
        };
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
        let object = FileId(0x0102_0304);
        Head { fsid: FSID, object, generation: Generation(5), created: 0x6000_0000, nonce: None }
    }

    fn with_nonce() -> Head {
        Head { nonce: Some(0x2122_2324_2526_2728), ..head() }
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
        let bytes = with_nonce().encode();
        let hex: String = bytes[8..60].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "0000000200000005",
                "30313233343536373839616263646566",
                "0000000001020304",
                "0000000060000000",
                "2122232425262728",
                "443234fb"
            )
        );
        assert!(bytes[60..].iter().all(|b| *b == 0));
        assert_eq!(Head::decode(&bytes, FSID, FileId(0x0102_0304)), Ok(Some(with_nonce())));
    }

    #[test]
    fn zeros_mean_never_committed() {
        for len in [0, 1, 511, 4096] {
            assert_eq!(Head::decode(&vec![0; len], FSID, FileId(1)), Ok(None));
        }
    }

    #[test]
    fn every_damage_is_noticed() {
        for (head, end) in [(head(), 52), (with_nonce(), 60)] {
            for bit in 0..end * 8 {
                let mut bad = head.encode();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(Head::decode(&bad, FSID, head.object).is_err(), "bit {bit}");
            }
        }
        let bytes = head().encode();
        for len in 1..bytes.len() {
            assert!(Head::decode(&bytes[..len], FSID, head().object).is_err(), "length {len}");
        }
        assert!(Head::decode(&bytes, Fsid([1; 16]), head().object).unwrap_err().contains("file system"));
        assert!(Head::decode(&bytes, FSID, FileId(9)).unwrap_err().contains("object"));
    }
}
