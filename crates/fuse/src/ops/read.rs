//! READ: bytes of an open file.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;

/// See the head of this file. Fewer bytes than asked for mean the end of the file.
pub(crate) async fn read(fs: &FileSystem, fh: u64, offset: u64, size: u32) -> Answer {
    let open = fs.opens.file(fh)?;
    let found = open.file.read_at(offset, size as usize).await?;
    Ok(Reply::Read(found.segments))
}
