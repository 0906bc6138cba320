//! Recovery after a restart of the server: who may reclaim, and how long everybody else waits (RFC 8881 §8.4.2).

use crate::fs::ClientRecord;
use crate::names::RELIED_ON;
use crate::state::{ClientId, Result, State};
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;
use types::Timestamp;
use wire::nfs4::nfsstat4::*;

/// The grace period: while it lasts only reclaims are granted.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// Owners that may still reclaim; grace ends when there are none.
    waiting: HashSet<Bytes>,
    began: Timestamp,
    until: Timestamp,
    /// However many reclaims come, it is over then.
    last: Timestamp,
    /// How long after a reclaim the next one is waited for.
    patience: Duration,
}

impl Recovery {
    /// A grace period of one lease when there are records, none otherwise; of up to two as long as reclaims come one after
    /// another, for a client that has begun shall be able to finish.
    pub fn new(records: Vec<ClientRecord>, now: Timestamp, lease: Duration) -> Self {
        Recovery {
            waiting: records.into_iter().map(|r| r.owner).collect(),
            began: now,
            until: now.after(lease),
            last: now.after(lease * 2),
            patience: lease / 4,
        }
    }

    /// Whether reclaims are granted and everything that could conflict with them is not.
    pub fn in_grace(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The owner reclaims nothing more.
    pub(crate) fn complete(&mut self, owner: &Bytes) {
        self.waiting.remove(owner);
    }

    /// Something was reclaimed.
    fn reclaimed(&mut self, now: Timestamp) {
        self.until = self.until.max(now.after(self.patience).min(self.last));
    }

    /// Those that may still reclaim although the time for it is over, in order.
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
    /// Whether the server is in its grace period. It ends when everybody known has said RECLAIM_COMPLETE, or a lease after
    /// the start, or two while reclaims come; then not before the records of those who did not are gone from the disk ([`Effect::GraceOver`]), for
    /// after another restart they must not reclaim what others have had meanwhile (§8.4.3, the second edge condition).
    ///
    /// [`Effect::GraceOver`]: crate::state::Effect::GraceOver
    pub fn in_grace(&self) -> bool {
        self.recovery.in_grace()
    }

    /// Whether clients that have not noticed the restart may still rely on delegations of names, which they cannot reclaim.
    pub fn may_rely_on_names(&self, now: Timestamp) -> bool {
        self.in_grace() && now.since(self.recovery.began) < RELIED_ON
    }

    /// A reclaim was granted: the grace period does not end at once, in the middle of what the client is doing.
    pub fn reclaimed(&mut self, now: Timestamp) {
        self.recovery.reclaimed(now);
    }

    /// The records of these owners are gone: they reclaim no more.
    pub fn grace_over(&mut self, owners: &[Bytes]) {
        for owner in owners {
            self.recovery.complete(owner);
            if let Some(client) = self.clients.confirmed(owner) {
                // One that finished meanwhile was stored before or after the other was deleted: nobody knows.
                self.unrecord(client);
                self.note_record(client);
            }
        }
    }

    /// Whether `client` may get a lock (OPEN, LOCK) now; `reclaim` for CLAIM_PREVIOUS and its kin.
    ///
    /// # Errors
    /// GRACE (others may still reclaim, or the client has not sent RECLAIM_COMPLETE, §18.51.3); for a reclaim NO_GRACE: it
    /// is too late, or the client has no record, because it held nothing before the restart or somebody else may have
    /// held it since.
    pub fn check_grace(&self, client: ClientId, reclaim: bool) -> Result<()> {
        let client = self.clients.get(client).ok_or(NFS4ERR_STALE_CLIENTID)?;
        let may_reclaim = !client.reclaim_complete && self.recovery.waiting.contains(&client.owner);
        match reclaim {
            true if !may_reclaim => Err(NFS4ERR_NO_GRACE),
            false if self.in_grace() || !client.reclaim_complete => Err(NFS4ERR_GRACE),
            _ => Ok(()),
        }
    }
}
