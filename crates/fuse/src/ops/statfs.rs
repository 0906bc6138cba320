//! STATFS: returns the capacity of the file system.

use crate::fs::{Answer, FileSystem};

/// Executes STATFS.
pub(crate) async fn statfs(fs: &FileSystem) -> Answer {
    Ok(crate::reply::statfs(&fs.callers.anybody().statfs().await?))
}
