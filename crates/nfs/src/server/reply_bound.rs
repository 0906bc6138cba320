//! An upper bound of the size of the reply to a COMPOUND, computed before the request is executed.

use types::limits;
use wire::nfs4::*;

/// Longer requests are not scanned: their replies may have any size.
const LOOKED_AT: usize = 16 << 10;
/// The size of a result without bulk data but with all attributes.
const PLAIN: usize = 2 << 10;

/// The largest result of any other operation.
const OTHER: usize = 192;
const GETATTR: u32 = OP_GETATTR as u32;
const LOCK: u32 = OP_LOCK as u32;
const LOCKT: u32 = OP_LOCKT as u32;

/// Returns the largest number of bytes that the results of this COMPOUND may have, up to the largest record.
///
/// Operations begin at multiples of four bytes, so an operation with a large result shows as a word with its number.
/// Another word with the same value makes the bound too large, never too small.
pub fn reply_bound(body: &[u8]) -> usize {
    if body.len() > LOOKED_AT {
        return limits::RECORD_MAX;
    }
    let word = |at: usize| body.get(4 * at..4 * at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let mut sum = PLAIN;
    for (at, bytes) in body.chunks_exact(4).enumerate() {
        let number = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if number < OP_ACCESS as u32 || number > OP_REMOVEXATTR as u32 {
            continue;
        }
        sum += if number == OP_READ as u32 || number == OP_READ_PLUS as u32 {
            // Stateid and offset come before the count.
            PLAIN + (word(at + 7) as usize).min(limits::PAYLOAD_MAX)
        } else if number == OP_READDIR as u32 {
            // Cookie, verifier and the limit of names come before the limit of the whole reply.
            PLAIN + (word(at + 6) as usize).min(limits::RECORD_MAX)
        } else if number == OP_GETXATTR as u32 || number == OP_LISTXATTRS as u32 {
            PLAIN + limits::XATTRS_BYTES_MAX.max(limits::XATTR_VALUE_MAX)
        } else if number == OP_GETDEVICEINFO as u32 || number == OP_LAYOUTGET as u32 {
            limits::LAYOUT_BODY_MAX
        } else if number == OP_READLINK as u32 || number == OP_TEST_STATEID as u32 {
            limits::PATH_MAX.max(4 * limits::STATEIDS_MAX)
        } else if matches!(number, GETATTR | LOCK | LOCKT) {
            PLAIN
        } else {
            // Stateids, filehandles, changes; the number may as well be a count or a length.
            OTHER
        };
        if sum >= limits::RECORD_MAX {
            return limits::RECORD_MAX;
        }
    }
    sum
}
