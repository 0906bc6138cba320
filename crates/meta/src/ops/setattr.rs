//! SETATTR: changes attributes by the rules of chmod(2), chown(2), truncate(2) and utimensat(2) (RFC 8881 §18.30).

use super::Plan;
use crate::Changed;
use crate::engine::Expect;
use crate::inode_lifetime::time;
use crate::permission::{S_ISGID, may_write, owns, without_set_ids};
use crate::schema::{self, Body, Core, Intent, Record, SizeDelta, TailDelta};
use crate::tx::Tx;
use types::{FileId, FileKind, SetAttrs, SetTime, Status, limits};

/// Changes the attributes in `set`: owner and group first, then size, then mode, then times.
///
/// `writable` means that the caller has the file open for writing, so a new size needs no further permission.
/// `truncates` means that objects of the file may be longer than a new size allows. The intent to truncate the objects
/// then remains until the caller has truncated them.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, set: &SetAttrs, writable: bool, truncates: bool) -> Plan<Changed> {
    let before = tx.rely_on(id)?;
    if set.is_empty() {
        let attrs = before.attrs(id, &tx.tail(id)?);
        return super::known(Changed { before: attrs, after: attrs });
    }
    // A nearly full store accepts this batch: the batch replaces records, and a truncate frees space.
    tx.frees();
    let mut after = before.clone();
    let mut delta = TailDelta { ctime: Some(tx.now), ..TailDelta::default() };
    change_owner(tx, &mut after, set)?;
    if let Some(size) = set.size {
        change_size(tx, &before, &mut after, size, writable)?;
        trim(tx, id, &before, size)?;
        delta.size = SizeDelta::Set(size, tx.now);
    }
    if let Some(mode) = set.mode {
        if !owns(tx.cred, &before) {
            return Err(Status::Perm);
        }
        if mode > 0o7777 {
            return Err(Status::Inval);
        }
        let insider = tx.cred.is_root() || tx.cred.in_group(after.gid);
        after.mode = if insider { mode } else { mode & !S_ISGID };
    }
    may_set_times(tx, &before, set, writable)?;
    delta.atime = set.atime.map(|set| time(set, tx.now));
    delta.mtime = set.mtime.map(|set| time(set, tx.now));
    if after != before {
        tx.put_core(id, &after);
    }
    if truncates && let Some(size) = set.size {
        let intent = Intent::Truncate(size);
        tx.put(schema::intent_key(id, intent.kind()), intent.to_value());
    }
    let index = tx.change_tail(id, delta);
    Ok(Box::new(move |settled| {
        let (before, after) = settled.attrs(id, (&before, &after), index)?;
        Ok(Changed { before, after })
    }))
}

fn change_owner(tx: &Tx<'_>, file: &mut Core, set: &SetAttrs) -> Result<(), Status> {
    let cred = tx.cred;
    let owner = cred.uid == file.uid;
    let uid_ok = |uid| cred.is_root() || (owner && uid == file.uid);
    let gid_ok = |gid| cred.is_root() || (owner && (gid == file.gid || cred.in_group(gid)));
    if !set.uid.is_none_or(uid_ok) || !set.gid.is_none_or(gid_ok) {
        return Err(Status::Perm);
    }
    if (set.uid.is_some() || set.gid.is_some()) && file.kind() != FileKind::Directory {
        file.mode = without_set_ids(file.mode, file.gid, cred);
    }
    file.uid = set.uid.unwrap_or(file.uid);
    file.gid = set.gid.unwrap_or(file.gid);
    Ok(())
}

fn change_size(tx: &Tx<'_>, before: &Core, file: &mut Core, size: u64, writable: bool) -> Result<(), Status> {
    match before.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Status::IsDir),
        _ => return Err(Status::Inval),
    }
    if !writable {
        may_write(tx.cred, before)?;
    }
    if size > limits::FILE_SIZE_MAX {
        return Err(Status::FBig);
    }
    if !tx.cred.is_root() {
        file.mode = without_set_ids(file.mode, before.gid, tx.cred);
    }
    Ok(())
}

/// Removes the inline bytes beyond the new file size. Otherwise these bytes would reappear if the file grew again.
fn trim(tx: &mut Tx<'_>, id: FileId, before: &Core, size: u64) -> Result<(), Status> {
    let Body::Regular { layout: Some(layout), .. } = &before.body else { return Ok(()) };
    if layout.is_final() {
        return Ok(());
    }
    if layout.is_moving() {
        // The mgr is moving the inline bytes to objects, and truncating the inline bytes would not truncate the
        // objects. So the client must retry the truncate after the move.
        return Err(Status::Delay);
    }
    let key = schema::bytes_key(id);
    match tx.get(&key)? {
        // The precondition makes the batch conflict if a client writes inline bytes concurrently.
        None => tx.expect(Expect::Absent(key)),
        Some(bytes) => {
            tx.expect(Expect::Reads(key.clone(), bytes.clone()));
            match size {
                0 => tx.delete(key),
                size if size < bytes.len() as u64 => tx.put(key, bytes.slice(..size as usize)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Checks the permission to set times. Only the owner may set a time other than the current one, or set only one of
/// access time and modification time. Callers with write permission may set both times to the current time. Setting
/// current times together with the size needs no more permission than setting the size.
fn may_set_times(tx: &Tx<'_>, file: &Core, set: &SetAttrs, writable: bool) -> Result<(), Status> {
    let times = [set.atime, set.mtime];
    if times == [None; 2] || owns(tx.cred, file) {
        return Ok(());
    }
    let chosen = times.iter().any(|time| matches!(time, Some(SetTime::To(_))));
    match set.size {
        _ if chosen => Err(Status::Perm),
        Some(_) if writable => Ok(()),
        None if times.contains(&None) => Err(Status::Perm),
        _ => may_write(tx.cred, file),
    }
}
