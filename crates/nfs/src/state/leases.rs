//! Leases: renewed by every SEQUENCE, and what happens when they run out (RFC 8881 §8.3, §8.4.3).
//!
//! A client whose lease has run out is *lapsed*: it keeps what it holds until somebody else wants it or too much time has
//! passed, and goes on as if nothing had happened if it comes back before. From the moment that anything of it may be
//! given away it has no record on disk, so that after a restart it cannot reclaim what another had meanwhile.
//!
//! If an open, a lock or a delegation for writing stands in somebody's way it loses all that it has, and its client id. To lose
//! that one lock would do, but Linux, when told that some state is gone, first forgets all stateids of locks, then
//! opens files again, and marks locks as lost at last: meanwhile it writes under the stateid of the open what belonged under
//! the lock. Without a client id it sends nothing until it has found out what it has lost. Who has a delegation for writing
//! may hold locks under it that only it knows of.

use crate::fs::ClientRecord;
use crate::state::{ClientId, Effect, Gone, State};
use bytes::Bytes;
use std::time::Duration;
use types::{FileId, Timestamp, limits};

/// How far a client is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Lapse {
    /// Its lease is good.
    #[default]
    None,
    /// Its lease has run out; its record is being removed.
    Noticed,
    /// And is gone: what the client holds yields to others.
    Yields,
}

/// A client that [`State::expire`] removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expired {
    /// Its id; requests on its sessions get BADSESSION from now on.
    pub client: ClientId,
    /// Its owner string, for the log.
    pub owner: Bytes,
    /// Whether it had been confirmed; unconfirmed records expire silently.
    pub confirmed: bool,
    /// Open states released.
    pub opens: usize,
    /// Layout states taken away; their segments are [`Effect::LayoutGone`] too.
    pub layouts: usize,
}

impl State {
    /// Deals with every client whose lease has run out, and ends what else has a deadline: the grace period, recalls that
    /// were not answered, notes of revoked layouts, turns of those who wait for locks. Call it about once per second.
    ///
    /// Returns the clients that were removed with all their state since the last call: those that stood in the way of others, those that hold nothing, those that were away for the
    /// time of courtesy, and those away for longest when there are too many.
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
        let late = self.recovery.late(now);
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

    /// Takes everything from a lapsed client that somebody wants something of; the next [`State::expire`] tells.
    pub(crate) fn expel(&mut self, id: ClientId) {
        let gone = self.remove_expired(id);
        self.expelled.extend(gone);
    }

    /// Notices that a lease has run out; until the record is known to be gone it is asked for again.
    fn lapse(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id).filter(|c| c.lapse != Lapse::Yields) else { return };
        client.lapse = Lapse::Noticed;
        client.recorded = false;
        self.effects.push(Effect::Lapse { client: id, owner: client.owner.clone() });
    }

    /// The record of a lapsed client is gone from the disk: what it holds yields to others from now on.
    pub fn lapsed(&mut self, id: ClientId) {
        match self.clients.get_mut(id) {
            Some(client) if client.lapse == Lapse::Noticed => client.lapse = Lapse::Yields,
            // It came back while the record was being removed.
            Some(_) => {
                self.unrecord(id);
                self.note_record(id);
            }
            None => {}
        }
    }

    /// Whether what this client holds yields to others.
    pub(crate) fn is_lapsed(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|c| c.lapse == Lapse::Yields)
    }

    /// Number of clients whose lease has run out and that hold something.
    pub(crate) fn lapsed_clients(&self) -> usize {
        self.clients.iter().filter(|c| c.lapse != Lapse::None).count()
    }

    /// Something of a lapsed client was given away: it must not write to that file past this server any more.
    pub(crate) fn fence_lapsed(&mut self, id: ClientId, file: FileId) {
        self.drop_layouts_of(id, file, Gone::Revoked);
    }

    /// The client's record may be gone from the disk.
    pub(crate) fn unrecord(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(id) {
            client.recorded = false;
        }
    }

    /// Has the client's record stored if it may reclaim after a restart and there is none: it has nothing left to reclaim
    /// from before this start, its lease is good, and it knows of everything that was taken from it (§8.4.3).
    pub(crate) fn note_record(&mut self, id: ClientId) {
        let unknowing = self.delegations.is_distrusted(id);
        let Some(client) = self.clients.get_mut(id) else { return };
        let may = client.confirmed && client.reclaim_complete && client.lapse == Lapse::None && !unknowing;
        if may && !std::mem::replace(&mut client.recorded, true) {
            self.effects.push(Effect::Persist(ClientRecord { owner: client.owner.clone(), clientid: id.0 }));
        }
    }

    /// Whether the lease of this client is over. Requests being executed keep a client alive.
    pub(crate) fn lease_expired(&self, id: ClientId, now: Timestamp) -> bool {
        self.clients
            .get(id)
            .is_some_and(|c| now.since(c.renewed) > self.config.lease && !self.sessions.busy(&c.sessions))
    }

    /// Whether a client was heard of within this time.
    pub(crate) fn is_heard_of(&self, id: ClientId, within: Duration, now: Timestamp) -> bool {
        self.clients.get(id).is_some_and(|c| now.since(c.renewed) < within)
    }

    /// Renews the lease of a client (§8.3). One that was away goes on with what it has left.
    pub(crate) fn renew(&mut self, id: ClientId, now: Timestamp) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.renewed = client.renewed.max(now);
        if std::mem::take(&mut client.lapse) != Lapse::None {
            self.note_record(id);
        }
    }
}
