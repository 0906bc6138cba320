//! Creation of regular files: OPEN with a create (RFC 8881 §18.16).

use super::Plan;
use crate::inode_lifetime::begin;
use crate::permission::{may_change_names, may_search};
use crate::schema::{self, Body, Dentry, Intent, Record};
use crate::tx::Tx;
use crate::{ChangeInfo, CreateMode, Created, FileInfo, Layout};
use bytes::Bytes;
use types::{FileId, FileKind, Generation, Status, limits};

/// Creates the regular file `id` under `name`, or finds the existing file if `how` allows it. Unless `durable` is set,
/// the operation completes before the file is durable.
pub(crate) fn plan(
    tx: &mut Tx<'_>,
    dir: FileId,
    name: &[u8],
    how: &CreateMode,
    (layout, durable): (Option<&Layout>, bool),
    id: FileId,
) -> Plan<Created> {
    types::name::check(name)?;
    if layout.is_some_and(|layout| layout.body.len() > limits::LAYOUT_RECORD_MAX) {
        return Err(Status::TooBig);
    }
    let parent = tx.rely_on_dir(dir)?;
    may_search(tx.cred, &parent)?;
    let place = tx.place(dir, name)?;
    if let Some(found) = &place.found {
        return existing(tx, dir, found.entry.child, how);
    }
    may_change_names(tx.cred, &parent)?;
    let (set, verifier) = match how {
        CreateMode::Unchecked(set) | CreateMode::Guarded(set) => (set, None),
        CreateMode::Exclusive(verifier, set) => (set, Some(*verifier)),
    };
    let generation = Generation::default();
    if !durable {
        tx.not_durable();
    }
    let body = Body::Regular { generation, layout: layout.cloned(), verifier };
    let (core, tail) = begin(tx.cred, tx.now, &parent, set, body)?;
    tx.put_inode(id, &core, &tail);
    // Clients write to most new files soon after the create. Storing the intent `Written` (a client may be writing to
    // the file) in the same batch saves a later flush.
    tx.put(schema::intent_key(id, Intent::Written.kind()), Intent::Written.to_value());
    let entry = Dentry { child: id, kind: FileKind::Regular, name: Bytes::copy_from_slice(name) };
    tx.add_name(dir, &place, &entry)?;
    let touch = tx.change_dir(dir, 1, 0);
    let attrs = core.attrs(id, &tx.told(tail));
    let file = FileInfo { attrs, whole: 0, written: 0, generation, layout: layout.cloned() };
    Ok(Box::new(move |settled| Ok(Created { file, created: true, dir: settled.change(touch)? })))
}

fn existing(tx: &Tx<'_>, dir: FileId, id: FileId, how: &CreateMode) -> Plan<Created> {
    let core = tx.core(id)?;
    let created = match (how, &core.body) {
        (CreateMode::Unchecked(_), Body::Regular { .. }) => false,
        (CreateMode::Exclusive(mine, _), Body::Regular { verifier: Some(theirs), .. }) if mine == theirs => true,
        (CreateMode::Guarded(_) | CreateMode::Exclusive(..), _) => return Err(Status::Exist),
        (CreateMode::Unchecked(_), Body::Directory { .. }) => return Err(Status::IsDir),
        (CreateMode::Unchecked(_), Body::Symlink { .. }) => return Err(Status::Symlink),
        (CreateMode::Unchecked(_), _) => return Err(Status::WrongType),
    };
    let tail = tx.tail(id)?;
    let (attrs, whole, written) = (core.attrs(id, &tail), tail.whole, tail.written);
    let change = tx.tail(dir)?.change;
    let dir = ChangeInfo { before: change, after: change, atomic: true };
    let Body::Regular { generation, layout, .. } = core.body else { return Err(Status::WrongType) };
    super::known(Created { file: FileInfo { attrs, whole, written, generation, layout }, created, dir })
}
