//! The header of an object file: the identity of the object and its generation, with a checksum, in the first sector of
//! the file.

use types::{FileId, Fsid, Generation, ObjectId};
use wire::native::{HeadState, crc32c};

/// Length in bytes of the header of an object file, and so the file offset of the object's first byte. The length is
/// one page, so that pages of the object are aligned with pages of the file.
pub(crate) const HEAD_LEN: u64 = 4096;
/// Length of the part of the header that has fields: one sector, which disks write atomically.
pub(crate) const SECTOR: usize = 512;

const MAGIC: [u8; 8] = *b"WEIROBJ\0";
/// The newest version of the format of headers. Version 1 has neither nonce nor stream, version 2 has a nonce, version
/// 3 a stream, version 4 both. Objects of stream 0 have headers of versions 1 and 2, which older builds can read.
const VERSION: u32 = 4;
/// Offset in the header of its optional fields, nonce and stream.
const MORE: usize = 48;

/// The fields of the header of an object file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) fsid: Fsid,
    pub(crate) object: ObjectId,
    pub(crate) generation: Generation,
    /// Time at which the object was created, as Unix time in seconds.
    pub(crate) created: u64,
    /// A random number that ties the object to its checksum file. The checksum file of an earlier object with the same
    /// id has another nonce. `None` for objects without block checksums.
    pub(crate) nonce: Option<u64>,
}

/// The reason why an object file does not begin with a valid header of the object that the file is named after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BadHead {
    pub(crate) state: HeadState,
    /// Human-readable description of the damage in the header of the object.
    pub(crate) reason: String,
}

impl BadHead {
    /// Returns the error for a header that the disk cannot read or whose content is damaged.
    pub(crate) fn damaged(reason: impl Into<String>) -> Self {
        BadHead { state: HeadState::Damaged, reason: reason.into() }
    }
}

/// Returns the number of bytes that the checksum of a header covers; `None` if this build does not know the version.
fn checked(version: u32) -> Option<usize> {
    let more = [0, 8, 4, 12];
    more.get(version.checked_sub(1)? as usize).map(|more| MORE + more)
}

impl Head {
    fn version(&self) -> u32 {
        1 + u32::from(self.nonce.is_some()) + 2 * u32::from(self.object.stream != 0)
    }

    fn checked(&self) -> usize {
        MORE + self.nonce.map_or(0, |_| 8) + if self.object.stream == 0 { 0 } else { 4 }
    }

    /// Encodes the header, padded to its full length. Integers are big-endian.
    pub(crate) fn encode(&self) -> [u8; HEAD_LEN as usize] {
        let mut out = [0; HEAD_LEN as usize];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.version().to_be_bytes());
        out[12..16].copy_from_slice(&self.generation.0.to_be_bytes());
        out[16..32].copy_from_slice(&self.fsid.0);
        out[32..40].copy_from_slice(&self.object.file.0.to_be_bytes());
        out[40..48].copy_from_slice(&self.created.to_be_bytes());
        let checked = self.checked();
        if let Some(nonce) = self.nonce {
            out[MORE..MORE + 8].copy_from_slice(&nonce.to_be_bytes());
        }
        if self.object.stream != 0 {
            out[checked - 4..checked].copy_from_slice(&self.object.stream.to_be_bytes());
        }
        let crc = crc32c(&out[..checked]);
        out[checked..checked + 4].copy_from_slice(&crc.to_be_bytes());
        out
    }

    /// Returns the bytes of the header up to and including its checksum. These bytes change with each fence, and differ
    /// between objects.
    pub(crate) fn mark(&self) -> Vec<u8> {
        self.encode()[..self.checked() + 4].to_vec()
    }

    /// Decodes the beginning of an object file, which may be shorter than a header.
    ///
    /// Returns `Ok(None)` if all bytes are zeros, because a power cut then left an object that was never committed.
    /// Returns `Err` if the header is not that of object `object` of file system `fsid`, or has an unknown version.
    pub(crate) fn decode(bytes: &[u8], fsid: Fsid, object: ObjectId) -> Result<Option<Head>, BadHead> {
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if bytes.len() < HEAD_LEN as usize {
            return Err(BadHead::damaged(format!("the head is cut off after {} bytes", bytes.len())));
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        if bytes[..8] != MAGIC {
            return Err(BadHead::damaged("the head has a wrong magic number"));
        }
        let version = word(8);
        let Some(checked) = checked(version) else {
            let reason = format!("the object has format version {version}, this iod knows up to {VERSION}");
            return Err(BadHead { state: HeadState::Newer, reason });
        };
        if word(checked) != crc32c(&bytes[..checked]) {
            return Err(BadHead::damaged("the checksum of the head does not match"));
        }
        let mut found = [0; 16];
        found.copy_from_slice(&bytes[16..32]);
        let stream = if version > 2 { word(checked - 4) } else { 0 };
        let head = Head {
            fsid: Fsid(found),
            object: ObjectId::new(FileId(long(32)), stream),
            generation: Generation(word(12)),
            created: long(40),
            nonce: version.is_multiple_of(2).then(|| long(MORE)),
        };
        let foreign = |reason| Err(BadHead { state: HeadState::Foreign, reason });
        if head.fsid != fsid {
            return foreign(format!("the object belongs to file system {}", head.fsid));
        }
        if head.object != object {
            return foreign(format!("the head is that of object {}", head.object));
        }
        Ok(Some(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object_id(file: u64) -> ObjectId {
        ObjectId::stream_0(FileId(file))
    }

    const FSID: Fsid = Fsid(*b"0123456789abcdef");

    fn head() -> Head {
        let object = object_id(0x0102_0304);
        Head { fsid: FSID, object, generation: Generation(5), created: 0x6000_0000, nonce: None }
    }

    fn with_nonce() -> Head {
        Head { nonce: Some(0x2122_2324_2526_2728), ..head() }
    }

    fn of_stream(head: Head) -> Head {
        Head { object: ObjectId::new(head.object.file, 0x3132_3334), ..head }
    }

    #[test]
    fn a_head_has_its_golden_bytes() {
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
        assert_eq!(Head::decode(&bytes, FSID, object_id(0x0102_0304)), Ok(Some(head())));
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
        assert_eq!(Head::decode(&bytes, FSID, object_id(0x0102_0304)), Ok(Some(with_nonce())));
        for (head, version, more) in
            [(of_stream(head()), 3, "31323334"), (of_stream(with_nonce()), 4, "212223242526272831323334")]
        {
            let bytes = head.encode();
            let hex: String = bytes[8..].iter().map(|b| format!("{b:02x}")).collect();
            let fields = "00000005303132333435363738396162636465660000000001020304";
            let shown = format!("{version:08x}{fields}0000000060000000{more}");
            assert_eq!(hex[..shown.len()], shown);
            let end = 8 + shown.len() / 2;
            assert_eq!(bytes[end..end + 4], crc32c(&bytes[..end]).to_be_bytes());
            assert!(bytes[end + 4..].iter().all(|b| *b == 0));
            assert_eq!(Head::decode(&bytes, FSID, head.object), Ok(Some(head)));
            assert_eq!(head.mark(), bytes[..end + 4]);
        }
    }

    #[test]
    fn zeros_mean_never_committed() {
        for len in [0, 1, 511, 4096] {
            assert_eq!(Head::decode(&vec![0; len], FSID, object_id(1)), Ok(None));
        }
    }

    #[test]
    fn every_damage_of_a_head_is_detected() {
        let heads = [head(), with_nonce(), of_stream(head()), of_stream(with_nonce())];
        for (head, end) in heads.into_iter().zip([52, 60, 56, 64]) {
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
    }

    #[test]
    fn foreign_and_newer_heads_are_distinguished_from_damaged_ones() {
        let bad = |bytes: &[u8], fsid, object| Head::decode(bytes, fsid, object).unwrap_err();
        let bytes = head().encode();
        let other = bad(&bytes, Fsid([1; 16]), head().object);
        assert!(other.state == HeadState::Foreign && other.reason.contains("file system"), "{other:?}");
        for object in [object_id(9), of_stream(head()).object] {
            let other = bad(&bytes, FSID, object);
            assert!(other.state == HeadState::Foreign && other.reason.contains("of object 16909060"), "{other:?}");
        }
        let mut newer = bytes;
        newer[11] = 5;
        assert_eq!(bad(&newer, FSID, head().object).state, HeadState::Newer);
        for at in [0, 13, 59] {
            let mut damaged = with_nonce().encode();
            damaged[at] ^= 1;
            assert_eq!(bad(&damaged, FSID, head().object).state, HeadState::Damaged, "{at}");
        }
        assert_eq!(bad(&bytes[..100], FSID, head().object).state, HeadState::Damaged);
    }
}
