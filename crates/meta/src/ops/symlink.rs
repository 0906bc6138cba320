//! Creation of symbolic links (CREATE of NF4LNK, RFC 8881 §18.4).

use super::Plan;
use crate::Made;
use crate::inode_lifetime::begin;
use crate::permission::{may_change_names, may_search};
use crate::schema::{Body, Dentry};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, FileKind, SetAttrs, Status, limits};

/// Creates the symbolic link `id` under `name` in `dir`. As on Linux, the mode of the link is 0777, whatever `set`
/// contains.
pub(crate) fn plan(tx: &mut Tx<'_>, dir: FileId, name: &[u8], target: &[u8], set: &SetAttrs, id: FileId) -> Plan<Made> {
    types::name::check(name)?;
    match target {
        // For an empty target, NFS requires INVAL, while symlink(2) on Linux returns ENOENT.
        [] => return Err(Status::Inval),
        _ if target.len() > limits::PATH_MAX => return Err(Status::NameTooLong),
        _ if target.contains(&0) => return Err(Status::Inval),
        _ => {}
    }
    let parent = tx.rely_on_dir(dir)?;
    may_search(tx.cred, &parent)?;
    let place = tx.place(dir, name)?;
    if place.found.is_some() {
        return Err(Status::Exist);
    }
    may_change_names(tx.cred, &parent)?;
    let set = SetAttrs { mode: Some(0o777), ..*set };
    let body = Body::Symlink { target: Bytes::copy_from_slice(target) };
    let (core, tail) = begin(tx.cred, tx.now, &parent, &set, body)?;
    tx.put_inode(id, &core, &tail);
    let entry = Dentry { child: id, kind: FileKind::Symlink, name: Bytes::copy_from_slice(name) };
    tx.add_name(dir, &place, &entry)?;
    let touch = tx.change_dir(dir, 1, 0);
    let attrs = core.attrs(id, &tx.told(tail));
    Ok(Box::new(move |settled| Ok(Made { attrs, dir: settled.change(touch)? })))
}
