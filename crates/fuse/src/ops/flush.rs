//! FLUSH: close(2) of one of a file's descriptors.

use crate::fs::{Answer, FileSystem};
use crate::reply::Reply;
use crate::request::Header;

/// See the head of this file. What was written is durable and known to the mgr afterwards, or close(2) fails; the caller's
/// locks by fcntl(2) go. A failure is not used up by it: any process that inherited the descriptor closes it, and whoever
/// wrote wants to know.
pub(crate) async fn flush(fs: &FileSystem, header: &Header, fh: u64, lock_owner: u64) -> Answer {
    let open = fs.opens.file(fh)?;
    let mut written = Ok(());
    if let Some(due) = open.due() {
        // Apart, for most requests need not carry room for it.
        written = Box::pin(open.file.flush()).await;
        match written {
            Ok(()) => open.made_durable(due),
            Err(_) => fs.has_lost_pages(header.node),
        }
    }
    // Before the answer: what follows it may be the kernel's last word of this open.
    fs.opens.flushed(fh, &open, header.pid);
    fs.opens.unlock_all(&open.file, lock_owner).await?;
    written?;
    Ok(Reply::Done)
}
