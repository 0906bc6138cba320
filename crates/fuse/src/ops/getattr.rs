//! GETATTR: the attributes of a file; and STATX, which is the same with when it was made.

use crate::callers;
use crate::fs::{Answer, FileSystem};
use crate::request::Header;

/// See the head of this file.
pub(crate) async fn getattr(fs: &FileSystem, header: &Header, fh: Option<u64>) -> Answer {
    let open = fh.and_then(|fh| fs.opens.file(fh).ok());
    if open.is_none()
        && let Some(told) = fs.told_lately(header)
    {
        return Ok(told);
    }
    let shared = fs.write_back.is_shared(header.node);
    if shared {
        // What is written next begins with what there is.
        fs.forget_pages(header.node).await;
    }
    let attrs = match (open, fs.nodes.just_changed(header.node)) {
        (Some(open), _) => open.file.refresh().await?,
        (None, Some(attrs)) => attrs,
        (None, None) => fs.callers.anybody().getattr(&fs.node(header)?).await?,
    };
    // Whoever has the inode locked cannot wait for who corrects what the kernel believes; who is about to write has not.
    if shared && callers::is_writing(header.pid) && fs.write_back.beliefs.set_by(header.pid).is_none() {
        Box::pin(fs.agree_to_write(header.node, &attrs)).await?;
    } else {
        fs.agree(header.pid, header.node, &attrs).await;
    }
    Ok(fs.attributes(header, &attrs))
}
