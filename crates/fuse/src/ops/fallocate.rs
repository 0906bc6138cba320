//! FALLOCATE: reserving room, and punching holes.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use types::ByteRange;

const EINVAL: Errno = Errno(22);
const EOPNOTSUPP: Errno = Errno(95);
/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;

/// See the head of this file. Room behind the end of a file that is to stay as short cannot be reserved.
pub(crate) async fn fallocate(fs: &FileSystem, fh: u64, (offset, length): (u64, u64), mode: u32) -> Answer {
    let open = fs.opens.file(fh)?;
    let range = ByteRange::new(offset, length).ok_or(EINVAL)?;
    match mode {
        0 => open.file.allocate(range).await?,
        mode if mode == PUNCH_HOLE | KEEP_SIZE => open.file.punch(range).await?,
        _ => return Err(EOPNOTSUPP),
    }
    Ok(Reply::Done)
}
