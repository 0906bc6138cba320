//! The end of all rights to objects that earlier starts of the mgr granted to clients.

use super::Iods;
use futures_util::future::join_all;
use meta::{Embedded, Namespace};
use std::sync::atomic::Ordering::SeqCst;
use types::Status;

/// The registry key of the least epoch whose rights are valid.
const KEY: &[u8] = b"mgr/least-epoch";

/// Returns the recorded least epoch.
pub(super) fn recorded(namespace: &Namespace<Embedded>) -> Result<u32, Status> {
    let Some(record) = namespace.registry(KEY)? else { return Ok(0) };
    Ok(u32::from_be_bytes(record[..].try_into().map_err(|_| Status::Corrupt)?))
}

impl Iods {
    /// Makes iods refuse the rights that earlier starts of the mgr granted to clients: iods that are up before this
    /// returns, the other iods before they serve any client. Clients of those starts get new rights on request, if
    /// their permissions still allow it.
    pub(crate) async fn end_earlier_rights(&self) -> Result<(), Status> {
        if self.least_epoch.load(SeqCst) == self.epoch {
            return Ok(());
        }
        // Recorded before any iod learns of it: the next start of the mgr repeats it to iods that have forgotten it.
        let record = self.epoch.to_be_bytes().to_vec().into();
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&record)).await?;
        self.least_epoch.store(self.epoch, SeqCst);
        let up = self.up();
        join_all(up.iter().map(|(number, link)| self.leave_with(*number, link))).await;
        Ok(())
    }
}
