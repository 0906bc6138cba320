//! State that the mgr has taken away: which it is, and letting the mgr know that this is known (RFC 8881 §8.5).

use super::Shared;
use crate::Result;
use crate::compound::Compound;
use crate::inode::Inode;
use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;
use std::time::Duration;
use wire::nfs4::*;

/// Stateids asked about in one request.
const AT_ONCE: usize = 256;
/// The mgr says that something is gone with each reply until it knows that this client knows; so often it is looked for.
const LOOK: Duration = Duration::from_millis(500);

impl Shared {
    /// Finds out what the mgr has taken away, deals with the files concerned and acknowledges it. One at a time, and with a pause: the mgr says so in
    /// each reply until then, and whoever lost its layouts each time would never get on. `recallable` has layouts among it.
    pub(super) async fn test_stateids(self: &Arc<Self>, recallable: bool) {
        if self.testing.swap(true, AcqRel) {
            return;
        }
        if recallable {
            for inode in self.inodes.all() {
                inode.lose_layout().await;
            }
        }
        if let Err(error) = self.find_revoked().await {
            tracing::warn!("looking for what the mgr has taken away: {error}");
        }
        tokio::time::sleep(LOOK).await;
        self.testing.store(false, std::sync::atomic::Ordering::Release);
    }

    async fn find_revoked(self: &Arc<Self>) -> Result<()> {
        self.find_revoked_names().await?;
        let mut all = Vec::new();
        for inode in self.inodes.all() {
            let delegation = inode.delegation().map(|stateid| (inode.clone(), stateid));
            all.extend(delegation);
            all.extend(inode.stateids().into_iter().map(|stateid| (inode.clone(), stateid)));
        }
        for some in all.chunks(AT_ONCE) {
            // A sequence number of 0 is the present one.
            let ts_stateids = some.iter().map(|(_, stateid)| stateid4 { seqid: 0, ..*stateid }).collect();
            for ((inode, stateid), status) in some.iter().zip(self.test(ts_stateids).await?) {
                if matches!(
                    status,
                    NFS4ERR_EXPIRED | NFS4ERR_ADMIN_REVOKED | NFS4ERR_BAD_STATEID | NFS4ERR_DELEG_REVOKED
                ) {
                    self.revoked(inode, *stateid, status).await?;
                }
            }
        }
        Ok(())
    }

    /// Forgets names that others may have changed.
    async fn find_revoked_names(self: &Arc<Self>) -> Result<()> {
        for some in self.inodes.names.held().chunks(AT_ONCE) {
            for (stateid, status) in some.iter().zip(self.test(some.to_vec()).await?) {
                if status != NFS4_OK {
                    self.inodes.names.lose(stateid);
                    self.free_stateid(*stateid).await?;
                }
            }
        }
        Ok(())
    }

    async fn test(self: &Arc<Self>, ts_stateids: Vec<stateid4>) -> Result<Vec<nfsstat4>> {
        let mut compound = Compound::new("testing stateids");
        compound.op(OP_TEST_STATEID, &TEST_STATEID4args { ts_stateids });
        let got: TEST_STATEID4resok = self.call(compound).await?.take(OP_TEST_STATEID)?;
        Ok(got.tsr_status_codes)
    }

    async fn revoked(self: &Arc<Self>, inode: &Arc<Inode>, stateid: stateid4, status: nfsstat4) -> Result<()> {
        tracing::debug!(file = %inode.node.id, ?status, "the mgr has taken something away");
        if status != NFS4ERR_BAD_STATEID {
            self.free_stateid(stateid).await?;
        }
        if inode.delegation().is_some_and(|held| held.other == stateid.other) {
            // One that is unknown may just have arrived there.
            if status != NFS4ERR_BAD_STATEID || inode.delegation_of_io().is_some() {
                match status {
                    NFS4ERR_DELEG_REVOKED => inode.delegation_revoked(stateid),
                    _ => inode.delegation_lost(stateid),
                }
            }
        } else {
            inode.revoked(stateid).await;
        }
        Ok(())
    }

    /// Lets the mgr know that this client knows that `stateid` stands for nothing any more.
    pub(crate) async fn free_stateid(self: &Arc<Self>, stateid: stateid4) -> Result<()> {
        let mut compound = Compound::new("letting go of what the mgr has taken away").cached();
        compound.op(OP_FREE_STATEID, &FREE_STATEID4args { fsa_stateid: stateid4 { seqid: 0, ..stateid } });
        // Somebody else may have been quicker; then nothing is left to be done.
        self.call(compound).await.map(|_| ())
    }
}
