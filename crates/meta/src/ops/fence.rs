//! Fencing of a file: iods refuse capabilities that were granted before, once they know the new generation.

use super::Plan;
use crate::schema::{self, Body, Core, Intent, Record};
use crate::tx::Tx;
use types::{FileId, Generation, Status};

/// Raises the generation of a regular file's objects and returns it. The intent remains until the caller has informed
/// every iod.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId) -> Plan<Generation> {
    let mut core = tx.rely_on(id)?;
    let raised = raise(tx, id, &mut core)?;
    // An orphan that a client wrote and did not close is fenced before it ends.
    tx.frees();
    tx.put_core(id, &core);
    super::known(raised)
}

/// Raises the generation in `core`, which the caller writes, and adds the intent to the batch.
pub(super) fn raise(tx: &mut Tx<'_>, id: FileId, core: &mut Core) -> Result<Generation, Status> {
    let Body::Regular { generation, .. } = &mut core.body else { return Err(Status::WrongType) };
    let raised = Generation(generation.0.checked_add(1).ok_or(Status::NoSpc)?);
    *generation = raised;
    let told = Intent::Fence(raised);
    tx.put(schema::intent_key(id, told.kind()), told.to_value());
    Ok(raised)
}
