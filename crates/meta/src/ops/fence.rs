//! Fencing of a file: iods that have received the new generation refuse capabilities of older generations.

use super::Plan;
use crate::tx::Tx;
use types::{FileId, Generation};

/// Raises the fencing generation of a regular file and returns the new generation. The intent `Fence` remains until the
/// caller has sent the new generation to every iod.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId) -> Plan<Generation> {
    let mut core = tx.rely_on(id)?;
    let raised = tx.raise_generation(id, &mut core)?;
    // A nearly full store accepts this batch, because a fence may precede a deletion: the mgr fences an orphan to
    // which a client may still write, and then deletes the orphan.
    tx.frees();
    tx.put_core(id, &core);
    super::known(raised)
}
