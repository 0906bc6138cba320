//! WRITE: bytes for an open file.

use crate::Errno;
use crate::abi;
use crate::fs::{Answer, FileSystem};
use crate::opens::OpenFile;
use crate::reply::Body;
use crate::request::Header;
use bytes::Bytes;
use client::Access;
use rustix::fs::OFlags;
use std::sync::atomic::Ordering::Relaxed;
use types::SetAttrs;

/// See the head of this file. Answered when the window has room for the bytes, save for files opened with `O_SYNC` or
/// `O_DSYNC`, and with `O_APPEND`: where the end of the file is, only the mgr knows.
pub(crate) async fn write(
    fs: &FileSystem,
    header: &Header,
    fh: u64,
    (offset, data): (u64, Bytes),
    (write_flags, flags): (u32, u32),
) -> Answer {
    let open = fs.opens.file(fh)?;
    if write_flags & abi::WRITE_KILL_SUIDGID != 0 && !open.plain.load(Relaxed) {
        // As what follows: apart, for most writes need room for none of it.
        Box::pin(drop_privileges(fs, header, &open)).await?;
    }
    let len = data.len() as u32;
    open.written.store(true, Relaxed);
    let flags = OFlags::from_bits_retain(flags);
    if flags.contains(OFlags::APPEND) {
        Box::pin(open.file.append(data)).await?;
    } else {
        open.file.write_at(offset, data).await?;
    }
    if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
        Box::pin(open.file.fsync()).await?;
    } else if flags.contains(OFlags::DIRECT) && open.file.policy().access != Access::ODirect {
        // It became so behind the open, by fcntl(2).
        open.file.push().await?;
    }
    Ok(Body::with_capacity(8).u32(len).u32(0).reply())
}

/// Takes the setuid and setgid bits away before somebody writes who may not keep them.
async fn drop_privileges(fs: &FileSystem, header: &Header, open: &OpenFile) -> Result<(), Errno> {
    let mount = fs.acting(header);
    let attrs = open.file.refresh().await?;
    // Without the group's right to execute, setgid means something else (mandatory locks of old) and stays.
    let setgid = if attrs.mode & 0o10 != 0 { 0o2000 } else { 0 };
    let mode = attrs.mode & !(0o4000 | setgid);
    if mode != attrs.mode {
        // Its owner may, and whoever writes may not: it is asked in the mount's own name.
        let changes = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
        let asked = fs.callers.anybody().setattr(&open.file.node(), &changes).await;
        if asked.is_err() {
            mount.setattr(&open.file.node(), &changes).await?;
        }
    }
    open.plain.store(true, Relaxed);
    Ok(())
}
