//! NFSv4.1 state tables: clients, sessions, opens, locks, delegations and layouts as plain data; time and randomness are arguments.
//!
//! [`State`] is one value behind one lock of the server that owns it. Its methods never wait and never perform I/O:
//! what has to happen outside (a record to store, an object to reap, a client to fence) is collected as [`Effect`]s,
//! which the caller takes with [`State::take_effects`] after every call and carries out in order.

pub mod clients;
pub mod delegations;
pub mod layouts;
pub mod leases;
pub mod locks;
pub mod opens;
pub mod recovery;
pub mod sessions;
pub mod slots;
pub mod stateids;

use crate::fs::{ClientRecord, Iomode};
use crate::state::clients::Clients;
use crate::state::delegations::Delegations;
use crate::state::layouts::Layouts;
use crate::state::locks::Locks;
use crate::state::opens::Opens;
use crate::state::recovery::Recovery;
use crate::state::sessions::Sessions;
use bytes::Bytes;
use std::time::Duration;
use types::machine::is_share_full;
use types::{ByteRange, FileId, Machine, Timestamp};
use wire::nfs4::{clientid4, nfsstat4, sessionid4};

/// The result of a state operation; the error goes on the wire as it is.
pub type Result<T> = std::result::Result<T, nfsstat4>;

/// A client id (`clientid4`): the boot epoch in the high half, a number that cannot be guessed in the low half.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ClientId(pub clientid4);

/// A transport connection, numbered by whoever accepts them; a number is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnectionId(pub u64);

/// Who sent a request, as far as ownership of client records and false retries go (RFC 8881 §18.35.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Principal {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS with this user id.
    Sys(u32),
}

/// Who introduces itself, or takes its leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Who it says it is.
    pub principal: Principal,
    /// Where it is.
    pub origin: Machine,
    /// A random number: nobody else can guess the client id that is made of it.
    pub random: u32,
}

impl From<Principal> for Caller {
    /// Somebody on this machine, whose ids are numbered.
    fn from(principal: Principal) -> Self {
        Caller { principal, origin: Machine::Local(0), random: 0 }
    }
}

/// The usual time of courtesy, in leases.
const COURTESY_LEASES: u32 = 8;

/// Most clients of one address whose holdings are counted.
const COUNTED_MAX: usize = 256;

/// What a server fixes once, before the first request.
#[derive(Clone, Debug)]
pub struct Config {
    /// A number larger than at any earlier start: it makes ids of earlier starts recognisable. Never 0.
    pub boot_epoch: u32,
    /// The `EXCHGID4_FLAG_USE_*` bits of this server (RFC 8881 §13.1).
    pub roles: u32,
    /// How long nothing can happen to the state of a client after its last SEQUENCE.
    pub lease: Duration,
    /// How long after that it is kept while nobody else wants what it holds.
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

/// How a layout went without LAYOUTRETURN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// The client does not use it any more: it said so in a callback, or closed the file.
    Forgotten,
    /// The client that held it is no more, and another has come in its place: what it had sent for writing may still be
    /// under way to the data servers, and must be fenced from them. Nothing else of it needs to be.
    Restarted,
    /// It was taken away: the client may still use it and must be fenced from the data servers.
    Revoked,
}

impl Gone {
    /// Whether the client that held a layout for this use must be fenced from the data servers.
    pub fn is_to_be_fenced(self, iomode: Iomode) -> bool {
        match self {
            Gone::Forgotten => false,
            Gone::Restarted => iomode == Iomode::ReadWrite,
            Gone::Revoked => true,
        }
    }
}

/// What the owner of a [`State`] has to do about a change of state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Store this record durably before the reply of the current request leaves (RFC 8881 §8.4.2.1).
    Persist(ClientRecord),
    /// The record of this client owner may be deleted.
    Forget(Bytes),
    /// The lease of this client has run out: delete the record of its owner, then call [`State::lapsed`].
    Lapse {
        /// Which client.
        client: ClientId,
        /// Its owner.
        owner: Bytes,
    },
    /// The time for reclaims is over: delete the records of these owners, who did not come or did not finish, then call
    /// [`State::grace_over`].
    GraceOver(Vec<Bytes>),
    /// This client has not returned a delegation in time: delete the record of its owner, then call [`State::distrusted`].
    Distrust {
        /// Which client.
        client: ClientId,
        /// Its owner.
        owner: Bytes,
    },
    /// A delegation of the file is gone: whoever waits for that may look again.
    DelegationGone(FileId),
    /// A lock that this lock-owner was denied and waits for is free: tell it.
    LockFree {
        /// Whose it is.
        client: ClientId,
        /// Of which file.
        file: FileId,
        /// Who waits.
        owner: Bytes,
    },
    /// The last open of the file is gone, and the last delegation: a file without names may be reaped now.
    LastClose(FileId),
    /// A client holds no layout of these bytes for this use any more, without having sent LAYOUTRETURN.
    LayoutGone {
        /// Whose layout it was.
        client: ClientId,
        /// Of which file.
        file: FileId,
        /// For which use.
        iomode: Iomode,
        /// Which bytes.
        range: ByteRange,
        /// How it went.
        why: Gone,
    },
    /// The session is gone: calls waiting on its backchannel are lost.
    SessionGone(sessionid4),
}

impl Effect {
    /// Whether it is about the record of a client, without which a request must not succeed.
    pub fn is_of_record(&self) -> bool {
        use Effect::{Distrust, Forget, GraceOver, Lapse, Persist};
        matches!(self, Persist(_) | Forget(_) | Lapse { .. } | Distrust { .. } | GraceOver(_))
    }
}

/// Numbers of things held now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Client records, unconfirmed ones included.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Clients whose lease has run out and that hold something.
    pub lapsed: usize,
    /// Open states.
    pub opens: usize,
    /// Runs of bytes locked.
    pub locks: usize,
    /// LOCKs that were denied and are asked for again and again.
    pub lock_waits: usize,
    /// Delegations.
    pub delegations: usize,
    /// Layout states.
    pub layouts: usize,
    /// Recalls, of layouts and delegations, not yet answered by a return.
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
    pub(crate) recovery: Recovery,
    pub(crate) effects: Vec<Effect>,
    /// Lapsed clients that were removed because others wanted what they had, to be told by the next [`State::expire`].
    pub(crate) expelled: Vec<leases::Expired>,
    /// The number in the next stateid; never reused, so that an old stateid is never taken for a new one.
    pub(crate) next_stateid: u64,
}

impl State {
    /// Empty state. `records` are those persisted by earlier starts; without any there is no grace period.
    pub fn new(config: Config, records: Vec<ClientRecord>, now: Timestamp) -> Self {
        let recovery = Recovery::new(records, now, config.lease);
        State {
            clients: Clients::new(config.boot_epoch),
            sessions: Sessions::new(config.boot_epoch),
            opens: Opens::default(),
            locks: Locks::default(),
            delegations: Delegations::default(),
            layouts: Layouts::default(),
            recovery,
            effects: Vec::new(),
            expelled: Vec::new(),
            next_stateid: 1,
            config,
        }
    }

    /// What the server was configured with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The effects of all calls since the last take, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        self.wake_lock_waiters();
        std::mem::take(&mut self.effects)
    }

    /// How much is held now.
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

    /// Whether a client may not have one more of what all have together, `all` of at most `max`, for its machine has its share.
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
        // To count those of more clients would take long, and as many of one address are no usual sight.
        same.len() > COUNTED_MAX || is_share_full(same.iter().map(|client| of_client(*client)).sum(), all, max)
    }

    /// A fresh `other` field of the given kind.
    pub(crate) fn new_other(&mut self, kind: stateids::Kind) -> [u8; 12] {
        let index = self.next_stateid;
        self.next_stateid += 1;
        stateids::other(self.config.boot_epoch, kind, index)
    }
}
