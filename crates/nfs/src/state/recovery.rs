//! Recovery after a restart of the server: who may reclaim, and how long everybody else waits (RFC 8881 §8.4.2).

use crate::fs::ClientRecord;
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
    until: Timestamp,
}

impl Recovery {
    /// A grace period of one lease when there are records, none otherwise.
    pub fn new(records: Vec<ClientRecord>, now: Timestamp, lease: Duration) -> Self {
        Recovery { waiting: records.into_iter().map(|r| r.owner).collect(), until: now.after(lease) }
    }

    /// Whether reclaims are granted and everything that could conflict with them is not.
    pub fn in_grace(&self, now: Timestamp) -> bool {
        !self.waiting.is_empty() && now < self.until
    }

    /// The owner reclaims nothing more.
    pub(crate) fn complete(&mut self, owner: &Bytes) {
        self.waiting.remove(owner);
    }

    /// Ends the grace period when its time is over; returns the owners of which nothing was heard, in order.
    pub(crate) fn tick(&mut self, now: Timestamp) -> Vec<Bytes> {
        if now < self.until {
            return Vec::new();
        }
        let mut absent: Vec<_> = self.waiting.drain().collect();
        absent.sort();
        absent
    }
}

impl State {
    /// Whether the server is in its grace period.
    pub fn in_grace(&self, now: Timestamp) -> bool {
        self.recovery.in_grace(now)
    }

    /// Whether `client` may get a lock (OPEN, LOCK) now; `reclaim` for CLAIM_PREVIOUS and its kin.
    ///
    /// # Errors
    /// GRACE (others may still reclaim, or the client has not sent RECLAIM_COMPLETE, §18.51.3); for a reclaim
    /// NO_GRACE when it is too late, RECLAIM_BAD when the client held nothing before the restart.
    pub fn check_grace(&self, client: ClientId, reclaim: bool, now: Timestamp) -> Result<()> {
        let client = self.clients.get(client).ok_or(NFS4ERR_STALE_CLIENTID)?;
        let grace = self.in_grace(now);
        match reclaim {
            true if !grace || client.reclaim_complete => Err(NFS4ERR_NO_GRACE),
            true if !self.recovery.waiting.contains(&client.owner) => Err(NFS4ERR_RECLAIM_BAD),
            false if grace || !client.reclaim_complete => Err(NFS4ERR_GRACE),
            _ => Ok(()),
        }
    }
}
