//! The grace period after a restart of the server: which clients may reclaim, and how long other requests wait (RFC 8881
//! §8.4.2).

use crate::fs::ClientRecord;
use crate::name_delegations::RELIED_ON;
use crate::state::{ClientId, Result, State};
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;
use types::Timestamp;
use wire::nfs4::nfsstat4::*;

/// The grace period, during which the server grants only reclaims.
#[derive(Clone, Debug)]
pub struct GracePeriod {
    /// Owners that may still reclaim; the grace period ends when there are none.
    waiting: HashSet<Bytes>,
    began: Timestamp,
    until: Timestamp,
    /// The latest end of the grace period, however many reclaims arrive.
    last: Timestamp,
    /// How long the server waits after a reclaim for the next one.
    patience: Duration,
}

impl GracePeriod {
    /// Begins a grace period of one lease period if there are records, and none otherwise. It extends to at most two
    /// lease periods while reclaims follow one another, so that a client that has begun can finish.
    pub fn new(records: Vec<ClientRecord>, now: Timestamp, lease: Duration) -> Self {
        GracePeriod {
            waiting: records.into_iter().map(|r| r.owner).collect(),
            began: now,
            until: now.after(lease),
            last: now.after(lease * 2),
            patience: lease / 4,
        }
    }

    /// Returns whether the server grants reclaims and refuses everything that could conflict with them.
    pub fn in_grace(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Notes that the owner has finished reclaiming.
    pub(crate) fn complete(&mut self, owner: &Bytes) {
        self.waiting.remove(owner);
    }

    /// Notes that state was reclaimed.
    fn reclaimed(&mut self, now: Timestamp) {
        self.until = self.until.max(now.after(self.patience).min(self.last));
    }

    /// Returns the owners that may still reclaim although the time for it is over, in order.
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
    /// Returns whether the server is in its grace period. The period ends when all known clients have sent
    /// RECLAIM_COMPLETE, or one lease period after the start, or two while reclaims arrive. In the last two cases the
    /// server first deletes the records of the other clients from disk ([`Effect::GraceOver`]). After another restart
    /// they must not reclaim state that other clients have held meanwhile (§8.4.3, the second edge condition).
    ///
    /// [`Effect::GraceOver`]: crate::state::Effect::GraceOver
    pub fn in_grace(&self) -> bool {
        self.grace.in_grace()
    }

    /// Returns whether clients that have not noticed the restart may still rely on delegations of names, which they
    /// cannot reclaim.
    pub fn may_rely_on_names(&self, now: Timestamp) -> bool {
        self.in_grace() && now.since(self.grace.began) < RELIED_ON
    }

    /// Notes a granted reclaim, so that the grace period does not end while the client is still reclaiming.
    pub fn reclaimed(&mut self, now: Timestamp) {
        self.grace.reclaimed(now);
    }

    /// Ends the reclaims of these owners, whose records are deleted.
    pub fn grace_over(&mut self, owners: &[Bytes]) {
        for owner in owners {
            self.grace.complete(owner);
            if let Some(client) = self.clients.confirmed(owner) {
                // The new record of a client that finished meanwhile was stored before or after the deletion; the order
                // is unknown.
                self.unrecord(client);
                self.note_record(client);
            }
        }
    }

    /// Checks whether `client` may get an open or a lock (OPEN, LOCK) now; `reclaim` for CLAIM_PREVIOUS and similar
    /// claims.
    ///
    /// # Errors
    /// GRACE (other clients may still reclaim, or the client has not sent RECLAIM_COMPLETE, §18.51.3). For a reclaim
    /// NO_GRACE: it is too late, or the client has no record, because it held nothing before the restart or another
    /// client may have held it since.
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
