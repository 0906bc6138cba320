//! Deletion of an orphan: removes the inode, and adds the file's objects to the list of doomed files.

use super::Plan;
use crate::Doomed;
use crate::engine::{Expect, Walk};
use crate::schema::{self, Body, Core, Record};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status};

/// Maximum number of intents that the scan of a file's intents returns; larger than the number of intent kinds.
const INTENTS: usize = 16;

/// Deletes an orphan that no client has open. Returns `None` if the file is not an orphan or has no objects.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId) -> Plan<Option<Doomed>> {
    let orphan = schema::orphan_key(id);
    if tx.get(&orphan)?.is_none() {
        return super::known(None);
    }
    tx.frees();
    // If a crash undoes this batch, the file is an orphan again after the restart, and the mgr deletes the file again.
    tx.not_durable();
    // Every batch that changes the orphan record of a file also changes the core record (type, owner, layout) of the
    // file, and an orphan never gets a new name. So a precondition on the core record suffices to detect concurrent
    // changes.
    let core = tx.rely_on(id).map_err(|s| if s == Status::Stale { Status::Corrupt } else { s })?;
    let doomed = end(tx, id, &core)?;
    tx.delete(orphan);
    super::known(doomed)
}

/// Deletes a regular file that has no name after this batch and that no client has open. The batch already has a
/// precondition on `core`, the core record of the file. Returns the record for the list of doomed files if the file has
/// objects.
pub(crate) fn end(tx: &mut Tx<'_>, id: FileId, core: &Core) -> Result<Option<Doomed>, Status> {
    let Body::Regular { generation, layout, .. } = &core.body else { return Err(Status::Corrupt) };
    let objects = match layout {
        Some(layout) if !layout.is_inline() => layout.decided().transpose().map_err(|_| Status::Corrupt)?,
        _ => None,
    };
    let doomed = objects.map(|layout| Doomed { id, generation: *generation, layout });
    if let Some(doomed) = &doomed {
        tx.put(schema::doomed_key(id), doomed.to_value());
    }
    // Delete the intents of the file. The preconditions make the batch conflict if an intent is added concurrently.
    let (from, to) = (schema::intent_key(id, 0), schema::intents_end(id));
    let mut notes = Vec::new();
    tx.scan(&from, &to, INTENTS, &mut |key, value| {
        notes.push((key.to_vec(), Bytes::copy_from_slice(value)));
        Ok(Walk::On)
    })?;
    if notes.is_empty() {
        tx.expect(Expect::NoneIn(from, to));
    }
    for (key, value) in notes {
        tx.expect(Expect::Reads(key.clone(), value));
        tx.delete(key);
    }
    tx.delete_inode(id, core)?;
    Ok(doomed)
}
