//! FLUSH: the request that the kernel sends for each close(2) of a descriptor of an open file.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;

/// Executes FLUSH. If close(2) succeeds, all writes are durable and the mgr knows the file size. Also releases the
/// caller's fcntl(2) locks. Each close reports a failed write: a process that only inherited the descriptor may close
/// it first, and the writer has to see the failure too.
pub(crate) async fn flush(fs: &FileSystem, header: &Header, fh: u64, lock_owner: u64) -> Answer {
    let open = fs.opens.file(fh)?;
    let mut written = Ok(());
    if let Some(due) = open.due() {
        // Boxed, so that requests that need no flush reserve no memory for the flush.
        written = Box::pin(open.file.flush()).await;
        match written {
            Ok(()) => open.made_durable(due),
            Err(_) => fs.coherence.write_failed(header.node),
        }
    }
    // Record the close in the table of lock owners before the reply. After the reply, the kernel may send RELEASE for
    // this open, and the record of the RELEASE must replace the record of the close.
    fs.opens.flushed(fh, &open, header.pid);
    fs.opens.unlock_all(&open.file, lock_owner).await?;
    written?;
    Ok(Reply::Done)
}
