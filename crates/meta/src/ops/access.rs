//! ACCESS: what the caller may do with a file by its permission bits (RFC 8881 §18.1).

use crate::permission::{Rights, rights};
use crate::tx::Tx;
use types::{FileId, Status};

/// The rights of the caller.
pub(crate) fn read(tx: &Tx<'_>, id: FileId) -> Result<Rights, Status> {
    Ok(rights(tx.cred, &tx.core(id)?))
}
