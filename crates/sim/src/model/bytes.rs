//! The contents of the writes of simulated clients: each byte identifies the write that stored it.

use super::ChangeId;
use bytes::Bytes;

/// Returns the byte that the change `change` writes at offset `at`. The byte is never zero.
pub fn pattern(change: ChangeId, at: u64) -> u8 {
    let mixed = (u64::from(change) << 32 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as u8 % 255 + 1
}

/// Returns all bytes of a write.
pub fn payload(change: ChangeId, offset: u64, len: u64) -> Bytes {
    (offset..offset + len).map(|at| pattern(change, at)).collect()
}
