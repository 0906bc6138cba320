//! RELEASE: closes a file after its last descriptor is closed.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use std::sync::Arc;

/// Executes RELEASE. No caller waits for the reply: FLUSH has already reported errors.
pub(crate) async fn release(fs: &FileSystem, fh: u64) -> Answer {
    let open = fs.opens.take_file(fh)?;
    let synchronous = fs.coherence.writes_synchronously();
    fs.opens.unlock_open(fh, &open).await?;
    // An abandoned request may still use the open file. If so, the file closes when the abandoned request ends.
    if let Ok(open) = Arc::try_unwrap(open).map_err(drop) {
        open.leave().await?;
    }
    if synchronous {
        fs.coherence.closed();
    }
    Ok(Reply::Done)
}
