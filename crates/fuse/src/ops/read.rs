//! READ: reads bytes of an open file.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;
use types::ByteRange;

/// Executes READ. A result shorter than requested means the end of the file. `past`: the READ bypasses the page cache.
pub(crate) async fn read(fs: &FileSystem, header: &Header, fh: u64, (offset, size): (u64, u32), past: bool) -> Answer {
    let open = fs.opens.file(fh)?;
    let range = ByteRange { offset, len: size.into() };
    let fill = fs.coherence.read_begins(header.node, &open.pages, range, past);
    let mut found = open.file.read_at(offset, size as usize).await?;
    if let Some(fill) = fill {
        fill.got(&found.segments);
    }
    // Before a direct read, the kernel writes back its dirty pages of the range, but not later pages, which may extend
    // the file. So if the read ends early, make the kernel write back all pages, and read again. Do not do so in a read
    // into the page cache: the kernel keeps pages locked until the reply, so the write-back would hang.
    if past && found.len() < u64::from(size) && fs.coherence.is_written(header.node) {
        fs.coherence.drop_pages(header.node).await;
        found = open.file.read_at(offset, size as usize).await?;
    }
    if !past {
        fs.coherence.pages_read(header.node, (offset, size), &found.segments);
    }
    Ok(Reply::Read(found.segments))
}
