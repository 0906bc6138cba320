//! Upper bound of the size of a COMPOUND reply, computed from the arguments before the server executes the request.

use types::limits;
use wire::nfs4::*;

/// Longest request that [`reply_bound`] scans, in bytes. For longer requests [`reply_bound`] returns the largest size
/// of an RPC record.
const LOOKED_AT: usize = 16 << 10;
/// Upper bound of the size of a result with all attributes of one file and without bulk data, in bytes.
const PLAIN: usize = 2 << 10;

/// Upper bound, in bytes, of the size of the result of an operation for which [`reply_bound`] has no bound of its own.
const OTHER: usize = 192;
const GETATTR: u32 = OP_GETATTR as u32;
const LOCK: u32 = OP_LOCK as u32;
const LOCKT: u32 = OP_LOCKT as u32;

/// Returns an upper bound of the size of the results of this COMPOUND in bytes, at most the largest size of an RPC
/// record.
///
/// The function does not decode the operations. Each operation begins at a multiple of four bytes, so the function
/// treats every word that equals an operation number as an operation. A false match only makes the bound larger.
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
            // `count`, the length of the read, is the seventh 4-byte word after the operation number, behind stateid
            // and offset.
            PLAIN + (word(at + 7) as usize).min(limits::PAYLOAD_MAX)
        } else if number == OP_READDIR as u32 {
            // `maxcount` is the sixth 4-byte word after the operation number, behind cookie, verifier and `dircount`.
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
            // `OTHER` bytes suffice for a result with stateids, filehandles or `change_info4`.
            OTHER
        };
        if sum >= limits::RECORD_MAX {
            return limits::RECORD_MAX;
        }
    }
    sum
}
