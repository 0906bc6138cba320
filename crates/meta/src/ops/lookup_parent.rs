//! LOOKUPP: finds the parent of a directory (RFC 8881 §18.14).

use crate::permission::may_search;
use crate::tx::Tx;
use types::{Attrs, FileId, FileKind, Status};

/// Returns the attributes of the parent of `dir`; `NoEnt` for the root.
pub(crate) fn read(tx: &Tx<'_>, dir: FileId) -> Result<Attrs, Status> {
    let core = tx.core(dir)?;
    if core.kind() == FileKind::Symlink {
        return Err(Status::Symlink);
    }
    let parent = Tx::parent_in(&core)?;
    may_search(tx.cred, &core)?;
    if dir == FileId::ROOT { Err(Status::NoEnt) } else { tx.attrs(parent) }
}
