//! LOOKUP: finds the file that has a given name in a directory (RFC 8881 §18.13).

use crate::permission::may_search;
use crate::tx::Tx;
use types::{Attrs, FileId, FileKind, Status};

/// Returns the attributes of the file `name` in `dir`; `Symlink` if `dir` is a symbolic link.
pub(crate) fn read(tx: &Tx<'_>, dir: FileId, name: &[u8]) -> Result<Attrs, Status> {
    types::name::check(name)?;
    let core = tx.core(dir)?;
    match core.kind() {
        FileKind::Directory => may_search(tx.cred, &core)?,
        FileKind::Symlink => return Err(Status::Symlink),
        _ => return Err(Status::NotDir),
    }
    let found = tx.place(dir, name)?.found.ok_or(Status::NoEnt)?;
    // The view is consistent, so a directory entry that refers to a missing file is damage.
    tx.attrs(found.entry.child).map_err(|status| if status == Status::Stale { Status::Corrupt } else { status })
}
