//! Repairs of directory entries, and of the inodes to which the entries refer.

use super::records::absent;
use crate::check::{At, Mended};
use crate::engine::{Expect, Value, Walk};
use crate::schema::{self, Body, Core, Dentry, Record, Tail, XattrTally};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, FileKind, Status};

type Mending = Result<Mended, Status>;

/// Maximum depth of a directory in the tree. A chain of parents that is longer than this depth must be a loop.
const DEPTH_MAX: usize = types::limits::BATCH_EXPECTS_MAX;

/// Returns whether the directory entry is unchanged since `weir fsck` found the fault. If the entry is unchanged, adds
/// a precondition on the entry to the batch.
fn here(tx: &mut Tx<'_>, at: &At) -> Result<bool, Status> {
    let key = schema::dentry_key(at.dir, at.cookie);
    let value = Dentry { child: at.child, kind: at.kind, name: at.name.clone() }.to_value();
    if tx.get(&key)?.as_ref() != Some(&value) {
        return Ok(false);
    }
    tx.expect(Expect::Reads(key, value));
    Ok(true)
}

/// Removes a directory entry. Also changes the core record (type, owner, layout) of the file to which the entry refers.
/// As a result, a batch of another repair conflicts if that repair uses an older count of the file's entries.
fn take_away(tx: &mut Tx<'_>, at: &At) -> Result<(), Status> {
    tx.delete(schema::dentry_key(at.dir, at.cookie));
    let subdirs = if at.kind == FileKind::Directory { -1 } else { 0 };
    if counts(tx, at.dir, subdirs)? {
        tx.change_dir(at.dir, -1, subdirs);
    }
    if at.kind == FileKind::Directory || absent(tx, at.child)? {
        return Ok(());
    }
    match tx.rely_on(at.child) {
        Ok(mut core) => {
            core.xattrs.changes = core.xattrs.changes.wrapping_add(1);
            tx.put_core(at.child, &core);
            Ok(())
        }
        // The core record is damaged, so no repair has a precondition on it. Leave the record unchanged.
        Err(Status::Corrupt) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Returns whether the entry count and the subdirectory count that a directory records are large enough to subtract a
/// removed entry.
fn counts(tx: &Tx<'_>, dir: FileId, subdirs: i32) -> Result<bool, Status> {
    let value = match tx.get(&schema::tail_key(dir)) {
        Err(Status::Corrupt) => None,
        value => value?,
    };
    Ok(value
        .and_then(|value| Tail::look(&value))
        .is_some_and(|tail| tail.size > 0 && (subdirs == 0 || tail.subdirs > 0)))
}

/// Removes a directory entry that refers to an inode that does not exist.
pub(super) fn dangling(tx: &mut Tx<'_>, at: &At) -> Mending {
    if !here(tx, at)? || !absent(tx, at.child)? {
        return Ok(Mended::Gone);
    }
    take_away(tx, at)?;
    Ok(Mended::Yes)
}

/// Sets the file kind in a directory entry to the kind that the inode of the file records.
pub(super) fn kind(tx: &mut Tx<'_>, at: &At) -> Mending {
    if !here(tx, at)? || absent(tx, at.child)? {
        return Ok(Mended::Gone);
    }
    let kind = tx.rely_on(at.child)?.kind();
    if kind == at.kind {
        return Ok(Mended::Gone);
    }
    let entry = Dentry { child: at.child, kind, name: at.name.clone() };
    tx.put(schema::dentry_key(at.dir, at.cookie), entry.to_value());
    Ok(Mended::Yes)
}

/// Moves a directory entry to a cookie that the hash of its name allows. If the name is invalid, first replaces the
/// name with a generated name.
pub(super) fn cookie(tx: &mut Tx<'_>, at: &At) -> Mending {
    if !here(tx, at)? {
        return Ok(Mended::Gone);
    }
    let name = match types::name::check(&at.name) {
        Ok(()) => at.name.clone(),
        Err(_) => Bytes::from(format!("#{}-{:x}", at.child, at.cookie)),
    };
    let place = tx.place(at.dir, &name)?;
    match &place.found {
        Some(found) if found.key == schema::dentry_key(at.dir, at.cookie) => return Ok(Mended::Gone),
        // Another entry of the directory has this name, and lookups find the other entry. So remove the entry whose
        // cookie does not fit the name.
        Some(_) => take_away(tx, at)?,
        None => {
            tx.delete(schema::dentry_key(at.dir, at.cookie));
            tx.add_name(at.dir, &place, &Dentry { child: at.child, kind: at.kind, name })?;
        }
    }
    Ok(Mended::Yes)
}

/// Removes one of two directory entries with the same name in the same directory.
pub(super) fn twice(tx: &mut Tx<'_>, at: &At) -> Mending {
    if !here(tx, at)? {
        return Ok(Mended::Gone);
    }
    let bucket = tx.bucket(&at.name);
    let (from, to) = (schema::dentry_key(at.dir, bucket.start), schema::dentry_key(at.dir, at.cookie));
    let mut first = false;
    tx.survey(&from, &to, usize::MAX, &mut |_, value| {
        first |= value.and_then(Dentry::look).is_some_and(|entry| entry.name == at.name);
        Walk::On
    })?;
    if !first {
        return Ok(Mended::Gone);
    }
    take_away(tx, at)?;
    Ok(Mended::Yes)
}

/// Returns the entries in `dir` that refer to `child`.
fn names_in(tx: &Tx<'_>, dir: FileId, child: FileId) -> Result<Vec<At>, Status> {
    let mut found = Vec::new();
    let (from, to) = (schema::dentry_key(dir, 0), schema::dentries_end(dir));
    tx.survey(&from, &to, usize::MAX, &mut |key, value| {
        if let (Some(entry), Ok(cookie)) = (value.and_then(Dentry::look), schema::cookie_of(key))
            && entry.child == child
        {
            found.push(At { dir, cookie, name: entry.name, child, kind: entry.kind });
        }
        Walk::On
    })?;
    Ok(found)
}

fn parent_of(tx: &mut Tx<'_>, id: FileId) -> Result<Option<(Core, FileId)>, Status> {
    if absent(tx, id)? {
        return Ok(None);
    }
    let core = tx.rely_on(id)?;
    Ok(Tx::parent_in(&core).ok().map(|parent| (core, parent)))
}

/// Corrects the parent that a directory's inode records, if the recorded parent has no entry for the directory.
pub(super) fn parent(tx: &mut Tx<'_>, at: &At) -> Mending {
    if !here(tx, at)? {
        return Ok(Mended::Gone);
    }
    let Some((core, parent)) = parent_of(tx, at.child)? else { return Ok(Mended::Gone) };
    if parent == at.dir || !names_in(tx, parent, at.child)?.is_empty() {
        return Ok(Mended::Gone);
    }
    tx.put_core(at.child, &Core { body: Body::Directory { parent: at.dir }, ..core });
    Ok(Mended::Yes)
}

/// Removes a surplus directory entry that refers to a directory.
pub(super) fn second(tx: &mut Tx<'_>, at: &At) -> Mending {
    if !here(tx, at)? {
        return Ok(Mended::Gone);
    }
    let Some((_, parent)) = parent_of(tx, at.child)? else { return Ok(Mended::Gone) };
    let proper = names_in(tx, parent, at.child)?;
    let only = parent == at.dir && proper.first().is_none_or(|first| first.cookie == at.cookie);
    if at.child != FileId::ROOT && (only || proper.is_empty()) {
        return Ok(Mended::Gone);
    }
    take_away(tx, at)?;
    Ok(Mended::Yes)
}

/// Adds an entry for the inode `id` to the directory `lost`. The name of the entry is the inode number.
fn attach(tx: &mut Tx<'_>, lost: FileId, id: FileId, kind: FileKind) -> Result<(), Status> {
    let name = Bytes::from(format!("#{id}"));
    let place = tx.place(lost, &name)?;
    if place.found.is_some() {
        // A user has created a file with this name in `lost`, so the repair cannot use the name.
        return Err(Status::Exist);
    }
    tx.add_name(lost, &place, &Dentry { child: id, kind, name })?;
    tx.change_dir(lost, 1, i32::from(kind == FileKind::Directory));
    Ok(())
}

/// Creates the inode of a missing directory for which directory entries still exist.
pub(super) fn no_directory(tx: &mut Tx<'_>, dir: FileId, lost: Option<FileId>) -> Mending {
    let (entries, subdirs) = super::counts::inside(tx, dir)?;
    if entries == 0 {
        return Ok(Mended::Gone);
    }
    let Some(lost) = lost.filter(|lost| *lost != dir) else { return Ok(Mended::No) };
    if !absent(tx, dir)? {
        let is_dir = tx.rely_on(dir)?.kind() == FileKind::Directory;
        return Ok(if is_dir { Mended::Gone } else { Mended::No });
    }
    let body = Body::Directory { parent: lost };
    let core = Core { mode: 0o700, uid: 0, gid: 0, names: 1, btime: tx.now, xattrs: XattrTally::default(), body };
    let subdirs = u32::try_from(subdirs).unwrap_or(u32::MAX);
    let tail = Tail { size: entries, subdirs, ..Tail::new(tx.now, 0) };
    tx.put_inode(dir, &core, &tail);
    attach(tx, lost, dir, FileKind::Directory)?;
    Ok(Mended::Yes)
}

/// Moves a directory that is part of a loop of directories to the directory `lost`.
pub(super) fn circle(tx: &mut Tx<'_>, id: FileId, lost: Option<FileId>) -> Mending {
    let Some(lost) = lost.filter(|lost| *lost != id) else { return Ok(Mended::No) };
    let Some((core, parent)) = parent_of(tx, id)? else { return Ok(Mended::Gone) };
    let mut at = parent;
    for _ in 0..DEPTH_MAX {
        if at == id {
            for name in names_in(tx, parent, id)? {
                take_away(tx, &name)?;
            }
            tx.put_core(id, &Core { body: Body::Directory { parent: lost }, ..core });
            attach(tx, lost, id, FileKind::Directory)?;
            return Ok(Mended::Yes);
        }
        match parent_of(tx, at)? {
            Some((_, next)) if at != FileId::ROOT => at = next,
            _ => return Ok(Mended::Gone),
        }
    }
    Ok(Mended::No)
}

/// Adds an entry in the directory `lost` for an inode that has no entry, unless the core record (type, owner, layout)
/// of the inode no longer equals `core`, the record that `weir fsck` read.
pub(super) fn nameless(tx: &mut Tx<'_>, id: FileId, core: &Value, lost: Option<FileId>) -> Mending {
    let Some(lost) = lost.filter(|lost| *lost != id) else { return Ok(Mended::No) };
    let key = schema::core_key(id);
    if tx.get(&key)?.as_ref() != Some(core) {
        return Ok(Mended::Gone);
    }
    tx.expect(Expect::Reads(key, core.clone()));
    let mut core = Core::from_value(core.clone())?;
    core.names = 1;
    // Change the core record, so that a repair that is based on an older count of the file's entries conflicts.
    core.xattrs.changes = core.xattrs.changes.wrapping_add(1);
    if let Body::Directory { parent } = &mut core.body {
        *parent = lost;
    }
    tx.put_core(id, &core);
    attach(tx, lost, id, core.kind())?;
    Ok(Mended::Yes)
}
