//! Leases: renewed by every SEQUENCE, and the handling of clients whose lease expires (RFC 8881 §8.3, §8.4.3).
//!
//! A client whose lease has expired is *lapsed*. It keeps its state until another client wants it or the courtesy time
//! has passed. If it comes back before that, it continues with its state. Before the server gives any of that state
//! away it deletes the client's record on disk, so that after a restart the client cannot reclaim state that another
//! client has held meanwhile.
//!
//! If an open, a lock or a write delegation of a lapsed client conflicts with another client, the lapsed client loses
//! all its state and its client id. Removing the one lock would be enough for the protocol. But when Linux learns that
//! some state is gone, it first forgets all lock stateids, then opens files again, and marks locks as lost last.
//! Meanwhile it writes, under the open stateid, data that belonged under the lock. Without a client id it sends nothing
//! until it has found all state that it lost. A holder of a write delegation may have locks under it that only the
//! client knows of.

use crate::fs::ClientRecord;
use crate::state::{ClientId, Effect, Gone, State};
use bytes::Bytes;
use std::time::Duration;
use types::{FileId, Timestamp, limits};

/// How far the expiry of a client's lease has progressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Lapse {
    /// The lease is valid.
    #[default]
    None,
    /// The lease has expired; the client's record is being deleted.
    Noticed,
    /// The record is deleted: the client's state yields to other clients.
    Yields,
}

/// A client that [`State::expire`] removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expired {
    /// The id of the client; requests on its sessions get BADSESSION from now on.
    pub client: ClientId,
    /// The owner string of the client, for the log.
    pub owner: Bytes,
    /// Whether it had been confirmed; unconfirmed records expire silently.
    pub confirmed: bool,
    /// Number of open states released.
    pub opens: usize,
    /// Number of layout states revoked; each segment is also reported as [`Effect::LayoutGone`].
    pub layouts: usize,
}

impl State {
    /// Handles every client whose lease has expired, and ends everything else with a deadline: the grace period,
    /// unanswered recalls, entries of revoked layouts, and waits for locks. Call it about once per second.
    ///
    /// Returns the clients removed with all their state since the last call: those with conflicting state, those
    /// without state, those silent for longer than the courtesy time, and the longest silent ones if there are too
    /// many.
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

    /// Removes a lapsed client with all its state because another client wants some of it; the next [`State::expire`]
    /// reports it.
    pub(crate) fn expel(&mut self, id: ClientId) {
        let gone = self.remove_expired(id);
        self.expelled.extend(gone);
    }

    /// Marks a lease as expired, and requests deletion of the client's record until the deletion is confirmed.
    fn lapse(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id).filter(|c| c.lapse != Lapse::Yields) else { return };
        client.lapse = Lapse::Noticed;
        client.recorded = false;
        self.effects.push(Effect::Lapse { client: id, owner: client.owner.clone() });
    }

    /// Marks the record of a lapsed client as deleted from disk: its state yields to other clients from now on.
    pub fn lapsed(&mut self, id: ClientId) {
        match self.clients.get_mut(id) {
            Some(client) if client.lapse == Lapse::Noticed => client.lapse = Lapse::Yields,
            // The client came back while its record was being deleted.
            Some(_) => {
                self.unrecord(id);
                self.note_record(id);
            }
            None => {}
        }
    }

    /// Returns whether the state of this client yields to other clients.
    pub(crate) fn is_lapsed(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|c| c.lapse == Lapse::Yields)
    }

    /// Number of clients whose lease has expired and that still hold state.
    pub(crate) fn lapsed_clients(&self) -> usize {
        self.clients.iter().filter(|c| c.lapse != Lapse::None).count()
    }

    /// Fences a lapsed client that has lost state of a file: it must no longer write the file on the data servers.
    pub(crate) fn fence_lapsed(&mut self, id: ClientId, file: FileId) {
        self.drop_layouts_of(id, file, Gone::Revoked);
    }

    /// Notes that the client's record may be deleted from disk.
    pub(crate) fn unrecord(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(id) {
            client.recorded = false;
        }
    }

    /// Requests that the client's record is stored, if the client may reclaim after a restart and has no record. It may
    /// if it has finished reclaiming, its lease is valid, and it knows of every revocation (§8.4.3).
    pub(crate) fn note_record(&mut self, id: ClientId) {
        let unknowing = self.delegations.is_distrusted(id);
        let Some(client) = self.clients.get_mut(id) else { return };
        let may = client.confirmed && client.reclaim_complete && client.lapse == Lapse::None && !unknowing;
        if may && !std::mem::replace(&mut client.recorded, true) {
            self.effects.push(Effect::Persist(ClientRecord { owner: client.owner.clone(), clientid: id.0 }));
        }
    }

    /// Returns whether the lease of this client has expired. A request in execution keeps the lease valid.
    pub(crate) fn lease_expired(&self, id: ClientId, now: Timestamp) -> bool {
        self.clients
            .get(id)
            .is_some_and(|c| now.since(c.renewed) > self.config.lease && !self.sessions.busy(&c.sessions))
    }

    /// Returns whether a client has renewed its lease within this time.
    pub(crate) fn is_heard_of(&self, id: ClientId, within: Duration, now: Timestamp) -> bool {
        self.clients.get(id).is_some_and(|c| now.since(c.renewed) < within)
    }

    /// Renews the lease of a client (§8.3). A lapsed client continues with the state that it still has.
    pub(crate) fn renew(&mut self, id: ClientId, now: Timestamp) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.renewed = client.renewed.max(now);
        if std::mem::take(&mut client.lapse) != Lapse::None {
            self.note_record(id);
        }
    }
}
