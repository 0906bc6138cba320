//! Files that are gone but whose objects may remain.

use crate::Doomed;
use crate::engine::Walk;
use crate::schema::{self, Record};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status};

/// Up to `max` doomed files with numbers above `after`.
pub(crate) fn read(tx: &Tx<'_>, after: FileId, max: usize) -> Result<Vec<Doomed>, Status> {
    let mut doomed = Vec::new();
    let Some(next) = after.0.checked_add(1) else { return Ok(doomed) };
    let from = schema::doomed_key(FileId(next));
    tx.scan(&from, &schema::past_all(&from), max, &mut |_, value| {
        doomed.push(Doomed::from_value(Bytes::copy_from_slice(value))?);
        Ok(Walk::On)
    })?;
    Ok(doomed)
}
