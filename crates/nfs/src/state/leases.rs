//! Leases: renewed by every SEQUENCE, and what happens when they run out (RFC 8881 §8.3).

use crate::state::{ClientId, Effect, Gone, State};
use bytes::Bytes;
use types::Timestamp;

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
    /// Removes every client whose lease has run out, with all its state, and ends what else has a deadline: the
    /// grace period, recalls that were not answered, notes of revoked layouts. Call it about once per second.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Expired> {
        let mut gone: Vec<_> = self.clients.iter().map(|c| c.id).filter(|c| self.lease_expired(*c, now)).collect();
        gone.sort();
        let mut expired = Vec::new();
        for id in gone {
            let Some(client) = self.clients.get(id) else { continue };
            expired.push(Expired {
                client: id,
                owner: client.owner.clone(),
                confirmed: client.confirmed,
                opens: self.opens.of_client(id),
                layouts: self.layouts.of_client(id),
            });
            self.drop_client(id, Gone::Revoked);
        }
        for owner in self.recovery.tick(now) {
            if self.clients.confirmed(&owner).is_none() {
                self.effects.push(Effect::Forget(owner));
            }
        }
        self.expire_recalls(now);
        expired
    }

    /// Whether the lease of this client is over. Requests being executed keep a client alive.
    pub(crate) fn lease_expired(&self, id: ClientId, now: Timestamp) -> bool {
        self.clients
            .get(id)
            .is_some_and(|c| now.since(c.renewed) > self.config.lease && !self.sessions.busy(&c.sessions))
    }

    /// Renews the lease of a client (§8.3).
    pub(crate) fn renew(&mut self, id: ClientId, now: Timestamp) {
        if let Some(client) = self.clients.get_mut(id) {
            client.renewed = client.renewed.max(now);
        }
    }
}
