//! READLINK: returns the target of a symbolic link.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;

/// Executes READLINK.
pub(crate) async fn readlink(fs: &FileSystem, header: &Header) -> Answer {
    let target = fs.acting(header).readlink(&fs.node(header)?).await?;
    Ok(Reply::Bytes(target.to_vec()))
}
