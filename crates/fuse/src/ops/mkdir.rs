//! MKDIR: creates a directory.

use crate::fs::{Answer, FileSystem};
use crate::reply::Body;
use crate::request::Header;

/// Executes MKDIR. The kernel has already applied the umask to `mode`.
pub(crate) async fn mkdir(fs: &FileSystem, header: &Header, name: &[u8], mode: u32) -> Answer {
    let (mount, dir) = (fs.by_name(header), fs.node(header)?);
    let _changing = fs.coherence.directory_changes(header.node);
    let (node, attrs) = client::in_doubt::make(|| mount.mkdir(&dir, name, mode & 0o7777)).await?;
    Ok(fs.entry(Body::with_capacity(128), header, name, (&node, &attrs)).reply())
}
