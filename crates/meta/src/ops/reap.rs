//! The end of an orphan: its inode is deleted, and its objects are doomed.

use super::Plan;
use crate::Doomed;
use crate::engine::{Expect, Walk};
use crate::schema::{self, Body, Core, Record};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status};

/// A bound above the number of kinds of intents.
const INTENTS: usize = 16;

/// Ends a file that has no name and that no client has open; `None` if it is not an orphan or has no objects.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId) -> Plan<Option<Doomed>> {
    let orphan = schema::orphan_key(id);
    if tx.get(&orphan)?.is_none() {
        return super::known(None);
    }
    tx.frees();
    // If a crash makes it an orphan again, no client has it open and it is reaped again.
    tx.not_durable();
    // The core changes together with the orphan record, and an orphan never gets a name. So relying on the core is
    // enough.
    let core = tx.rely_on(id).map_err(|s| if s == Status::Stale { Status::Corrupt } else { s })?;
    let doomed = end(tx, id, &core)?;
    tx.delete(orphan);
    super::known(doomed)
}

/// Ends a file on whose core the batch relies, and which will have no name and no client that has it open. Returns the
/// doomed file, if it has objects.
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
    // Deletes the intents of the file; the batch conflicts if a new one is stored meanwhile.
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
