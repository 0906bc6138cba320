//! LINK: adds a name to an existing file (RFC 8881 §18.9).

use super::Plan;
use crate::Made;
use crate::permission::{may_change_names, may_search};
use crate::schema::Dentry;
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, FileKind, Status, limits};

/// Adds the name `name` in `dir` to the file `id`. `IsDir` if the file is a directory, `NoEnt` if the file has already
/// lost its last name.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, dir: FileId, name: &[u8]) -> Plan<Made> {
    types::name::check(name)?;
    let parent = tx.rely_on_dir(dir)?;
    let before = tx.rely_on(id)?;
    may_search(tx.cred, &parent)?;
    let place = tx.place(dir, name)?;
    if place.found.is_some() {
        return Err(Status::Exist);
    }
    may_change_names(tx.cred, &parent)?;
    if before.kind() == FileKind::Directory {
        return Err(Status::IsDir);
    }
    match before.names {
        0 => return Err(Status::NoEnt),
        limits::LINK_MAX.. => return Err(Status::MLink),
        _ => {}
    }
    let mut after = before.clone();
    after.names += 1;
    tx.put_core(id, &after);
    let child = tx.touch(id);
    let entry = Dentry { child: id, kind: after.kind(), name: Bytes::copy_from_slice(name) };
    tx.add_name(dir, &place, &entry)?;
    let touch = tx.change_dir(dir, 1, 0);
    Ok(Box::new(move |settled| {
        let (_, attrs) = settled.attrs(id, (&before, &after), child)?;
        Ok(Made { attrs, dir: settled.change(touch)? })
    }))
}
