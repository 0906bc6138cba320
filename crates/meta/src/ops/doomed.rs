//! The list of doomed files: deleted files whose objects may still exist on iods.

use crate::Doomed;
use crate::engine::Walk;
use crate::schema::{self, Record};
use crate::tx::Tx;
use types::{FileId, Status};

/// Returns up to `max` doomed files with inode numbers above `after`. Skips damaged records, which `weir fsck` reports.
pub(crate) fn read(tx: &Tx<'_>, after: FileId, max: usize) -> Result<Vec<Doomed>, Status> {
    let mut doomed = Vec::new();
    let Some(next) = after.0.checked_add(1) else { return Ok(doomed) };
    let from = schema::doomed_key(FileId(next));
    tx.survey(&from, &schema::past_all(&from), usize::MAX, &mut |key, value| {
        match value.and_then(Doomed::look) {
            Some(record) => doomed.push(record),
            None => {
                tracing::error!(key = %key.escape_ascii(), "the record of a file to delete is damaged: run `weir fsck`")
            }
        }
        if doomed.len() < max { Walk::On } else { Walk::Stop }
    })?;
    Ok(doomed)
}
