//! GETATTR: the attributes of a file.

use crate::fs::{Answer, FileSystem};
use crate::request::Header;

/// See the head of this file.
pub(crate) async fn getattr(fs: &FileSystem, header: &Header, fh: Option<u64>) -> Answer {
    let open = fh.and_then(|fh| fs.opens.file(fh).ok());
    if fs.write_back.is_shared(header.node) {
        // What is written next begins with what there is.
        fs.forget_pages(header.node).await;
    }
    let attrs = match (open, fs.nodes.just_changed(header.node)) {
        (Some(open), _) => open.file.refresh().await?,
        (None, Some(attrs)) => attrs,
        (None, None) => fs.callers.anybody().getattr(&fs.node(header)?).await?,
    };
    fs.agree(header.pid, header.node, &attrs).await;
    Ok(fs.attributes(header, &attrs))
}
