//! RENAME: renames a directory entry, replaces an existing entry, or exchanges two entries (RFC 8881 §18.26,
//! rename(2)).

use super::Plan;
use crate::Renamed;
use crate::inode_lifetime::lose_name;
use crate::permission::{may_change_names, may_search, may_take_away, may_write};
use crate::schema::{Body, Core, Dentry};
use crate::tx::{Found, Place, Touch, Tx};
use types::{FileId, FileKind, Renaming, Status};

/// The source or the target of a rename: a directory, and a name in this directory.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) dir: FileId,
    pub(crate) name: &'a [u8],
}

/// Renames the entry `from` to `to`, or exchanges both entries.
pub(crate) fn plan(tx: &mut Tx<'_>, from: End<'_>, to: End<'_>, how: Renaming) -> Plan<Renamed> {
    types::name::check(from.name)?;
    types::name::check(to.name)?;
    let from_core = tx.rely_on_dir(from.dir)?;
    let to_core = if from.dir == to.dir { from_core.clone() } else { tx.rely_on_dir(to.dir)? };
    may_search(tx.cred, &from_core)?;
    may_search(tx.cred, &to_core)?;
    let found = tx.rely_on_name(from.dir, from.name)?;
    let place = tx.place(to.dir, to.name)?;
    match how {
        Renaming::NoReplace if place.found.is_some() => return Err(Status::Exist),
        Renaming::Exchange if place.found.is_none() => return Err(Status::NoEnt),
        _ => {}
    }
    let core = tx.rely_on(found.entry.child).map_err(corrupt)?;
    if core.kind() == FileKind::Directory {
        keep_out_of_itself(tx, found.entry.child, to.dir, &to_core)?;
    }
    if place.found.as_ref().is_some_and(|other| other.entry.child == found.entry.child) {
        // If both names refer to the same file, rename(2) requires that nothing changes.
        return unchanged(tx, from.dir, to.dir);
    }
    let old = Side { dir: from.dir, dir_core: from_core, found, core };
    match (how, &place.found) {
        (Renaming::Exchange, Some(other)) => {
            let core = tx.rely_on(other.entry.child).map_err(corrupt)?;
            exchange(tx, old, Side { dir: to.dir, dir_core: to_core, found: other.clone(), core })
        }
        _ => replace(tx, old, to, &to_core, &place),
    }
}

/// An existing directory entry, with the core record of its directory and the core record of the file to which it
/// refers.
struct Side {
    dir: FileId,
    dir_core: Core,
    found: Found,
    core: Core,
}

impl Side {
    fn id(&self) -> FileId {
        self.found.entry.child
    }

    fn is_dir(&self) -> bool {
        self.core.kind() == FileKind::Directory
    }
}

/// Maps `Stale` to `Corrupt`: a file to which a directory entry refers must exist.
fn corrupt(status: Status) -> Status {
    if status == Status::Stale { Status::Corrupt } else { status }
}

/// Renames the entry `old` to `to`. `place` is the hash bucket of the new name. If an entry with the new name exists,
/// the file of that entry loses the name.
fn replace(tx: &mut Tx<'_>, old: Side, to: End<'_>, to_core: &Core, place: &Place) -> Plan<Renamed> {
    let is_dir = old.is_dir();
    if let Some(found) = place.found.as_ref().filter(|found| found.entry.kind == FileKind::Directory) {
        keep_what_holds_it(tx, found.entry.child, old.dir, &old.dir_core)?;
    }
    may_change_names(tx.cred, &old.dir_core)?;
    may_take_away(tx.cred, &old.dir_core, &old.core)?;
    may_change_names(tx.cred, to_core)?;
    let target = match &place.found {
        Some(found) => {
            tx.rely_on_found(found);
            let target = tx.rely_on(found.entry.child).map_err(corrupt)?;
            may_take_away(tx.cred, to_core, &target)?;
            match (is_dir, target.kind() == FileKind::Directory) {
                (true, false) => return Err(Status::NotDir),
                (false, true) => return Err(Status::IsDir),
                _ => Some((found.clone(), target)),
            }
        }
        None => None,
    };
    if is_dir && old.dir != to.dir {
        // Moving a directory to another parent changes its `..` entry, so the caller needs write permission on the
        // moved directory.
        may_write(tx.cred, &old.core)?;
    }
    let replaced = match &target {
        Some((found, target)) => {
            let replaced = lose_name(tx, found.entry.child, target, || false)?;
            tx.redirect(found, old.id(), old.core.kind());
            Some(replaced)
        }
        None => {
            let name = bytes::Bytes::copy_from_slice(to.name);
            let entry = Dentry { child: old.id(), kind: old.core.kind(), name };
            tx.add_name(to.dir, place, &entry)?;
            None
        }
    };
    tx.delete(old.found.key.clone());
    let from = old.dir;
    enter(tx, old, to.dir);
    let (from, to) = count(tx, (from, to.dir), is_dir, target.is_some());
    Ok(Box::new(move |settled| {
        let replaced = replaced.map(|lost| lost.settle(settled)).transpose()?;
        Ok(Renamed { from: settled.change(from)?, to: settled.change(to)?, replaced })
    }))
}

/// Exchanges the files of two directory entries (`RENAME_EXCHANGE` of renameat2(2)).
fn exchange(tx: &mut Tx<'_>, old: Side, new: Side) -> Plan<Renamed> {
    if new.is_dir() {
        keep_out_of_itself(tx, new.id(), old.dir, &old.dir_core)?;
    }
    for side in [&old, &new] {
        may_change_names(tx.cred, &side.dir_core)?;
        may_take_away(tx.cred, &side.dir_core, &side.core)?;
    }
    let (from, to) = (old.dir, new.dir);
    for side in [&old, &new] {
        if side.is_dir() && from != to {
            // Moving a directory to another parent changes its `..` entry, so the caller needs write permission on the
            // moved directory.
            may_write(tx.cred, &side.core)?;
        }
    }
    tx.rely_on_found(&new.found);
    tx.redirect(&old.found, new.id(), new.core.kind());
    tx.redirect(&new.found, old.id(), old.core.kind());
    let gained = i32::from(old.is_dir()) - i32::from(new.is_dir());
    enter(tx, old, to);
    enter(tx, new, from);
    let (from, to) = if from == to {
        let touch = tx.change_dir(from, 0, 0);
        (touch, touch)
    } else {
        (tx.change_dir(from, 0, -gained), tx.change_dir(to, 0, gained))
    };
    Ok(Box::new(move |settled| Ok(Renamed { from: settled.change(from)?, to: settled.change(to)?, replaced: None })))
}

/// Returns `Inval` if the target directory `to` is the moved directory or its descendant. Adds preconditions on the
/// core records, which name the parents, of all directories from `to` up to the root. So two concurrent renames cannot
/// create a loop of directories.
fn keep_out_of_itself(tx: &mut Tx<'_>, moved: FileId, to: FileId, to_core: &Core) -> Result<(), Status> {
    let mut at = to;
    let mut parent = Tx::parent_in(to_core)?;
    loop {
        if at == moved {
            return Err(Status::Inval);
        }
        if at == FileId::ROOT {
            return Ok(());
        }
        at = parent;
        parent = Tx::parent_in(&tx.rely_on(at)?)?;
    }
}

/// Returns `NotEmpty` if `target`, the directory to be replaced, is the directory `from` or an ancestor of `from`. The
/// batch needs no precondition on these ancestors: if a concurrent rename moves `from` below `target`, `target` is no
/// longer empty, and the precondition that `target` is empty fails.
fn keep_what_holds_it(tx: &Tx<'_>, target: FileId, from: FileId, from_core: &Core) -> Result<(), Status> {
    let mut at = from;
    let mut parent = Tx::parent_in(from_core)?;
    while at != target {
        if at == FileId::ROOT {
            return Ok(());
        }
        at = parent;
        parent = Tx::parent_in(&tx.core(at)?)?;
    }
    Err(Status::NotEmpty)
}

fn unchanged(tx: &Tx<'_>, from: FileId, to: FileId) -> Plan<Renamed> {
    let (from, to) = (Touch::None(tx.tail(from)?.change), Touch::None(tx.tail(to)?.change));
    Ok(Box::new(move |settled| Ok(Renamed { from: settled.change(from)?, to: settled.change(to)?, replaced: None })))
}

/// Sets the change time of the file that a rename moves. If the file is a directory, also records `dir` as its parent.
fn enter(tx: &mut Tx<'_>, mut moved: Side, dir: FileId) {
    let id = moved.id();
    if let Body::Directory { parent } = &mut moved.core.body
        && *parent != dir
    {
        *parent = dir;
        tx.put_core(id, &moved.core);
    }
    tx.touch(id);
}

/// Updates the entry and subdirectory counts of the source and the target directory of a rename.
fn count(tx: &mut Tx<'_>, (from, to): (FileId, FileId), is_dir: bool, replaces: bool) -> (Touch, Touch) {
    let dirs = |names: i32| if is_dir { names } else { 0 };
    let gained = if replaces { 0 } else { 1 };
    if from == to {
        let touch = tx.change_dir(from, gained - 1, dirs(gained - 1));
        return (touch, touch);
    }
    (tx.change_dir(from, -1, dirs(-1)), tx.change_dir(to, gained, dirs(gained)))
}
