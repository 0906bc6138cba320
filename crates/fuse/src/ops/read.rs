//! READ: reads bytes of an open file.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;
use types::ByteRange;

/// Executes READ. A result shorter than requested means the end of the file.
pub(crate) async fn read(fs: &FileSystem, header: &Header, fh: u64, (offset, size): (u64, u32), past: bool) -> Answer {
    let open = fs.opens.file(fh)?;
    if !past && fs.is_shared(header.node) {
        // Note this before the read, because the kernel reads ahead while it asks for attributes.
        fs.let_pages_linger(header.node, &open);
    }
    let fills = !past && !open.cached && !fs.write_back.is_written(header.node);
    let fill = fills.then(|| open.mapped().fill(ByteRange { offset, len: size.into() }));
    let mut found = open.file.read_at(offset, size as usize).await?;
    if let Some(fill) = fill {
        fill.got(&found.segments);
    }
    // For a read past the page cache, the kernel writes back its pages of this range, but not pages behind it, which
    // extend the file. Pages that it reads in that range for a mapping stay locked until then.
    if past && found.len() < u64::from(size) && fs.write_back.is_written(header.node) {
        fs.forget_pages(header.node).await;
        found = open.file.read_at(offset, size as usize).await?;
    }
    if !past && found.len() < u64::from(size) && !fs.write_back.is_on() {
        fs.nodes.ends(header.node, offset + found.len());
    }
    if !past && fs.write_back.is_shared(header.node) {
        fs.kernel_gets(header.node, (offset, size), &found.segments);
    }
    Ok(Reply::Read(found.segments))
}
