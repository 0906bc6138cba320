//! Revoked state: the client finds the stateids that the mgr has revoked, reports them to the mount, and acknowledges
//! the revocations (RFC 8881 §8.5).

use super::Shared;
use crate::Result;
use crate::compound::Compound;
use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;
use std::time::Duration;
use wire::nfs4::*;

/// Maximum number of stateids that the client checks in one TEST_STATEID.
const AT_ONCE: usize = 256;
/// Pause between two searches for revoked state. Until the client acknowledges the revocations, the mgr reports revoked
/// state in each reply.
const LOOK: Duration = Duration::from_millis(500);

impl Shared {
    /// Finds the state that the mgr has revoked, reports it to the mount, and acknowledges the revocations. If
    /// `recallable`, the revoked state includes layouts, so the client drops all layouts.
    ///
    /// Only one search runs at a time, with a pause after it. Otherwise each reply that reports revoked state would
    /// drop all layouts again, and I/O could make no progress.
    pub(super) async fn test_stateids(self: &Arc<Self>, recallable: bool) {
        if self.testing.swap(true, AcqRel) {
            return;
        }
        if recallable {
            self.held.lose_layouts();
        }
        if let Err(error) = self.find_revoked().await {
            tracing::warn!("looking for revoked state: {error}");
        }
        tokio::time::sleep(LOOK).await;
        self.testing.store(false, std::sync::atomic::Ordering::Release);
    }

    async fn find_revoked(self: &Arc<Self>) -> Result<()> {
        self.find_revoked_names().await?;
        for some in self.held.stateids().chunks(AT_ONCE) {
            // In a stateid, the sequence number 0 stands for the current sequence number.
            let ts_stateids = some.iter().map(|held| stateid4 { seqid: 0, ..held.stateid }).collect();
            for (held, status) in some.iter().zip(self.test(ts_stateids).await?) {
                if matches!(
                    status,
                    NFS4ERR_EXPIRED | NFS4ERR_ADMIN_REVOKED | NFS4ERR_BAD_STATEID | NFS4ERR_DELEG_REVOKED
                ) {
                    if status != NFS4ERR_BAD_STATEID {
                        self.free_stateid(held.stateid).await?;
                    }
                    self.held.revoked(*held, status).await;
                }
            }
        }
        Ok(())
    }

    /// Drops the cached names of directories whose delegation the mgr has revoked.
    async fn find_revoked_names(self: &Arc<Self>) -> Result<()> {
        for some in self.held.directory_delegations().chunks(AT_ONCE) {
            for (stateid, status) in some.iter().zip(self.test(some.to_vec()).await?) {
                if status != NFS4_OK {
                    self.held.directory_delegation_revoked(stateid);
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

    /// Acknowledges to the mgr that `stateid` is no longer valid (FREE_STATEID).
    pub(crate) async fn free_stateid(self: &Arc<Self>, stateid: stateid4) -> Result<()> {
        let mut compound = Compound::new("acknowledging a revoked stateid").cached();
        compound.op(OP_FREE_STATEID, &FREE_STATEID4args { fsa_stateid: stateid4 { seqid: 0, ..stateid } });
        // Ignore the results: FREE_STATEID fails if another task has already freed the stateid.
        self.call(compound).await.map(|_| ())
    }
}
