//! STATFS: capacity of the file system.

use crate::fs::{Answer, FileSystem};

/// See the head of this file.
pub(crate) async fn statfs(fs: &FileSystem) -> Answer {
    Ok(crate::reply::statfs(&fs.callers.anybody().statfs().await?))
}
