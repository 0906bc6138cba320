//! ACCESS: the rights that the permission bits of a file give the caller (RFC 8881 §18.1).

use crate::permission::{Rights, rights};
use crate::tx::Tx;
use types::{FileId, Status};

/// Returns the rights that the permission bits of a file give the caller.
pub(crate) fn read(tx: &Tx<'_>, id: FileId) -> Result<Rights, Status> {
    Ok(rights(tx.cred, &tx.core(id)?))
}
