//! FLUSH: close(2) of one of a file's descriptors.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use std::sync::atomic::Ordering::Relaxed;

/// See the head of this file. What was written is durable and known to the mgr afterwards, or close(2) fails; the caller's
/// locks by fcntl(2) go.
pub(crate) async fn flush(fs: &FileSystem, fh: u64, lock_owner: u64) -> Answer {
    let open = fs.opens.file(fh)?;
    let written = if open.written.swap(false, Relaxed) { open.file.fsync().await } else { Ok(()) };
    open.unlock_all(lock_owner).await?;
    written?;
    Ok(Reply::Done)
}
