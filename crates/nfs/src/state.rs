//! NFSv4.1 state tables: clients, sessions, opens, locks, delegations and layouts as plain data; time and randomness
//! are arguments.
//!
//! [`State`] is one value behind one lock of the server that owns it. Its methods never wait and never perform I/O.
//! They collect actions outside the tables (store a record, reap an object, fence a client) as [`Effect`]s. The caller
//! takes these with [`State::take_effects`] after every call and carries them out in order.

pub mod clients;
pub mod delegations;
pub mod grace_period;
pub mod layouts;
pub mod leases;
pub mod locks;
pub mod opens;
pub mod reply_cache;
pub mod sessions;
pub mod stateids;

use crate::fs::{ClientRecord, Iomode};
use crate::state::clients::Clients;
use crate::state::delegations::Delegations;
use crate::state::grace_period::GracePeriod;
use crate::state::layouts::Layouts;
use crate::state::locks::Locks;
use crate::state::opens::Opens;
use crate::state::sessions::Sessions;
use bytes::Bytes;
use std::time::Duration;
use types::machine::is_share_full;
use types::{ByteRange, FileId, Machine, Timestamp};
use wire::nfs4::{clientid4, nfsstat4, sessionid4};

/// The result of a state operation; the error goes on the wire unchanged.
pub type Result<T> = std::result::Result<T, nfsstat4>;

/// A client id (`clientid4`): the boot epoch in the high half, an unguessable number in the low half.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ClientId(pub clientid4);

/// A transport connection, numbered by the part that accepts connections; no number is used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnectionId(pub u64);

/// The sender of a request, for ownership of client records and detection of false retries (RFC 8881 §18.35.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Principal {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS with this user id.
    Sys(u32),
}

/// The sender of EXCHANGE_ID or DESTROY_CLIENTID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The principal that the sender claims to be.
    pub principal: Principal,
    /// The machine of the sender.
    pub origin: Machine,
    /// A random number that makes the client id unguessable.
    pub random: u32,
}

impl From<Principal> for Caller {
    /// A caller on this machine, with sequential client ids.
    fn from(principal: Principal) -> Self {
        Caller { principal, origin: Machine::Local(0), random: 0 }
    }
}

/// The default courtesy time, in lease periods.
const COURTESY_LEASES: u32 = 8;

/// The largest number of clients of one address for which holdings are counted.
const COUNTED_MAX: usize = 256;

/// Settings that a server fixes before the first request.
#[derive(Clone, Debug)]
pub struct Config {
    /// A number larger than at every earlier start, so that ids of earlier starts are recognisable. Never 0.
    pub boot_epoch: u32,
    /// The `EXCHGID4_FLAG_USE_*` bits of this server (RFC 8881 §13.1).
    pub roles: u32,
    /// For how long after its last SEQUENCE a client keeps its state unconditionally.
    pub lease: Duration,
    /// How long the state is kept after that while no other client wants it.
    pub courtesy: Duration,
    /// Largest request and reply accepted in a session, in bytes, RPC headers included.
    pub max_message: u32,
    /// Bytes that the reply caches of all sessions together may hold.
    pub reply_cache_bytes: u64,
}

impl Config {
    /// The usual limits, for a server with these roles.
    pub fn new(boot_epoch: u32, roles: u32, lease: Duration) -> Self {
        let courtesy = lease * COURTESY_LEASES;
        let max_message = types::limits::RECORD_MAX as u32;
        Config { boot_epoch, roles, lease, courtesy, max_message, reply_cache_bytes: types::limits::REPLY_CACHE_BYTES }
    }
}

/// How a layout ended without LAYOUTRETURN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// The client no longer uses the layout: it said so in a callback, or closed the file.
    Forgotten,
    /// The client that held the layout has restarted under a new client record. Its writes may still be on the way to
    /// the data servers, so its layouts for writing must be fenced. Its other layouts need no fencing.
    Restarted,
    /// The server revoked the layout: the client may still use it and must be fenced from the data servers.
    Revoked,
}

impl Gone {
    /// Returns whether the client that held a layout for this use must be fenced from the data servers.
    pub fn is_to_be_fenced(self, iomode: Iomode) -> bool {
        match self {
            Gone::Forgotten => false,
            Gone::Restarted => iomode == Iomode::ReadWrite,
            Gone::Revoked => true,
        }
    }
}

/// An action that the owner of a [`State`] must carry out after a change of state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Store this record durably before the reply to the current request is sent (RFC 8881 §8.4.2.1).
    Persist(ClientRecord),
    /// The record of this client owner may be deleted.
    Forget(Bytes),
    /// The lease of this client has run out: delete the record of its owner, then call [`State::lapsed`].
    Lapse {
        /// The client.
        client: ClientId,
        /// The owner string of the client.
        owner: Bytes,
    },
    /// The grace period is over: delete the records of these owners, which did not come back or did not finish their
    /// reclaims, then call [`State::grace_over`].
    GraceOver(Vec<Bytes>),
    /// This client has not returned a delegation in time: delete the record of its owner, then call
    /// [`State::distrusted`].
    Distrust {
        /// The client.
        client: ClientId,
        /// The owner string of the client.
        owner: Bytes,
    },
    /// A delegation of the file is gone: requests that wait for this check again.
    DelegationGone(FileId),
    /// A lock that a lock-owner was denied and waits for is free: notify the client.
    LockFree {
        /// The client of the lock-owner.
        client: ClientId,
        /// The file.
        file: FileId,
        /// The lock-owner that waits.
        owner: Bytes,
    },
    /// The last open and the last delegation of the file are gone: the server may now reap a file without names.
    LastClose(FileId),
    /// A client no longer holds a layout of these bytes for this use, and has not sent LAYOUTRETURN.
    LayoutGone {
        /// The client that held the layout.
        client: ClientId,
        /// The file.
        file: FileId,
        /// The use.
        iomode: Iomode,
        /// The bytes.
        range: ByteRange,
        /// How the layout ended.
        why: Gone,
    },
    /// The session is gone: calls that wait on its backchannel are lost.
    SessionGone(sessionid4),
}

impl Effect {
    /// Returns whether it concerns a client record, without which a request must not succeed.
    pub fn is_of_record(&self) -> bool {
        use Effect::{Distrust, Forget, GraceOver, Lapse, Persist};
        matches!(self, Persist(_) | Forget(_) | Lapse { .. } | Distrust { .. } | GraceOver(_))
    }
}

/// Numbers of objects in the state tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Client records, unconfirmed ones included.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Clients whose lease has expired and that still hold state.
    pub lapsed: usize,
    /// Open states.
    pub opens: usize,
    /// Locked byte runs.
    pub locks: usize,
    /// Denied LOCKs that clients keep retrying.
    pub lock_waits: usize,
    /// Delegations.
    pub delegations: usize,
    /// Layout states.
    pub layouts: usize,
    /// Recalls of layouts and delegations that wait for the return.
    pub recalls: usize,
}

/// All state of one NFSv4.1 server.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) config: Config,
    pub(crate) clients: Clients,
    pub(crate) sessions: Sessions,
    pub(crate) opens: Opens,
    pub(crate) locks: Locks,
    pub(crate) delegations: Delegations,
    pub(crate) layouts: Layouts,
    pub(crate) grace: GracePeriod,
    pub(crate) effects: Vec<Effect>,
    /// Lapsed clients that were removed because other clients wanted their state; the next [`State::expire`] reports
    /// them.
    pub(crate) expelled: Vec<leases::Expired>,
    /// The number in the next stateid; never reused, so that an old stateid is never taken for a new one.
    pub(crate) next_stateid: u64,
}

impl State {
    /// Creates empty state. `records` are those persisted by earlier starts; without records there is no grace period.
    pub fn new(config: Config, records: Vec<ClientRecord>, now: Timestamp) -> Self {
        let grace = GracePeriod::new(records, now, config.lease);
        State {
            clients: Clients::new(config.boot_epoch),
            sessions: Sessions::new(config.boot_epoch),
            opens: Opens::default(),
            locks: Locks::default(),
            delegations: Delegations::default(),
            layouts: Layouts::default(),
            grace,
            effects: Vec::new(),
            expelled: Vec::new(),
            next_stateid: 1,
            config,
        }
    }

    /// Returns the configuration of the server.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the effects of all calls since the last take, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        self.wake_lock_waiters();
        std::mem::take(&mut self.effects)
    }

    /// Returns the numbers of objects held now.
    pub fn counts(&self) -> Counts {
        Counts {
            clients: self.clients.len(),
            sessions: self.sessions.len(),
            lapsed: self.lapsed_clients(),
            opens: self.opens.len(),
            locks: self.locks.len(),
            lock_waits: self.locks.waiting(),
            delegations: self.delegations.len(),
            layouts: self.layouts.len(),
            recalls: self.layouts.recalls() + self.delegations.recalls(),
        }
    }

    /// Returns whether a client is refused one more object, of which all clients together hold `all` of at most `max`,
    /// because its machine has its share.
    pub(crate) fn is_share_full(
        &self,
        client: ClientId,
        of_client: impl Fn(ClientId) -> usize,
        (all, max): (usize, usize),
    ) -> bool {
        if !is_share_full(all, all, max) {
            return false;
        }
        let same = self.clients.beside(client);
        // Counting the objects of more clients would take long, and so many clients at one address are unusual.
        same.len() > COUNTED_MAX || is_share_full(same.iter().map(|client| of_client(*client)).sum(), all, max)
    }

    /// Returns a fresh `other` field of the given kind.
    pub(crate) fn new_other(&mut self, kind: stateids::Kind) -> [u8; 12] {
        let index = self.next_stateid;
        self.next_stateid += 1;
        stateids::other(self.config.boot_epoch, kind, index)
    }
}
