//! Reads of inline files, whose bytes are stored with the metadata.

use crate::schema::{self, Body};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status};

/// Returns the inline bytes and the size of a file. Bytes of the file beyond the inline bytes are zeros. `None` if the
/// bytes of the file are in objects.
pub(crate) fn read(tx: &Tx<'_>, id: FileId) -> Result<Option<(Bytes, u64)>, Status> {
    let core = tx.core(id)?;
    let Body::Regular { layout, .. } = &core.body else { return Err(Status::WrongType) };
    if layout.as_ref().is_some_and(crate::Layout::is_final) {
        return Ok(None);
    }
    Ok(Some((tx.get(&schema::bytes_key(id))?.unwrap_or_default(), tx.tail(id)?.size)))
}
