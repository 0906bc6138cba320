//! Revocation by epoch (number of a start of the mgr): the iods refuse all capabilities and filehandles that earlier
//! starts of the mgr granted to clients.

use super::Iods;
use futures_util::future::join_all;
use meta::{Embedded, Namespace};
use std::sync::atomic::Ordering::SeqCst;
use types::Status;

/// Registry key of the lowest epoch whose capabilities are valid.
const KEY: &[u8] = b"mgr/least-epoch";

/// Returns the lowest epoch whose capabilities are valid, from the store; 0 if the store has no such record.
pub(super) fn recorded(namespace: &Namespace<Embedded>) -> Result<u32, Status> {
    let Some(record) = namespace.registry(KEY)? else { return Ok(0) };
    Ok(u32::from_be_bytes(record[..].try_into().map_err(|_| Status::Corrupt)?))
}

impl Iods {
    /// Makes the iods refuse the capabilities and filehandles that earlier starts of the mgr granted to clients.
    /// Connected iods refuse them when this function returns, and other iods before they serve any client. Clients get
    /// new capabilities and filehandles if their permissions still allow it.
    pub(crate) async fn end_earlier_rights(&self) -> Result<(), Status> {
        if self.least_epoch.load(SeqCst) == self.epoch {
            return Ok(());
        }
        // Record the epoch before any iod gets it. An iod forgets the epoch when the iod restarts, so the next start of
        // the mgr must send this epoch again.
        let record = self.epoch.to_be_bytes().to_vec().into();
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&record)).await?;
        self.least_epoch.store(self.epoch, SeqCst);
        let up = self.up();
        join_all(up.iter().map(|(number, link)| self.leave_with(*number, link))).await;
        Ok(())
    }
}
