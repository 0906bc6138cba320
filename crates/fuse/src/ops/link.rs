//! LINK: creates another hard link to a file.

use crate::fs::{Answer, FileSystem};
use crate::reply::Body;
use crate::request::Header;

/// Executes LINK.
pub(crate) async fn link(fs: &FileSystem, header: &Header, oldnode: u64, name: &[u8]) -> Answer {
    let (mount, dir, node) = (fs.by_names(header, Some(oldnode)), fs.node(header)?, fs.nodes.get(oldnode)?);
    let _changing = fs.coherence.directory_changes(header.node);
    let attrs = client::in_doubt::link(&mount, &node, &dir, name).await?;
    Ok(fs.entry_made(Body::with_capacity(128), header, name, (&node, &attrs)).reply())
}
