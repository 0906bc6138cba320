//! OPEN: opening a file that is there.

use crate::fs::{Answer, FileSystem, hint};
use crate::reply::{Body, opened};
use crate::request::Header;
use client::{OpenFlags, OpenOptions};
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
    let dir = fs.nodes.dir_of(header.node);
    let options = OpenOptions { flags: open_flags(flags), dir: dir.as_ref(), policy: hint(flags) };
    let file = fs.acting(header).open_with(&node, options).await?;
    let changed = fs.renew(header.node, &file.attrs());
    let how = fs.open_flags(&file, changed);
    Ok(opened(Body::with_capacity(16), fs.opens.add_file(file), how).reply())
}
