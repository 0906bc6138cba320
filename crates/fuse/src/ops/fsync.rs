//! FSYNC: everything written before is durable, the size too.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;

/// See the head of this file.
pub(crate) async fn fsync(fs: &FileSystem, fh: u64) -> Answer {
    let open = fs.opens.file(fh)?;
    let due = open.due();
    open.file.fsync().await?;
    if let Some(due) = due {
        open.made_durable(due);
    }
    Ok(Reply::Done)
}
