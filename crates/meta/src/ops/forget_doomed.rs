//! Removal of doomed files from their list, after their objects were removed from every iod.

use super::Plan;
use crate::schema;
use crate::tx::Tx;
use types::FileId;

/// Removes these files from the list. The answer does not wait until the removal is durable: after a crash, the mgr
/// removes the objects again, which does no harm.
pub(crate) fn plan(tx: &mut Tx<'_>, ids: &[FileId]) -> Plan<()> {
    tx.frees();
    tx.not_durable();
    ids.iter().for_each(|id| tx.delete(schema::doomed_key(*id)));
    super::known(())
}
