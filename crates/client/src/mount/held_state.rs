//! How the mount reacts when the mgr recalls or revokes delegations, layouts, opens or locks, or restarts.

mod reclaim;

use super::Inodes;
use crate::Result;
use crate::session::{HeldState, HeldStateid, NewSession, OpenId};
use async_trait::async_trait;
use layout::kinds::KindId;
use wire::nfs4::*;

#[async_trait]
impl HeldState for Inodes {
    fn recall_layouts(&self, args: &CB_LAYOUTRECALL4args) -> nfsstat4 {
        if KindId::from_number(args.clora_type).is_none() {
            return NFS4ERR_NOMATCHING_LAYOUT;
        }
        let recalled = match &args.clora_recall {
            layoutrecall4::LAYOUTRECALL4_FILE(file) => {
                let inode = self.by_handle(&file.lor_fh);
                inode.inspect(|inode| inode.recall_layout(args.clora_type, file.lor_stateid)).is_some()
            }
            layoutrecall4::LAYOUTRECALL4_FSID(_) | layoutrecall4::LAYOUTRECALL4_ALL => {
                self.all().iter().filter(|inode| inode.recall_any_layout()).count() > 0
            }
        };
        if recalled { NFS4_OK } else { NFS4ERR_NOMATCHING_LAYOUT }
    }

    /// Handles the recall of a delegation.
    ///
    /// If the client does not know the delegation and an OPEN is unanswered, the reply to this OPEN may grant the
    /// delegation. So the client rejects the recall, and the mgr repeats the recall later. If the client does not know
    /// the delegation although every OPEN is answered, the caller of the open was cancelled before the reply to the
    /// OPEN arrived. So no open uses the delegation, and the client returns the delegation at once.
    fn recall_delegation(&self, args: &CB_RECALL4args) -> nfsstat4 {
        let CB_RECALL4args { stateid, fh, .. } = args;
        // Before the search for the delegation, check whether all OPENs are answered. If they are, the client knows
        // every delegation that it may hold, so the search finds the recalled delegation or proves that no open uses
        // it.
        let all_answered = self.names.are_opens_answered();
        let leaves = || self.deferred_closes.recall(stateid);
        let is_known = self.names.recall(stateid)
            || leaves()
            || self.by_handle(fh).is_some_and(|inode| inode.recall_delegation(*stateid))
            // Search the deferred closes again, because a close may have moved the delegation there after the first
            // search.
            || leaves();
        match is_known {
            false if !all_answered => return NFS4ERR_BAD_STATEID,
            false => self.names.give_back_unknown(fh, *stateid),
            true => {}
        }
        NFS4_OK
    }

    fn lock_is_free(&self, handle: &[u8]) {
        if let Some(inode) = self.by_handle(handle) {
            inode.lock_is_free();
        }
    }

    async fn resized(&self, handle: &[u8]) {
        if let Some(inode) = self.by_handle(handle) {
            inode.resized().await;
        }
    }

    fn lose_layouts(&self) {
        for inode in self.all() {
            inode.lose_layout();
        }
    }

    fn stateids(&self) -> Vec<HeldStateid> {
        let mut all = Vec::new();
        for inode in self.all() {
            let stateids = inode.delegation().into_iter().chain(inode.stateids());
            all.extend(stateids.map(|stateid| HeldStateid { file: inode.node.id, stateid }));
        }
        all
    }

    async fn revoked(&self, HeldStateid { file, stateid }: HeldStateid, status: nfsstat4) {
        // If the file is not open any more, the client lost no open, lock or data of the file.
        let Some(inode) = self.get(file) else { return };
        tracing::debug!(%file, ?status, "the mgr has revoked a stateid");
        if inode.delegation().is_none_or(|held| held.other != stateid.other) {
            return inode.revoked(stateid).await;
        }
        // If the mgr has just executed a DELEGRETURN, the mgr no longer knows the delegation (`NFS4ERR_BAD_STATEID`).
        // The client returned this delegation, so the delegation is not lost.
        if status != NFS4ERR_BAD_STATEID || inode.delegation_of_io().is_some() {
            match status {
                NFS4ERR_DELEG_REVOKED => inode.delegation_revoked(stateid),
                _ => inode.delegation_lost(stateid),
            }
        }
    }

    fn directory_delegations(&self) -> Vec<stateid4> {
        self.names.held()
    }

    fn directory_delegation_revoked(&self, stateid: &stateid4) {
        self.names.lose(stateid);
    }

    async fn reclaim(&self, session: &NewSession<'_>) -> Result<Vec<OpenId>> {
        let mut refused = Vec::new();
        for inode in self.all() {
            refused.extend(inode.reclaim(session).await?);
        }
        Ok(refused)
    }

    async fn open_again(&self, session: &NewSession<'_>, refused: &[OpenId]) -> Result<()> {
        for open in refused {
            if let Some(inode) = self.get(open.file) {
                inode.open_refused(session, open.owner).await?;
            }
        }
        Ok(())
    }
}
