//! READ: bytes of an open file.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;

/// See the head of this file. Fewer bytes than asked for mean the end of the file.
pub(crate) async fn read(fs: &FileSystem, header: &Header, fh: u64, (offset, size): (u64, u32)) -> Answer {
    let open = fs.opens.file(fh)?;
    let found = open.file.read_at(offset, size as usize).await?;
    if fs.write_back.is_shared(header.node) {
        fs.kernel_gets(header.node, (offset, size), &found.segments, open.cached);
    }
    Ok(Reply::Read(found.segments))
}
