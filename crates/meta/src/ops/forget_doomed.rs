//! Forgets doomed files whose objects have been removed from every iod.

use super::Plan;
use crate::schema;
use crate::tx::Tx;
use types::FileId;

/// Forgets these; the answer does not wait for the disk, as removing objects twice does no harm.
pub(crate) fn plan(tx: &mut Tx<'_>, ids: &[FileId]) -> Plan<()> {
    tx.frees();
    tx.not_durable();
    ids.iter().for_each(|id| tx.delete(schema::doomed_key(*id)));
    super::known(())
}
