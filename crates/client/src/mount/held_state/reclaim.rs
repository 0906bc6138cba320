//! Reclaims the opens, delegations and locks of a file after a restart of the mgr (RFC 8881 §8.4.2.1).

use crate::compound::{Compound, Failed};
use crate::inode::{Inode, Open};
use crate::session::{NewSession, OpenId};
use crate::{Error, Result};
use nfs::state::delegations::WANT_DATA;
use std::sync::Arc;
use types::Status;
use wire::nfs4::*;

/// The outcome of opening a file again after a restart of the mgr.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reopened {
    Yes,
    No,
    /// The file no longer exists at the mgr.
    Gone,
}

impl Inode {
    /// Reclaims the opens, locks and delegation of the file, and reports the bytes that the client wrote under its
    /// layout. The client requests a new layout at the next I/O. Returns the opens that the mgr did not grant.
    pub(super) async fn reclaim(self: &Arc<Self>, session: &NewSession<'_>) -> Result<Vec<OpenId>> {
        let mut refused = Vec::new();
        let report = self.report_to_reclaim();
        self.lose_layout();
        let mut delegation = self.delegation_to_reclaim();
        for open in self.opens() {
            if let Some((held, claim)) = delegation.take() {
                // If the mgr refuses to reclaim the delegation, another client may have changed the file. So the client
                // must not keep buffered bytes of the file: `delegation_lost` sends or drops these bytes.
                if self.reopen(session, &open, claim).await? == Reopened::Yes {
                    self.reclaim_locks(session, open.key).await?;
                    continue;
                }
                self.delegation_lost(held);
            }
            let claim = open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_NONE);
            match self.reopen(session, &open, claim).await? {
                Reopened::Yes => {
                    self.reclaim_locks(session, open.key).await?;
                    continue;
                }
                Reopened::No => self.lose_locks(open.key, None),
                Reopened::Gone => {
                    let why = "the file is lost: its creation was not durable when the mgr stopped; create it again";
                    self.lose_locks_as(open.key, None, &Error::status(Status::Stale, why));
                }
            }
            refused.push(OpenId { file: self.node.id, owner: open.key });
        }
        // The file has no opens, so do not reclaim its delegation: Weir's delegations end with the last open.
        delegation.inspect(|(held, _)| self.share(*held));
        if let Some((end, args)) = report {
            self.reclaim_report(session, end, &args).await?;
        }
        Ok(refused)
    }

    /// Sends a new OPEN, without a reclaim, for an open whose reclaim the mgr refused.
    pub(super) async fn open_refused(self: &Arc<Self>, session: &NewSession<'_>, owner: u64) -> Result<()> {
        let Some(open) = self.opens().into_iter().find(|open| open.key == owner) else { return Ok(()) };
        match self.reopen(session, &open, open_claim4::CLAIM_FH).await {
            // The mgr answered with NFS4ERR_DELAY. The mgr has no state of this open, so nothing is lost. The client
            // sends the OPEN again at the next use of the file.
            Err(error) if error.is(Status::Delay) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Reports the bytes that the client wrote under a layout that the mgr granted before its restart. If the mgr
    /// refuses the report (LAYOUTCOMMIT), the client sends a report under a new layout later.
    async fn reclaim_report(&self, session: &NewSession<'_>, end: u64, args: &LAYOUTCOMMIT4args) -> Result<()> {
        let mut compound = Compound::new("reporting what was written before the mgr restarted").cached();
        compound.putfh(&self.node.handle).op(OP_LAYOUTCOMMIT, args);
        let mut results = session.call(compound).await?;
        let told = results.done(&[OP_PUTFH]).is_ok() && results.raw::<LAYOUTCOMMIT4resok>(OP_LAYOUTCOMMIT).is_ok();
        if told {
            self.reported(end);
        }
        Ok(())
    }

    /// Reclaims the byte-range locks of an open. Marks each lock that the mgr refuses as lost.
    async fn reclaim_locks(&self, session: &NewSession<'_>, key: u64) -> Result<()> {
        let (open, wanted) = self.locks_to_reclaim(key);
        let Some(open) = open else { return Ok(()) };
        for wanted in wanted {
            let mut compound = Compound::new("reclaiming a lock").cached();
            compound.putfh(&self.node.handle).op(OP_LOCK, &Inode::reclaim_args(open, wanted));
            let mut results = session.call(compound).await?;
            let got = results.done(&[OP_PUTFH]).map(|()| results.raw::<LOCK4resok>(OP_LOCK));
            match got {
                Ok(Ok(got)) => self.reclaimed(key, wanted.0, got.lock_stateid),
                Ok(Err(failed @ Failed::Nfs(NFS4ERR_DELAY))) => return Err(results.error(&failed)),
                _ => self.lose_locks(key, Some(wanted.0)),
            }
        }
        Ok(())
    }

    /// Sends an OPEN with this claim for a file that the caller has open. Returns whether the mgr granted the OPEN.
    /// Returns `NFS4ERR_DELAY` as an error, so that the client repeats the whole reclaim and keeps the open, its
    /// delegation and its locks.
    async fn reopen(self: &Arc<Self>, session: &NewSession<'_>, open: &Open, claim: open_claim4) -> Result<Reopened> {
        let mut compound = Compound::new("opening a file again").by(&open.caller).cached();
        let wish = match claim {
            open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_READ | OPEN_DELEGATE_WRITE) => WANT_DATA,
            _ => OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
        };
        compound.putfh(&self.node.handle).op(OP_OPEN, &open.args(claim, wish));
        let mut results = session.call(compound).await?;
        if let Err(error) = results.done(&[OP_PUTFH]) {
            return Ok(if error.is(Status::Stale) { Reopened::Gone } else { Reopened::No });
        }
        match results.raw::<OPEN4resok>(OP_OPEN) {
            Ok(opened) => {
                self.reopened(open.key, opened.stateid);
                self.reclaimed_delegation(&opened.delegation);
                Ok(Reopened::Yes)
            }
            Err(failed @ Failed::Nfs(NFS4ERR_DELAY)) => Err(results.error(&failed)),
            Err(Failed::Nfs(NFS4ERR_STALE)) => Ok(Reopened::Gone),
            Err(_) => Ok(Reopened::No),
        }
    }
}
