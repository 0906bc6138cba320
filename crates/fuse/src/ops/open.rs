//! OPEN: opening a file that is there.

use crate::fs::{Answer, FileSystem};
use crate::reply::{Body, opened};
use crate::request::Header;
use client::OpenFlags;
use rustix::fs::OFlags;

/// What open(2) asked for, in the client's words.
fn open_flags(flags: u32) -> OpenFlags {
    let flags = OFlags::from_bits_retain(flags);
    let write = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    OpenFlags {
        read: !flags.contains(OFlags::WRONLY) || flags.contains(OFlags::RDWR),
        write,
        truncate: write && flags.contains(OFlags::TRUNC),
    }
}

/// See the head of this file. The attributes that come with it are news for the kernel: what others did up to their closing
/// of the file is seen from here on.
pub(crate) async fn open(fs: &FileSystem, header: &Header, flags: u32) -> Answer {
    let node = fs.node(header)?;
    let file = fs.acting(header).open(&node, open_flags(flags)).await?;
    let changed = fs.renew(header.node, &file.attrs());
    let handle = fs.opens.add_file(file);
    Ok(opened(Body::with_capacity(16), handle, fs.open_flags(flags, changed)).reply())
}
