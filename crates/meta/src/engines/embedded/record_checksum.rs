//! The checksum after every record of the store, which binds the record to its key.

use crate::log::crc32c;
use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of the checksum that the store adds to a value.
pub(super) const SEAL: usize = 4;

/// Largest number of bytes of key and value that are copied together for their checksum; nearly all records are that
/// small.
const SMALL: usize = 254;

fn crc(key: &[u8], value: &[u8]) -> [u8; SEAL] {
    let len = key.len() + value.len();
    if len <= SMALL {
        // One pass over a copy takes half the time of three parts.
        let mut joined = [0; 2 + SMALL];
        joined[..2].copy_from_slice(&(key.len() as u16).to_be_bytes());
        joined[2..2 + key.len()].copy_from_slice(key);
        joined[2 + key.len()..2 + len].copy_from_slice(value);
        return crc32c(&joined[..2 + len]).to_be_bytes();
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    // The length of the key comes first, so that no other split into key and value has the same checksum.
    digest.update(&(key.len() as u16).to_be_bytes());
    digest.update(key);
    digest.update(value);
    (digest.finalize() as u32).to_be_bytes()
}

/// Sets `out` to the stored form of `value` under `key`: the value with its checksum.
pub(super) fn seal(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(value);
    out.extend_from_slice(&crc(key, value));
}

/// Returns the value from its stored form under `key`; `None` if the checksum does not match.
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
        // CRC-32C of 00 03 "keyvalue".
        assert_eq!(sealed, [&b"value"[..], &crc32c(b"\x00\x03keyvalue").to_be_bytes()].concat());
        // All ways to compute the checksum give the same result.
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
        // A different split into key and value does not match.
        seal(b"keyv", b"alue", &mut sealed);
        assert_eq!(open(b"key", &[b"v", &sealed[..]].concat()), None);
        seal(b"", b"", &mut sealed);
        assert_eq!(open(b"", &sealed), Some(&b""[..]));
    }
}
