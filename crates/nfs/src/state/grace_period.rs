//! The grace period after a restart of the server: which clients may reclaim their state, and how long other requests
//! must wait (RFC 8881 §8.4.2).

use crate::fs::ClientRecord;
use crate::name_delegations::RELIED_ON;
use crate::state::{ClientId, Result, State};
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;
use types::Timestamp;
use wire::nfs4::nfsstat4::*;

/// The grace period, in which the server grants reclaims and no new opens or locks.
#[derive(Clone, Debug)]
pub struct GracePeriod {
    /// Client owners that may still reclaim. The grace period ends when this set is empty.
    waiting: HashSet<Bytes>,
    began: Timestamp,
    until: Timestamp,
    /// The latest end of the grace period, even if reclaims continue to arrive.
    last: Timestamp,
    /// How long the server waits for the next reclaim after each reclaim.
    patience: Duration,
}

impl GracePeriod {
    /// Begins a grace period of one lease period for the clients in `records`. Without records there is no grace
    /// period. While reclaims arrive, the grace period extends to at most two lease periods.
    pub fn new(records: Vec<ClientRecord>, now: Timestamp, lease: Duration) -> Self {
        GracePeriod {
            waiting: records.into_iter().map(|r| r.owner).collect(),
            began: now,
            until: now.after(lease),
            last: now.after(lease * 2),
            patience: lease / 4,
        }
    }

    /// Returns whether the grace period is in progress.
    pub fn in_grace(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Records that a client owner has finished its reclaims.
    pub(crate) fn complete(&mut self, owner: &Bytes) {
        self.waiting.remove(owner);
    }

    /// Records a reclaim, which may extend the grace period.
    fn reclaimed(&mut self, now: Timestamp) {
        self.until = self.until.max(now.after(self.patience).min(self.last));
    }

    /// Returns the client owners that have not finished their reclaims when the grace period ends by timeout, sorted;
    /// empty if the period has not timed out.
    pub(crate) fn late(&self, now: Timestamp) -> Vec<Bytes> {
        if now < self.until {
            return Vec::new();
        }
        let mut late: Vec<_> = self.waiting.iter().cloned().collect();
        late.sort();
        late
    }
}

impl State {
    /// Returns whether the grace period is in progress. The period ends when all clients with a stored record have sent
    /// RECLAIM_COMPLETE. Otherwise it ends by timeout: one lease period after the start of the server, or at most two
    /// lease periods if reclaims continue to arrive.
    ///
    /// Before a timeout ends the period, the server deletes the records of clients that have not finished
    /// ([`Effect::GraceOver`]). After another restart, such a client must not reclaim state that other clients have
    /// held since the end of the period (§8.4.3, the second edge condition).
    ///
    /// [`Effect::GraceOver`]: crate::state::Effect::GraceOver
    pub fn in_grace(&self) -> bool {
        self.grace.in_grace()
    }

    /// Returns whether a client that has not noticed the restart may still rely on a directory delegation from before
    /// the restart. No client can reclaim such a delegation.
    pub fn may_rely_on_names(&self, now: Timestamp) -> bool {
        self.in_grace() && now.since(self.grace.began) < RELIED_ON
    }

    /// Records a granted reclaim, which extends the grace period, so that the client has time for its next reclaim.
    pub fn reclaimed(&mut self, now: Timestamp) {
        self.grace.reclaimed(now);
    }

    /// Ends the grace period for these client owners, after the server has deleted their client records.
    pub fn grace_over(&mut self, owners: &[Bytes]) {
        for owner in owners {
            self.grace.complete(owner);
            if let Some(client) = self.clients.confirmed(owner) {
                // If the client sent RECLAIM_COMPLETE while the server deleted the client's old record, the deletion
                // may also have removed the new record that RECLAIM_COMPLETE stored. So store the new record again.
                self.unrecord(client);
                self.note_record(client);
            }
        }
    }

    /// Checks whether `client` may get an open or a lock now; `reclaim` is set for a reclaim such as CLAIM_PREVIOUS.
    ///
    /// # Errors
    /// GRACE: the grace period is in progress, or the client has not sent RECLAIM_COMPLETE (§18.51.3). NO_GRACE for a
    /// reclaim: the grace period is over for this client, or the client has no durable record. STALE_CLIENTID: there is
    /// no such client.
    pub fn check_grace(&self, client: ClientId, reclaim: bool) -> Result<()> {
        let client = self.clients.get(client).ok_or(NFS4ERR_STALE_CLIENTID)?;
        let may_reclaim = !client.reclaim_complete && self.grace.waiting.contains(&client.owner);
        match reclaim {
            true if !may_reclaim => Err(NFS4ERR_NO_GRACE),
            false if self.in_grace() || !client.reclaim_complete => Err(NFS4ERR_GRACE),
            _ => Ok(()),
        }
    }
}
