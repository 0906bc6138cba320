//! WRITE: bytes for an open file.

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
use types::{Attrs, ByteRange, SetAttrs};

const EIO: Errno = Errno(5);

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
    // Of pages that it writes back the kernel says so when it has seen such bits.
    let seen = (open.cached && fs.write_back.is_on()) || !open.plain.load(Relaxed);
    if write_flags & abi::WRITE_KILL_SUIDGID != 0 && seen {
        // As what follows: apart, for most writes need room for none of it.
        Box::pin(fs.drop_privileges(header, &open.file.node())).await?;
        open.plain.store(true, Relaxed);
    }
    let of_pages = write_flags & abi::WRITE_CACHE != 0;
    if of_pages && fs.write_back.is_on() && fs.write_back.is_given_up(header.node) {
        return Err(EIO);
    }
    let len = data.len() as u32;
    let _write = open.begin_write(of_pages);
    let flags = OFlags::from_bits_retain(flags);
    let appends = flags.contains(OFlags::APPEND);
    fs.believes_end(header.node, (!appends).then(|| offset.saturating_add(len.into())));
    let past = match of_pages || open.cached {
        true => None,
        false => {
            let range = if appends { ByteRange::ALL } else { ByteRange { offset, len: len.into() } };
            Some(open.mapped().write_past(range).await)
        }
    };
    if !of_pages && open.cached {
        open.mapped().has_now(offset, &data);
    }
    let outcome = put(fs, header, &open, (offset, data), (of_pages, flags)).await;
    if let Some(past) = past {
        if fs.write_back.is_on() {
            // Before it is looked who reads pages: who opens it from here on gets them anew.
            fs.nodes.written_past(header.node);
        }
        if fs.opens.are_pages_read(header.node) {
            // The kernel has forgotten them before it asked, and may have got some again before these bytes were there.
            Box::pin(fs.forget_pages(header.node)).await;
        } else if let Some((range, mark)) = past.written() {
            Box::pin(fs.forget_pages_of(header.node, range)).await;
            past.forgotten(mark);
        }
    }
    outcome?;
    Ok(Body::with_capacity(8).u32(len).u32(0).reply())
}

/// Hands the bytes on, of the kernel's pages or a program's own.
async fn put(
    fs: &FileSystem,
    header: &Header,
    open: &OpenFile,
    (offset, data): (u64, Bytes),
    (of_pages, flags): (bool, OFlags),
) -> Result<(), Errno> {
    if of_pages && (fs.write_back.is_shared(header.node) || !fs.write_back.is_written(header.node)) {
        Box::pin(put_pages(fs, header, open, offset, data)).await?;
    } else if flags.contains(OFlags::APPEND) {
        if fs.write_back.is_written(header.node) {
            // The end of the file may be in the page cache.
            Box::pin(fs.forget_pages(header.node)).await;
        }
        Box::pin(open.file.append(data)).await?;
    } else if of_pages {
        // The kernel keeps one error of all pages, and takes this page for lost: who wrote is told by fsync or close.
        open.file.write_behind(offset, data).await?;
    } else {
        open.file.write_at(offset, data).await?;
    }
    if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
        Box::pin(open.file.fsync()).await?;
    } else if flags.contains(OFlags::DIRECT) && open.file.policy().access != Access::ODirect {
        // It became so behind the open, by fcntl(2).
        Box::pin(open.file.push()).await?;
    }
    Ok(())
}

/// Hands on what is written back of pages of which others change bytes, too.
async fn put_pages(fs: &FileSystem, header: &Header, open: &OpenFile, offset: u64, data: Bytes) -> Result<(), Errno> {
    if fs.write_back.is_shared(header.node) {
        let (runs, end) = fs.write_back.changed(header.node, offset, &data);
        let reached = runs.last().map_or(0, |(offset, data)| offset + data.len() as u64);
        open.file.write_list(runs).await?;
        if let Some(end) = end.filter(|end| *end > reached) {
            open.file.grow(end).await?;
        }
        return Ok(());
    }
    let (_back, runs) = open.mapped().write_back(offset, &data);
    let runs = runs.into_iter().map(|run| (offset + run.start as u64, data.slice(run)));
    Ok(open.file.write_list_behind(runs.collect()).await?)
}

impl FileSystem {
    /// Takes these bits away before an open file is changed in a way of which the kernel does not say whether the caller may keep them: root may.
    pub(crate) async fn drop_privileges_of(&self, header: &Header, open: &OpenFile) -> Result<(), Errno> {
        if self.drops_privileges.load(Relaxed) && header.uid != 0 && !open.plain.load(Relaxed) {
            self.drop_privileges(header, &open.file.node()).await?;
            open.plain.store(true, Relaxed);
        }
        Ok(())
    }

    /// Takes the setuid and setgid bits away before somebody writes to a file or cuts it who may not keep them; its
    /// attributes then.
    pub(crate) async fn drop_privileges(&self, header: &Header, node: &Node) -> Result<Attrs, Errno> {
        let attrs = self.callers.anybody().getattr(node).await?;
        // Without the group's right to execute, setgid means something else (mandatory locks of old) and stays.
        let setgid = if attrs.mode & 0o10 != 0 { 0o2000 } else { 0 };
        let mode = attrs.mode & !(0o4000 | setgid);
        if mode == attrs.mode {
            return Ok(attrs);
        }
        // Its owner may, and whoever writes may not: it is asked in the mount's own name.
        let changes = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
        let attrs = match self.callers.anybody().setattr(node, &changes).await {
            Err(_) => self.acting(header).setattr(node, &changes).await?,
            Ok(attrs) => attrs,
        };
        // The kernel leaves that to us, and goes on with the mode it knows.
        self.renew(node.id.0, &attrs);
        Ok(attrs)
    }
}
