//! RENAME: moves a name, over an existing one if need be (RFC 8881 §18.26, rename(2)).

use super::Plan;
use crate::Renamed;
use crate::life::lose_name;
use crate::permission::{may_change_names, may_search, may_take_away, may_write};
use crate::schema::{Body, Core, Dentry};
use crate::tx::{Found, Touch, Tx, check_name};
use types::{FileId, FileKind, Status};

/// One of the two names: its directory and itself.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) dir: FileId,
    pub(crate) name: &'a [u8],
}

/// Moves the name `from` to `to`.
pub(crate) fn plan(tx: &mut Tx<'_>, from: End<'_>, to: End<'_>) -> Plan<Renamed> {
    check_name(from.name)?;
    check_name(to.name)?;
    let from_core = tx.rely_on_dir(from.dir)?;
    let to_core = if from.dir == to.dir { from_core.clone() } else { tx.rely_on_dir(to.dir)? };
    may_search(tx.cred, &from_core)?;
    may_search(tx.cred, &to_core)?;
    let moved = tx.rely_on_name(from.dir, from.name)?;
    let id = moved.entry.child;
    let corrupt = |status| if status == Status::Stale { Status::Corrupt } else { status };
    let core = tx.rely_on(id).map_err(corrupt)?;
    let is_dir = core.kind() == FileKind::Directory;
    if is_dir {
        keep_out_of_itself(tx, id, to.dir, &to_core)?;
    }
    let place = tx.place(to.dir, to.name)?;
    if place.found.as_ref().is_some_and(|found| found.entry.child == id) {
        // Two names of one file: nothing happens (rename(2)).
        return unchanged(tx, from.dir, to.dir);
    }
    if let Some(found) = place.found.as_ref().filter(|found| found.entry.kind == FileKind::Directory) {
        keep_what_holds_it(tx, found.entry.child, from.dir, &from_core)?;
    }
    may_change_names(tx.cred, &from_core)?;
    may_take_away(tx.cred, &from_core, &core)?;
    may_change_names(tx.cred, &to_core)?;
    let target = match &place.found {
        Some(found) => {
            tx.rely_on_found(found);
            let target = tx.rely_on(found.entry.child).map_err(corrupt)?;
            may_take_away(tx.cred, &to_core, &target)?;
            match (is_dir, target.kind() == FileKind::Directory) {
                (true, false) => return Err(Status::NotDir),
                (false, true) => return Err(Status::IsDir),
                _ => Some((found.clone(), target)),
            }
        }
        None => None,
    };
    if is_dir && from.dir != to.dir {
        // Its `..` changes.
        may_write(tx.cred, &core)?;
    }
    let replaced = match &target {
        Some((found, target)) => {
            let replaced = lose_name(tx, found.entry.child, target, || false)?;
            tx.redirect(found, id, core.kind());
            Some(replaced)
        }
        None => {
            let entry = Dentry { child: id, kind: core.kind(), name: bytes::Bytes::copy_from_slice(to.name) };
            tx.add_name(to.dir, &place, &entry)?;
            None
        }
    };
    move_name(tx, &moved, to.dir, core);
    let (from, to) = count(tx, (from.dir, to.dir), is_dir, target.is_some());
    Ok(Box::new(move |settled| {
        let replaced = replaced.map(|lost| lost.settle(settled)).transpose()?;
        Ok(Renamed { from: settled.change(from)?, to: settled.change(to)?, replaced })
    }))
}

/// `Inval` if `to` is `moved` or below it; relies on every directory from `to` to the root staying where it is, so that
/// no two moves together make a loop.
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

/// `NotEmpty` if `target` is `from` or above it, for then it holds what is to be moved. Nothing is relied on: that it
/// comes to hold it meanwhile is met as any directory that is not empty.
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

fn move_name(tx: &mut Tx<'_>, moved: &Found, to: FileId, mut core: Core) {
    tx.delete(moved.key.clone());
    let id = moved.entry.child;
    if let Body::Directory { parent } = &mut core.body
        && *parent != to
    {
        *parent = to;
        tx.put_core(id, &core);
    }
    tx.touch(id);
}

/// Counts names and subdirectories of the two directories.
fn count(tx: &mut Tx<'_>, (from, to): (FileId, FileId), is_dir: bool, replaces: bool) -> (Touch, Touch) {
    let dirs = |names: i32| if is_dir { names } else { 0 };
    let gained = if replaces { 0 } else { 1 };
    if from == to {
        let touch = tx.change_dir(from, gained - 1, dirs(gained - 1));
        return (touch, touch);
    }
    (tx.change_dir(from, -1, dirs(-1)), tx.change_dir(to, gained, dirs(gained)))
}
