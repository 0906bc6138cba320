//! Ending all rights to use objects that earlier starts of the mgr have given.

use super::Iods;
use futures_util::future::join_all;
use meta::{Embedded, Namespace};
use std::sync::atomic::Ordering::SeqCst;
use types::Status;

/// The key of the record: the least epoch whose rights count.
const KEY: &[u8] = b"mgr/least-epoch";

/// What is on record.
pub(super) fn recorded(namespace: &Namespace<Embedded>) -> Result<u32, Status> {
    let Some(record) = namespace.registry(KEY)? else { return Ok(0) };
    Ok(u32::from_be_bytes(record[..].try_into().map_err(|_| Status::Corrupt)?))
}

impl Iods {
    /// Has iods refuse what earlier starts of the mgr have given to clients: each one that is up before this returns, each other one before it
    /// serves any client. Clients of those starts get new rights when they ask, if they still may.
    pub(crate) async fn end_earlier_rights(&self) -> Result<(), Status> {
        if self.least_epoch.load(SeqCst) == self.epoch {
            return Ok(());
        }
        // The store records it before the mgr tells any iod: the next start of the mgr tells iods that have forgotten it.
        let record = self.epoch.to_be_bytes().to_vec().into();
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&record)).await?;
        self.least_epoch.store(self.epoch, SeqCst);
        let up = self.up();
        join_all(up.iter().map(|(number, link)| self.leave_with(*number, link))).await;
        Ok(())
    }
}
