//! SYMLINK: creates a symbolic link.

use crate::fs::{Answer, FileSystem};
use crate::reply::Body;
use crate::request::Header;

/// Executes SYMLINK.
pub(crate) async fn symlink(fs: &FileSystem, header: &Header, name: &[u8], target: &[u8]) -> Answer {
    let (mount, dir) = (fs.by_name(header), fs.node(header)?);
    let _changing = fs.coherence.directory_changes(header.node);
    let (node, attrs) = client::in_doubt::make(|| mount.symlink(&dir, name, target)).await?;
    Ok(fs.entry(Body::with_capacity(128), header, name, (&node, &attrs)).reply())
}
