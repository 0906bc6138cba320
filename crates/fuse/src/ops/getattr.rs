//! GETATTR: the attributes of a file.

use crate::fs::{Answer, FileSystem};
use crate::request::Header;

/// See the head of this file.
pub(crate) async fn getattr(fs: &FileSystem, header: &Header, fh: Option<u64>) -> Answer {
    let open = fh.and_then(|fh| fs.opens.file(fh).ok());
    let attrs = match (open, fs.nodes.just_changed(header.node)) {
        (Some(open), _) => open.file.refresh().await?,
        (None, Some(attrs)) => attrs,
        (None, None) => fs.callers.anybody().getattr(&fs.node(header)?).await?,
    };
    Ok(fs.attributes(header, &attrs))
}
