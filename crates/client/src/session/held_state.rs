//! Held state, as the session sees it: the opens, locks, delegations and layouts that the mgr has granted to this
//! client.
//!
//! The session knows the stateids of this state, and in which order to reclaim the state after a restart of the mgr.
//! The session passes recalls, revocations and restarts of the mgr to the mount ([`crate::Mount`]), which knows the
//! files that the state belongs to.

use super::{Shared, Slot};
use crate::compound::{Compound, Results};
use crate::{Error, Result};
use async_trait::async_trait;
use net::rpc::Connection;
use nfs::client::compound::Results as RawResults;
use nfs::client::session::Outcome;
use types::FileId;
use wire::nfs4::*;

/// The methods by which a session passes recalls, revocations and restarts of the mgr to the mount, which knows the
/// files.
#[async_trait]
pub(crate) trait HeldState: Send + Sync {
    /// Starts to return recalled layouts (RFC 8881 §20.3). Returns the status for the reply to the mgr.
    fn recall_layouts(&self, args: &CB_LAYOUTRECALL4args) -> nfsstat4;

    /// Starts to return a recalled delegation (RFC 8881 §20.2). Returns the status for the reply to the mgr.
    fn recall_delegation(&self, args: &CB_RECALL4args) -> nfsstat4;

    /// Handles the mgr's notification that a denied lock on the file with this filehandle may be free.
    fn lock_is_free(&self, handle: &[u8]);

    /// Handles the mgr's notification that another client has set the size of the file with this filehandle.
    async fn resized(&self, handle: &[u8]);

    /// Drops all layouts, because the mgr has revoked some of them.
    fn lose_layouts(&self);

    /// Returns the stateids of all opens, locks and delegations of files.
    fn stateids(&self) -> Vec<HeldStateid>;

    /// Handles a revoked stateid, after the session has acknowledged the revocation to the mgr.
    async fn revoked(&self, held: HeldStateid, status: nfsstat4);

    /// Returns the stateids of all directory delegations.
    fn directory_delegations(&self) -> Vec<stateid4>;

    /// Drops the names that were cached under a revoked directory delegation.
    fn directory_delegation_revoked(&self, stateid: &stateid4);

    /// Reclaims opens, delegations and locks from an mgr that has lost the state of this client (RFC 8881 §8.4.2.1).
    /// Reports the bytes that the client wrote under layouts. Returns the opens that the mgr did not grant.
    async fn reclaim(&self, session: &NewSession<'_>) -> Result<Vec<OpenId>>;

    /// Sends a new OPEN for each open whose reclaim the mgr refused.
    async fn open_again(&self, session: &NewSession<'_>, refused: &[OpenId]) -> Result<()>;
}

/// A stateid, and the file that it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct HeldStateid {
    pub(crate) file: FileId,
    pub(crate) stateid: stateid4,
}

/// The identifier of an open: the file and the open owner.
#[derive(Clone, Copy)]
pub(crate) struct OpenId {
    pub(crate) file: FileId,
    /// The identifier of the open owner.
    pub(crate) owner: u64,
}

/// A session that one task is establishing, and that no other task uses yet.
pub(crate) struct NewSession<'a> {
    pub(super) shared: &'a Shared,
    pub(super) connection: &'a Connection,
    pub(super) epoch: u64,
}

impl NewSession<'_> {
    /// Sends a COMPOUND once, and returns the results, whatever the status of the results is.
    pub(crate) async fn call(&self, compound: Compound) -> Result<Results> {
        let (shared, epoch) = (self.shared, self.epoch);
        let compound = compound.seal();
        let what = &compound.what;
        let lost = |why: &dyn std::fmt::Display| Error::connection(format!("{what}: {why}"));
        let ticket = shared.slot(epoch).await.ok_or_else(|| lost(&"the session is gone"))?;
        let mut slot = Slot { shared, epoch, ticket, sent: false, first: None, settled: false };
        match shared.send(self.connection, &mut slot, &compound).await {
            Ok(Outcome::Done { results, .. }) => {
                slot.settled = true;
                Ok(Results::new(&compound, RawResults::new(results), &shared.load))
            }
            Ok(_) => Err(lost(&"the mgr did not execute it")),
            Err(error) => {
                self.connection.close();
                Err(lost(&error))
            }
        }
    }
}
