//! MKNOD: creates a special file, or a regular file without opening it.

use crate::Errno;
use crate::fs::{Answer, FileSystem};
use crate::reply::{Body, device_numbers};
use crate::request::Header;
use client::CreateOptions;
use types::FileKind;

const EINVAL: Errno = Errno(22);

/// Executes MKNOD. `mode` contains the type bits of `st_mode`.
pub(crate) async fn mknod(fs: &FileSystem, header: &Header, name: &[u8], mode: u32, rdev: u32) -> Answer {
    let (mount, dir) = (fs.by_name(header), fs.node(header)?);
    let _changing = fs.coherence.directory_changes(header.node);
    let permissions = mode & 0o7777;
    let kind = match mode & 0o170_000 {
        0o010_000 => FileKind::Fifo,
        0o020_000 => FileKind::Char,
        0o060_000 => FileKind::Block,
        0o140_000 => FileKind::Socket,
        0 | 0o100_000 => {
            let options = CreateOptions { mode: permissions, exclusive: true, ..CreateOptions::default() };
            let file = mount.create(&dir, name, options).await?;
            let (node, attrs) = (file.node(), file.attrs());
            Box::pin(file.close()).await?;
            return Ok(fs.entry(Body::with_capacity(128), header, name, (&node, &attrs)).reply());
        }
        _ => return Err(EINVAL),
    };
    let rdev = device_numbers(rdev);
    let (node, attrs) = client::in_doubt::make(|| mount.mknod(&dir, name, kind, permissions, rdev)).await?;
    Ok(fs.entry(Body::with_capacity(128), header, name, (&node, &attrs)).reply())
}
