//! FSYNC: everything written before is durable, the size too.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use std::sync::atomic::Ordering::Relaxed;

/// See the head of this file.
pub(crate) async fn fsync(fs: &FileSystem, fh: u64) -> Answer {
    let open = fs.opens.file(fh)?;
    open.file.fsync().await?;
    open.written.store(false, Relaxed);
    Ok(Reply::Done)
}
