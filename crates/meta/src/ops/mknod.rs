//! Creation of device nodes, sockets and named pipes (CREATE, RFC 8881 §18.4).

use super::Plan;
use crate::Made;
use crate::inode_lifetime::begin;
use crate::permission::{may_change_names, may_search};
use crate::schema::{Body, Dentry};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, FileKind, SetAttrs, Status};

/// Creates the special file `id` under `name` in `dir`. Only the superuser may create device nodes.
pub(crate) fn plan(
    tx: &mut Tx<'_>,
    dir: FileId,
    name: &[u8],
    kind: FileKind,
    rdev: (u32, u32),
    set: &SetAttrs,
    id: FileId,
) -> Plan<Made> {
    types::name::check(name)?;
    let body = match kind {
        FileKind::Block => Body::Block(rdev.0, rdev.1),
        FileKind::Char => Body::Char(rdev.0, rdev.1),
        FileKind::Socket => Body::Socket,
        FileKind::Fifo => Body::Fifo,
        FileKind::Regular | FileKind::Directory | FileKind::Symlink => return Err(Status::BadType),
    };
    let parent = tx.rely_on_dir(dir)?;
    may_search(tx.cred, &parent)?;
    let place = tx.place(dir, name)?;
    if place.found.is_some() {
        return Err(Status::Exist);
    }
    may_change_names(tx.cred, &parent)?;
    if matches!(kind, FileKind::Block | FileKind::Char) && !tx.cred.is_root() {
        return Err(Status::Perm);
    }
    let (core, tail) = begin(tx.cred, tx.now, &parent, set, body)?;
    tx.put_inode(id, &core, &tail);
    let entry = Dentry { child: id, kind, name: Bytes::copy_from_slice(name) };
    tx.add_name(dir, &place, &entry)?;
    let touch = tx.change_dir(dir, 1, 0);
    let attrs = core.attrs(id, &tx.told(tail));
    Ok(Box::new(move |settled| Ok(Made { attrs, dir: settled.change(touch)? })))
}
