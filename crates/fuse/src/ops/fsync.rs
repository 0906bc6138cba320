//! FSYNC: makes all earlier writes of a file, and the file size, durable.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;

/// Executes FSYNC. On a mount with synchronous writes, the kernel also sends FSYNC at the end of each write(2). The
/// bytes of the write(2) are written back by then, and need not be durable unless the program requires this.
pub(crate) async fn fsync(fs: &FileSystem, header: &Header, fh: u64) -> Answer {
    let open = fs.opens.file(fh)?;
    fs.coherence.fsync_begins(header.pid, header.node);
    if !open.is_synchronous() && fs.coherence.ends_lazy_write(header.pid).await {
        return Ok(Reply::Done);
    }
    let due = open.due();
    open.file.fsync().await.inspect_err(|_| fs.coherence.write_failed(header.node))?;
    if let Some(due) = due {
        open.made_durable(due);
    }
    Ok(Reply::Done)
}
