//! Leases: their renewal by SEQUENCE, and what the server does with clients whose lease has expired (RFC 8881 §8.3,
//! §8.4.3).
//!
//! A client whose lease has expired keeps its state until a request of another client conflicts with the state, or the
//! courtesy time has passed. Before the server grants such state to another client, it deletes the expired client's
//! durable record. So the expired client cannot reclaim, after a server restart, state that another client has held.
//!
//! If an open, a lock or a write delegation of the expired client conflicts with a request of another client, the
//! server removes the expired client with all its state. Removing only the lock is not enough: the Linux client could
//! still write the bytes under its open stateid, before it notices the loss of the lock. The holder of a write
//! delegation may also have byte-range locks that the server does not know.

use crate::fs::ClientRecord;
use crate::state::{ClientId, Effect, Gone, State};
use bytes::Bytes;
use std::time::Duration;
use types::{FileId, Timestamp, limits};

/// The stages of a client's lease expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Lapse {
    /// The lease is valid.
    #[default]
    None,
    /// The lease has expired, and the server is deleting the client's durable record.
    Noticed,
    /// The durable record is deleted. On a conflict, the server now revokes this client's state in favour of the other
    /// client.
    Yields,
}

/// A client that [`State::expire`] removed with all its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expired {
    /// The id of the removed client. From now on, requests on its sessions fail with BADSESSION.
    pub client: ClientId,
    /// The client owner, for the log.
    pub owner: Bytes,
    /// Whether the client record was confirmed. The server logs only removals of confirmed records.
    pub confirmed: bool,
    /// Number of open states that the server released.
    pub opens: usize,
    /// Number of layout states that the server revoked. An [`Effect::LayoutGone`] reports each segment.
    pub layouts: usize,
}

impl State {
    /// Handles passed deadlines: of leases, of the grace period, of unanswered recalls, of entries of revoked layouts,
    /// and of lock-owners that wait for locks. The server calls this method about once per second.
    ///
    /// Returns the clients that the server has removed with all their state since the previous call. The server removes
    /// a client with an expired lease if the client's state conflicts with a request of another client, if the client
    /// has no state, or if its courtesy time is over. If too many clients with an expired lease still hold state, the
    /// server removes those that have been silent for the longest time.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Expired> {
        let mut gone: Vec<_> = self.clients.iter().map(|c| c.id).filter(|c| self.lease_expired(*c, now)).collect();
        gone.sort_by_key(|id| (self.clients.get(*id).map(|c| c.renewed), *id));
        let mut lapsed = gone.iter().filter(|id| self.is_lapsed(**id)).count();
        let mut expired = std::mem::take(&mut self.expelled);
        for id in gone {
            let Some(client) = self.clients.get_mut(id) else { continue };
            let long = now.since(client.renewed) > self.config.lease + self.config.courtesy;
            let yields = client.lapse == Lapse::Yields;
            if yields && (long || lapsed > limits::LAPSED_CLIENTS_MAX) {
                lapsed -= 1;
            } else if client.confirmed && self.holds(id) {
                self.lapse(id);
                continue;
            }
            expired.extend(self.remove_expired(id));
        }
        let late = self.grace.late(now);
        if !late.is_empty() {
            self.effects.push(Effect::GraceOver(late));
        }
        self.expire_recalls(now);
        self.expire_delegations(now);
        self.locks.tidy_waiting(None, Some(now));
        expired
    }

    fn remove_expired(&mut self, id: ClientId) -> Option<Expired> {
        let client = self.clients.get(id)?;
        let expired = Expired {
            client: id,
            owner: client.owner.clone(),
            confirmed: client.confirmed,
            opens: self.opens.of_client(id),
            layouts: self.layouts.of_client(id),
        };
        self.drop_client(id, Gone::Revoked);
        Some(expired)
    }

    /// Removes a client with an expired lease and all its state, because a request of another client conflicts with
    /// this state. The next call of [`State::expire`] returns the removed client.
    pub(crate) fn expel(&mut self, id: ClientId) {
        let gone = self.remove_expired(id);
        self.expelled.extend(gone);
    }

    /// Marks a lease as expired and requests deletion of the client's durable record. Every [`State::expire`] repeats
    /// the request until [`State::lapsed`] confirms the deletion.
    fn lapse(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id).filter(|c| c.lapse != Lapse::Yields) else { return };
        client.lapse = Lapse::Noticed;
        client.recorded = false;
        self.effects.push(Effect::Lapse { client: id, owner: client.owner.clone() });
    }

    /// Records that the server has deleted the durable record of a client with an expired lease. After this call, the
    /// server revokes the client's state if a request of another client conflicts with this state.
    pub fn lapsed(&mut self, id: ClientId) {
        match self.clients.get_mut(id) {
            Some(client) if client.lapse == Lapse::Noticed => client.lapse = Lapse::Yields,
            // The client renewed its lease while the server deleted the client's record, so store the record again.
            Some(_) => {
                self.unrecord(id);
                self.note_record(id);
            }
            None => {}
        }
    }

    /// Returns whether the client's lease has expired and its durable record is deleted, so that the server may revoke
    /// the client's state if a request of another client conflicts with this state.
    pub(crate) fn is_lapsed(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|c| c.lapse == Lapse::Yields)
    }

    /// Returns the number of clients whose lease has expired and that still hold state.
    pub(crate) fn lapsed_clients(&self) -> usize {
        self.clients.iter().filter(|c| c.lapse != Lapse::None).count()
    }

    /// Removes the layouts of one file that a client with an expired lease holds, and requests a fence, so that the
    /// client can no longer write to the data servers.
    pub(crate) fn fence_lapsed(&mut self, id: ClientId, file: FileId) {
        self.drop_layouts_of(id, file, Gone::Revoked);
    }

    /// Records that the client's durable record no longer counts as stored, because the server may have deleted it.
    pub(crate) fn unrecord(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(id) {
            client.recorded = false;
        }
    }

    /// Requests to store the client's durable record, unless it is already stored. The client must have finished its
    /// reclaims, have a valid lease, and know of every revocation (§8.4.3).
    pub(crate) fn note_record(&mut self, id: ClientId) {
        let unknowing = self.delegations.is_distrusted(id);
        let Some(client) = self.clients.get_mut(id) else { return };
        let may = client.confirmed && client.reclaim_complete && client.lapse == Lapse::None && !unknowing;
        if may && !std::mem::replace(&mut client.recorded, true) {
            self.effects.push(Effect::Persist(ClientRecord { owner: client.owner.clone(), clientid: id.0 }));
        }
    }

    /// Returns whether the lease of this client has expired. A lease does not expire while the server executes a
    /// request of the client.
    pub(crate) fn lease_expired(&self, id: ClientId, now: Timestamp) -> bool {
        self.clients
            .get(id)
            .is_some_and(|c| now.since(c.renewed) > self.config.lease && !self.sessions.busy(&c.sessions))
    }

    /// Returns whether the client has renewed its lease less than `within` ago.
    pub(crate) fn is_heard_of(&self, id: ClientId, within: Duration, now: Timestamp) -> bool {
        self.clients.get(id).is_some_and(|c| now.since(c.renewed) < within)
    }

    /// Renews the lease of a client (§8.3). If the lease had expired, the client keeps the state that the server has
    /// not revoked.
    pub(crate) fn renew(&mut self, id: ClientId, now: Timestamp) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.renewed = client.renewed.max(now);
        if std::mem::take(&mut client.lapse) != Lapse::None {
            self.note_record(id);
        }
    }
}
