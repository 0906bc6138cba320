//! WRITE: writes bytes to an open file.

use crate::Errno;
use crate::abi;
use crate::fs::{Answer, FileSystem};
use crate::opens::OpenFile;
use crate::reply::Body;
use crate::request::Header;
use bytes::Bytes;
use client::{Access, Node};
use rustix::fs::OFlags;
use std::sync::atomic::Ordering::Relaxed;
use types::{Attrs, SetAttrs};

const EIO: Errno = Errno(5);

/// Executes WRITE. Replies as soon as the bytes fit into the client's write window. With `O_SYNC` or `O_DSYNC`, replies
/// when the servers have made the bytes durable. An append waits for the mgr, because only the mgr knows the end of the
/// file.
pub(crate) async fn write(
    fs: &FileSystem,
    header: &Header,
    fh: u64,
    (offset, data): (u64, Bytes),
    (write_flags, flags): (u32, u32),
) -> Answer {
    let open = fs.opens.file(fh)?;
    // When the kernel writes back pages, it sets `WRITE_KILL_SUIDGID` only if it has seen setuid or setgid bits. So
    // check the bits at each write-back with this flag, even if an earlier write through this open has found the bits
    // clear.
    let seen = (open.pages.is_cached() && fs.coherence.writes_back()) || !open.plain.load(Relaxed);
    if write_flags & abi::WRITE_KILL_SUIDGID != 0 && seen {
        // Boxed, so that most writes, which do not need this future, reserve no memory for it.
        Box::pin(fs.drop_privileges(header, &open.file.node())).await?;
        open.plain.store(true, Relaxed);
    }
    let of_pages = write_flags & abi::WRITE_CACHE != 0;
    if of_pages && fs.coherence.refuses_pages(header.node) {
        return Err(EIO);
    }
    let len = data.len() as u32;
    let _write = open.begin_write(of_pages);
    let flags = OFlags::from_bits_retain(flags);
    let appends = flags.contains(OFlags::APPEND);
    let past = fs.coherence.write_begins(header.node, &open.pages, (offset, &data), (of_pages, appends)).await;
    let outcome = put(fs, header, &open, (offset, data), (of_pages, flags)).await;
    if let Some(past) = past {
        fs.coherence.write_ended(header.node, past).await;
    }
    fs.coherence.write_is_replied(header.node, (offset, len), appends, outcome.is_ok());
    outcome?;
    Ok(Body::with_capacity(8).u32(len).u32(0).reply())
}

/// Writes bytes to the file: bytes of dirty pages that the kernel writes back (`of_pages`), or bytes that a program has
/// passed to write(2).
async fn put(
    fs: &FileSystem,
    header: &Header,
    open: &OpenFile,
    (offset, data): (u64, Bytes),
    (of_pages, flags): (bool, OFlags),
) -> Result<(), Errno> {
    if of_pages && fs.coherence.are_pages_of_several(header.node) {
        Box::pin(fs.coherence.write_pages_of_several(header.node, open, offset, data)).await?;
    } else if flags.contains(OFlags::APPEND) {
        if fs.coherence.is_written(header.node) {
            // The kernel's page cache may have bytes after the end of the file that the mgr knows. So make the kernel
            // write its pages back before the mgr chooses the offset of the append.
            Box::pin(fs.coherence.drop_pages(header.node)).await;
        }
        Box::pin(open.file.append(data)).await?;
    } else if of_pages {
        // The kernel keeps one error for all dirty pages of a file, and considers a page with an error lost. It reports
        // the error to the writer at fsync or close. So this write must not return the error of an earlier write.
        open.file.write_behind(offset, data).await?;
    } else {
        open.file.write_at(offset, data).await?;
    }
    if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
        Box::pin(open.file.fsync()).await?;
    } else if flags.contains(OFlags::DIRECT) && open.file.policy().access != Access::Unbuffered {
        // The program set O_DIRECT after the open, with fcntl(2), so send the bytes to the servers before the reply.
        Box::pin(open.file.push()).await?;
    }
    Ok(())
}

impl FileSystem {
    /// Clears the setuid and setgid bits before a change of an open file, except for root. For such a change, the
    /// kernel does not say whether the caller may keep the bits.
    pub(crate) async fn drop_privileges_of(&self, header: &Header, open: &OpenFile) -> Result<(), Errno> {
        if self.drops_privileges.load(Relaxed) && header.uid != 0 && !open.plain.load(Relaxed) {
            self.drop_privileges(header, &open.file.node()).await?;
            open.plain.store(true, Relaxed);
        }
        Ok(())
    }

    /// Clears the setuid and setgid bits before a caller that may not keep them writes to a file or truncates it.
    /// Returns the attributes after the change.
    pub(crate) async fn drop_privileges(&self, header: &Header, node: &Node) -> Result<Attrs, Errno> {
        let attrs = self.callers.anybody().getattr(node).await?;
        // Without execute permission for the group, the setgid bit does not give the group's rights (the bit once
        // meant mandatory locking), so keep the bit.
        let setgid = if attrs.mode & 0o10 != 0 { 0o2000 } else { 0 };
        let mode = attrs.mode & !(0o4000 | setgid);
        if mode == attrs.mode {
            return Ok(attrs);
        }
        // Only root and the owner of the file may change its mode, and the writer may be another user. So try the
        // credentials of the mount process first.
        let changes = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
        let attrs = match self.callers.anybody().setattr(node, &changes).await {
            Err(_) => self.acting(header).setattr(node, &changes).await?,
            Ok(attrs) => attrs,
        };
        // The kernel leaves the clearing of these bits to the mount, and does not change the mode in its cache. So make
        // the kernel expire its cached attributes of the file.
        self.coherence.attributes_fetched(node.id.0, &attrs);
        Ok(attrs)
    }
}
