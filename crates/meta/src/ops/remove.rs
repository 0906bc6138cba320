//! REMOVE: removes the name of a file or of an empty directory (RFC 8881 §18.25).

use super::Plan;
use crate::Removed;
use crate::inode_lifetime::lose_name;
use crate::permission::{may_change_names, may_search, may_take_away};
use crate::tx::Tx;
use types::{FileId, FileKind, Status};

/// Removes `name` from `dir`. A regular file that loses its last name is deleted if `ends` returns true for its inode
/// number; otherwise it becomes an orphan.
pub(crate) fn plan(tx: &mut Tx<'_>, dir: FileId, name: &[u8], ends: &impl Fn(FileId) -> bool) -> Plan<Removed> {
    types::name::check(name)?;
    let parent = tx.rely_on_dir(dir)?;
    may_search(tx.cred, &parent)?;
    let found = tx.rely_on_name(dir, name)?;
    let child = found.entry.child;
    let core = tx.rely_on(child).map_err(|s| if s == Status::Stale { Status::Corrupt } else { s })?;
    may_change_names(tx.cred, &parent)?;
    may_take_away(tx.cred, &parent, &core)?;
    tx.frees();
    // `ends` returns whether no client has the file open. Call `ends` after all other checks, because once it returns
    // true, the NFS server blocks opens of the file until the removal completes.
    let ends = || ends(child);
    let file = lose_name(tx, child, &core, ends)?;
    tx.delete(found.key);
    let subdirs = if core.kind() == FileKind::Directory { -1 } else { 0 };
    let touch = tx.change_dir(dir, -1, subdirs);
    let end = file.end();
    Ok(Box::new(move |settled| Ok(Removed { file: file.settle(settled)?, end, dir: settled.change(touch)? })))
}
