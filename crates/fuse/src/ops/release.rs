//! RELEASE: nobody has an open file any more.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use std::sync::Arc;

/// See the head of this file. Nobody waits for it: what went wrong was told by FLUSH.
pub(crate) async fn release(fs: &FileSystem, fh: u64) -> Answer {
    let open = fs.opens.take_file(fh)?;
    let written = fs.write_back.sync.is_on();
    fs.opens.unlock_open(fh, &open).await?;
    // A request that was given up may still hold it, and closes it then.
    if let Ok(open) = Arc::try_unwrap(open).map_err(drop) {
        open.leave().await?;
    }
    if written && let Some(fs) = fs.shared() {
        tokio::spawn(async move { fs.settle_sync().await });
    }
    Ok(Reply::Done)
}
