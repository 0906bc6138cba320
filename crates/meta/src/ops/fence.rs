//! Fencing of a file: iods refuse capabilities that were granted before, once they know the new generation.

use super::Plan;
use crate::tx::Tx;
use types::{FileId, Generation};

/// Raises the generation of a regular file's objects and returns it. The intent remains until the caller has informed
/// every iod.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId) -> Plan<Generation> {
    let mut core = tx.rely_on(id)?;
    let raised = tx.raise_generation(id, &mut core)?;
    // An orphan that a client wrote and did not close is fenced before it ends.
    tx.frees();
    tx.put_core(id, &core);
    super::known(raised)
}
