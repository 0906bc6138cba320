//! READ: reads bytes of an open file.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;
use types::ByteRange;

/// Executes READ. A result shorter than requested means the end of the file.
pub(crate) async fn read(fs: &FileSystem, header: &Header, fh: u64, (offset, size): (u64, u32), past: bool) -> Answer {
    let open = fs.opens.file(fh)?;
    let range = ByteRange { offset, len: size.into() };
    let fill = fs.coherence.read_begins(header.node, &open.pages, range, past);
    let mut found = open.file.read_at(offset, size as usize).await?;
    if let Some(fill) = fill {
        fill.got(&found.segments);
    }
    // For a read past the page cache, the kernel writes back its pages of this range, but not pages behind it, which
    // extend the file. Pages that it reads in that range for a mapping stay locked until then.
    if past && found.len() < u64::from(size) && fs.coherence.is_written(header.node) {
        fs.coherence.forget_pages(header.node).await;
        found = open.file.read_at(offset, size as usize).await?;
    }
    if !past {
        fs.coherence.pages_read(header.node, (offset, size), &found.segments);
    }
    Ok(Reply::Read(found.segments))
}
