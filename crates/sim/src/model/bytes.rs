//! The contents of test writes: each byte identifies the write that it comes from.

use super::ChangeId;
use bytes::Bytes;

/// Returns the byte that a change writes at an offset; never zero.
pub fn pattern(change: ChangeId, at: u64) -> u8 {
    let mixed = (u64::from(change) << 32 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as u8 % 255 + 1
}

/// Returns the bytes of a whole write.
pub fn payload(change: ChangeId, offset: u64, len: u64) -> Bytes {
    (offset..offset + len).map(|at| pattern(change, at)).collect()
}
