//! SETXATTR, GETXATTR, LISTXATTR and REMOVEXATTR: extended attributes of the `user` namespace (RFC 8276).

use crate::Errno;
use crate::control::Control;
use crate::fs::{Answer, FileSystem};
use crate::reply::{Body, Reply};
use crate::request::Header;
use client::XattrMode;

const EINVAL: Errno = Errno(22);
const ERANGE: Errno = Errno(34);
const ENODATA: Errno = Errno(61);
const EOPNOTSUPP: Errno = Errno(95);
const PREFIX: &[u8] = b"user.";

/// Returns the name without the prefix `user.`, or `None` for other namespaces, which are not supported.
fn below_user(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(PREFIX)
}

/// Executes SETXATTR; `flags` are `XATTR_CREATE` and `XATTR_REPLACE`.
pub(crate) async fn set(fs: &FileSystem, header: &Header, name: &[u8], value: &[u8], flags: u32) -> Answer {
    let name = below_user(name).ok_or(EOPNOTSUPP)?;
    let mode = match flags {
        0 => XattrMode::Either,
        1 => XattrMode::Create,
        2 => XattrMode::Replace,
        _ => return Err(EINVAL),
    };
    if let Some(control) = Control::of(name) {
        return fs.set_control(header, control, Some(value)).map(|()| Reply::Done);
    }
    fs.by_name(header).setxattr(&fs.node(header)?, name, value, mode).await?;
    Ok(Reply::Done)
}

/// Returns the reply with `value`, or with the length of `value` if `size` is 0. Fails with ERANGE if `value` is longer
/// than `size` bytes.
fn sized(value: Vec<u8>, size: u32) -> Answer {
    match size {
        0 => Ok(Body::with_capacity(8).u32(value.len() as u32).u32(0).reply()),
        room if (room as usize) < value.len() => Err(ERANGE),
        _ => Ok(Reply::Bytes(value)),
    }
}

/// Executes GETXATTR.
pub(crate) async fn get(fs: &FileSystem, header: &Header, name: &[u8], size: u32) -> Answer {
    let name = below_user(name).ok_or(ENODATA)?;
    if let Some(control) = Control::of(name) {
        return sized(fs.control(header, control).await?, size);
    }
    let value = fs.by_name(header).getxattr(&fs.node(header)?, name).await?;
    sized(value.to_vec(), size)
}

/// Executes LISTXATTR: returns all names, each followed by a zero byte.
pub(crate) async fn list(fs: &FileSystem, header: &Header, size: u32) -> Answer {
    let names = fs.by_name(header).listxattr(&fs.node(header)?).await?;
    let mut all = Vec::new();
    for name in names {
        all.extend_from_slice(PREFIX);
        all.extend_from_slice(&name);
        all.push(0);
    }
    sized(all, size)
}

/// Executes REMOVEXATTR.
pub(crate) async fn remove(fs: &FileSystem, header: &Header, name: &[u8]) -> Answer {
    let name = below_user(name).ok_or(ENODATA)?;
    if let Some(control) = Control::of(name) {
        return fs.set_control(header, control, None).map(|()| Reply::Done);
    }
    fs.by_name(header).removexattr(&fs.node(header)?, name).await?;
    Ok(Reply::Done)
}
