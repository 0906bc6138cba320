//! Removal of doomed files (deleted files whose objects may still exist) from their list, after the mgr has removed the
//! objects from every iod.

use super::Plan;
use crate::schema;
use crate::tx::Tx;
use types::FileId;

/// Removes files from the list of doomed files. The operation does not wait until the change of the list is durable:
/// after a crash, the mgr deletes the objects again, which does no harm.
pub(crate) fn plan(tx: &mut Tx<'_>, ids: &[FileId]) -> Plan<()> {
    tx.frees();
    tx.not_durable();
    ids.iter().for_each(|id| tx.delete(schema::doomed_key(*id)));
    super::known(())
}
