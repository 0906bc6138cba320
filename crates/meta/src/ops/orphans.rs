//! The list of orphans: regular files without a name that clients may still have open.

use crate::engine::Walk;
use crate::schema;
use crate::tx::Tx;
use types::{FileId, Status};

/// Returns up to `max` orphans with inode numbers above `after`.
pub(crate) fn read(tx: &Tx<'_>, after: FileId, max: usize) -> Result<Vec<FileId>, Status> {
    let mut ids = Vec::new();
    let Some(next) = after.0.checked_add(1) else { return Ok(ids) };
    let from = schema::orphan_key(FileId(next));
    tx.survey(&from, &schema::past_all(&from), max, &mut |key, _| {
        ids.extend(schema::id_of(key));
        Walk::On
    })?;
    Ok(ids)
}
