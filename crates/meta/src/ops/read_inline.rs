//! Reading the bytes of an inline file, which has no objects.

use crate::schema::{self, Body};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status};

/// Returns the stored bytes and the size of the file, whose remaining bytes are zeros; `None` if its objects have the
/// bytes.
pub(crate) fn read(tx: &Tx<'_>, id: FileId) -> Result<Option<(Bytes, u64)>, Status> {
    let core = tx.core(id)?;
    let Body::Regular { layout, .. } = &core.body else { return Err(Status::WrongType) };
    if layout.as_ref().is_some_and(crate::Layout::is_final) {
        return Ok(None);
    }
    Ok(Some((tx.get(&schema::bytes_key(id))?.unwrap_or_default(), tx.tail(id)?.size)))
}
