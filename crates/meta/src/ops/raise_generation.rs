//! Raising the fencing generation of a file to a generation that an iod has reported.

use super::Plan;
use crate::schema::Body;
use crate::tx::Tx;
use types::{FileId, Generation, Status};

/// Raises the generation of a regular file to `least`, if the recorded generation is lower. Returns whether the
/// generation was raised.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, least: Generation) -> Plan<bool> {
    let mut core = tx.rely_on(id)?;
    let Body::Regular { generation, .. } = &mut core.body else { return Err(Status::WrongType) };
    if *generation >= least {
        return super::known(false);
    }
    *generation = least;
    tx.frees();
    tx.put_core(id, &core);
    super::known(true)
}
