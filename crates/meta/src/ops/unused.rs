//! The list of unused objects: the new objects of unfinished layout swaps, and the old objects of finished layout
//! swaps.

use super::Plan;
use crate::Unused;
use crate::engine::{Expect, Walk};
use crate::schema::{self, Record};
use crate::tx::Tx;
use types::{FileId, Status};

/// Returns the unused objects of up to `max` files with inode numbers above `after`. Skips damaged records, which `weir
/// fsck` reports.
pub(crate) fn read(tx: &Tx<'_>, after: FileId, max: usize) -> Result<Vec<Unused>, Status> {
    let mut unused = Vec::new();
    let Some(next) = after.0.checked_add(1) else { return Ok(unused) };
    let from = schema::unused_key(FileId(next));
    tx.survey(&from, &schema::past_all(&from), usize::MAX, &mut |key, value| {
        match value.and_then(Unused::look) {
            Some(record) => unused.push(record),
            None => tracing::error!(key = %key.escape_ascii(), "unused objects cannot be read: run `weir fsck`"),
        }
        if unused.len() < max { Walk::On } else { Walk::Stop }
    })?;
    Ok(unused)
}

/// Returns the unused objects of a file; `None` if there are none.
pub(crate) fn of(tx: &Tx<'_>, file: FileId) -> Result<Option<Unused>, Status> {
    tx.get(&schema::unused_key(file))?.map(Unused::from_value).transpose()
}

/// Removes a record of unused objects after they were removed from every iod, unless the record has changed. The
/// operation completes before the removal of the record is durable. If a crash restores the record, the mgr removes
/// the objects again. This does no harm, because a later swap of the file becomes durable only after the removal of
/// the record.
pub(crate) fn forget(tx: &mut Tx<'_>, done: &Unused) -> Plan<()> {
    tx.frees();
    tx.not_durable();
    let (key, value) = (schema::unused_key(done.file), done.to_value());
    if tx.get(&key)?.as_ref() == Some(&value) {
        tx.expect(Expect::Reads(key.clone(), value));
        tx.delete(key);
    }
    super::known(())
}
