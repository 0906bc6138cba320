//! Fencing of a file: iods refuse capabilities that were granted before, once they know the new generation.

use super::Plan;
use crate::schema::{self, Body, Intent, Record};
use crate::tx::Tx;
use types::{FileId, Generation, Status};

/// Raises the generation of a regular file's objects and returns it. The intent remains until the caller has informed
/// every iod.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId) -> Plan<Generation> {
    let mut core = tx.rely_on(id)?;
    let Body::Regular { generation, .. } = &mut core.body else { return Err(Status::WrongType) };
    let raised = Generation(generation.0.checked_add(1).ok_or(Status::NoSpc)?);
    *generation = raised;
    // An orphan that a client wrote and did not close is fenced before it ends.
    tx.frees();
    tx.put_core(id, &core);
    let told = Intent::Fence(raised);
    tx.put(schema::intent_key(id, told.kind()), told.to_value());
    super::known(raised)
}
