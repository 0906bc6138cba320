//! The checksum at the end of every stored record. The checksum covers the key too, so a value that is stored under a
//! wrong key is detected.

use crate::log::crc32c;
use crc_fast::{CrcAlgorithm, Digest};

/// Length in bytes of the checksum that follows the value of a record.
pub(super) const SEAL: usize = 4;

/// Maximum total length of key and value, in bytes, for which both are copied into one buffer to compute the checksum
/// faster. Nearly all records are this short.
const SMALL: usize = 254;

fn crc(key: &[u8], value: &[u8]) -> [u8; SEAL] {
    let len = key.len() + value.len();
    if len <= SMALL {
        // Copy the key length, the key and the value into one buffer. One CRC-32C call on the buffer takes half the
        // time of three calls.
        let mut joined = [0; 2 + SMALL];
        joined[..2].copy_from_slice(&(key.len() as u16).to_be_bytes());
        joined[2..2 + key.len()].copy_from_slice(key);
        joined[2 + key.len()..2 + len].copy_from_slice(value);
        return crc32c(&joined[..2 + len]).to_be_bytes();
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    // The checksum also covers the length of the key. So two records with the same bytes, but with different
    // boundaries between key and value, have different checksums.
    digest.update(&(key.len() as u16).to_be_bytes());
    digest.update(key);
    digest.update(value);
    (digest.finalize() as u32).to_be_bytes()
}

/// Writes the stored form of `value` to `out`: the value, followed by the checksum of `key` and `value`.
pub(super) fn seal(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(value);
    out.extend_from_slice(&crc(key, value));
}

/// Returns the value from the stored form of a record; `None` if the checksum does not match.
pub(super) fn open<'s>(key: &[u8], sealed: &'s [u8]) -> Option<&'s [u8]> {
    let (value, seal) = sealed.split_last_chunk::<SEAL>()?;
    (crc(key, value) == *seal).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_covers_every_bit_of_key_and_value() {
        let mut sealed = Vec::new();
        seal(b"key", b"value", &mut sealed);
        // The expected checksum is the CRC-32C of the key length 00 03 and the text "keyvalue".
        assert_eq!(sealed, [&b"value"[..], &crc32c(b"\x00\x03keyvalue").to_be_bytes()].concat());
        // The computation for short records and the computation for long records give the same checksum.
        for len in [SMALL - 4, SMALL - 3, SMALL - 2, 1000] {
            let value = vec![0x5a; len];
            seal(b"key", &value, &mut sealed);
            assert_eq!(sealed[len..], crc32c(&[&b"\x00\x03key"[..], &value].concat()).to_be_bytes());
        }
        seal(b"key", b"value", &mut sealed);
        assert_eq!(open(b"key", &sealed), Some(&b"value"[..]));
        for bit in 0..8 * sealed.len() {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(b"key", &damaged), None, "bit {bit}");
        }
        (0..sealed.len()).for_each(|len| assert_eq!(open(b"key", &sealed[..len]), None, "{len} bytes"));
        for key in [&b"kez"[..], b"ke", b"keyv", b""] {
            assert_eq!(open(key, &sealed), None);
        }
        // A record with the same bytes, but with a different boundary between key and value, does not match the
        // checksum.
        seal(b"keyv", b"alue", &mut sealed);
        assert_eq!(open(b"key", &[b"v", &sealed[..]].concat()), None);
        seal(b"", b"", &mut sealed);
        assert_eq!(open(b"", &sealed), Some(&b""[..]));
    }
}
