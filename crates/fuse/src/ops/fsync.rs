//! FSYNC: makes all earlier writes of a file durable, and its size too.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;

/// Executes FSYNC. On a mount with synchronous writes, each write also ends with FSYNC. Its bytes are written back by
/// then, and need not be durable unless the program asked for that.
pub(crate) async fn fsync(fs: &FileSystem, header: &Header, fh: u64) -> Answer {
    let open = fs.opens.file(fh)?;
    fs.write_back.thread_writes(header.node, header.pid, None);
    if !open.is_synchronous() && fs.ends_lazy_write(header).await {
        return Ok(Reply::Done);
    }
    let due = open.due();
    open.file.fsync().await.inspect_err(|_| fs.has_lost_pages(header.node))?;
    if let Some(due) = due {
        open.made_durable(due);
    }
    Ok(Reply::Done)
}
