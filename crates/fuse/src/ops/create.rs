//! CREATE: making a regular file and opening it.

use crate::fs::{Answer, FileSystem, hint};
use crate::reply::{Body, opened};
use crate::request::Header;
use client::{CreateOptions, OpenFlags};
use rustix::fs::OFlags;

/// See the head of this file. The kernel has applied the umask.
pub(crate) async fn create(fs: &FileSystem, header: &Header, name: &[u8], flags: u32, mode: u32) -> Answer {
    let (mount, dir) = (fs.acting(header), fs.node(header)?);
    let how = OFlags::from_bits_retain(flags);
    let write = how.intersects(OFlags::WRONLY | OFlags::RDWR);
    let read = !how.contains(OFlags::WRONLY) || how.contains(OFlags::RDWR);
    let options = CreateOptions {
        mode: mode & 0o7777,
        exclusive: how.contains(OFlags::EXCL),
        open: OpenFlags { read, write, truncate: write && how.contains(OFlags::TRUNC) },
        policy: hint(flags),
        ..CreateOptions::default()
    };
    let unseen = fs.nodes.unseen();
    let (file, after) = mount.create_telling(&dir, name, options).await?;
    fs.changed_in(header, after, unseen);
    let entry = fs.entry(Body::with_capacity(144), header, &file.node(), &file.attrs());
    let how = fs.open_flags(&file, true);
    Ok(opened(entry, fs.opens.add_file(file), how).reply())
}
