//! NFSv4.1 state tables: clients, sessions, opens, locks, delegations and layouts as pure data; time and randomness are
//! arguments.
//!
//! The server keeps one [`State`] behind one lock. The methods of [`State`] never wait and perform no I/O. They record
//! actions outside the tables (store a record, free an orphan, fence a client) as [`Effect`]s. After every call the
//! server takes the effects with [`State::take_effects`] and carries them out in order.

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

/// The result of an operation on the state tables; the server sends the error unchanged.
pub type Result<T> = std::result::Result<T, nfsstat4>;

/// A client id (`clientid4`): the boot epoch in the upper 32 bits, and an unguessable number in the lower 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ClientId(pub clientid4);

/// The number of a transport connection, unique over the life of the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnectionId(pub u64);

/// The authenticated sender of a request. The server uses the principal to check the owner of client records and to
/// detect false retries (RFC 8881 §18.35.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Principal {
    /// A sender without authentication (AUTH_NONE).
    None,
    /// A sender with this user id (AUTH_SYS).
    Sys(u32),
}

/// The sender of EXCHANGE_ID or DESTROY_CLIENTID, and a random number for a new client id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The principal in the request's credential.
    pub principal: Principal,
    /// The machine that sent the request.
    pub origin: Machine,
    /// A random number from which the server makes an unguessable client id.
    pub random: u32,
}

impl From<Principal> for Caller {
    /// Returns a caller on the server's own machine, without randomness, so that client ids are sequential.
    fn from(principal: Principal) -> Self {
        Caller { principal, origin: Machine::Local(0), random: 0 }
    }
}

/// The default courtesy time, in lease periods. [`Config::courtesy`] explains the courtesy time.
const COURTESY_LEASES: u32 = 8;

/// Largest number of clients at one address whose opens, locks and other state the server counts. With more clients at
/// the address, the server treats the address as having used up its share of every limit.
const COUNTED_MAX: usize = 256;

/// Settings of the state tables, which stay the same while the server runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The boot epoch: a number larger than at every earlier start of the server, never 0. Client ids, session ids and
    /// stateids contain the boot epoch, so the server recognises ids of earlier starts.
    pub boot_epoch: u32,
    /// The roles of this server: `EXCHGID4_FLAG_USE_*` bits (RFC 8881 §13.1).
    pub roles: u32,
    /// The lease period: how long after its last SEQUENCE a client keeps its state unconditionally.
    pub lease: Duration,
    /// How long a client with an expired lease keeps its state, unless a request of another client conflicts with this
    /// state (courtesy time).
    pub courtesy: Duration,
    /// Largest request and largest reply in a session, in bytes, including RPC headers.
    pub max_message: u32,
    /// Memory budget of the reply caches of all sessions together, in bytes.
    pub reply_cache_bytes: u64,
}

impl Config {
    /// Returns the default settings for a server with these roles.
    pub fn new(boot_epoch: u32, roles: u32, lease: Duration) -> Self {
        let courtesy = lease * COURTESY_LEASES;
        let max_message = types::limits::RECORD_MAX as u32;
        Config { boot_epoch, roles, lease, courtesy, max_message, reply_cache_bytes: types::limits::REPLY_CACHE_BYTES }
    }
}

/// How a layout ended without a LAYOUTRETURN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// The client no longer uses the layout: the client closed the file, or answered a recall with NOMATCHING_LAYOUT.
    /// No fence is needed.
    Forgotten,
    /// The layout holder has restarted under a new client record. Writes from before its restart may still be in
    /// flight, so the server must fence the layouts for writing from before the restart. Layouts for reading need no
    /// fence.
    Restarted,
    /// The server revoked the layout. The holder may still use the layout, so the server must fence the holder from the
    /// data servers.
    Revoked,
}

impl Gone {
    /// Returns whether the server must fence the holder of a layout with this iomode from the data servers.
    pub fn is_to_be_fenced(self, iomode: Iomode) -> bool {
        match self {
            Gone::Forgotten => false,
            Gone::Restarted => iomode == Iomode::ReadWrite,
            Gone::Revoked => true,
        }
    }
}

/// An action outside the state tables that the server must carry out after a call to [`State`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Store this client record durably before the reply to the current request (RFC 8881 §8.4.2.1).
    Persist(ClientRecord),
    /// Delete the record of this client owner.
    Forget(Bytes),
    /// The lease of this client has expired. Delete the record of its client owner, then call [`State::lapsed`].
    Lapse {
        /// The client whose lease has expired.
        client: ClientId,
        /// The client owner of the record to delete.
        owner: Bytes,
    },
    /// The grace period has ended by timeout. Delete the records of these client owners, which have not completed their
    /// reclaims, then call [`State::grace_over`].
    GraceOver(Vec<Bytes>),
    /// This client has not returned a recalled delegation in time. Delete the record of its client owner, then call
    /// [`State::distrusted`].
    Distrust {
        /// The client that has not returned the delegation.
        client: ClientId,
        /// The client owner of the record to delete.
        owner: Bytes,
    },
    /// A delegation of this file has ended. Wake the requests that wait for the return of the delegation.
    DelegationGone(FileId),
    /// A lock that a lock-owner waits for may be free. Notify the client of the lock-owner (CB_NOTIFY_LOCK).
    LockFree {
        /// The client of the lock-owner.
        client: ClientId,
        /// The file of the lock.
        file: FileId,
        /// The lock-owner that waits for the lock.
        owner: Bytes,
    },
    /// The last open and the last delegation of this file have ended. Free the file if it has no name.
    LastClose(FileId),
    /// A client no longer holds a layout, without having sent LAYOUTRETURN. Report the end of the layout to the file
    /// system, and fence the holder if `why` requires it.
    LayoutGone {
        /// The client that held the layout.
        client: ClientId,
        /// The file of the layout.
        file: FileId,
        /// The iomode of the layout.
        iomode: Iomode,
        /// The byte range of the layout.
        range: ByteRange,
        /// How the layout ended.
        why: Gone,
    },
    /// The session has ended. Give up the callbacks in flight on its backchannel.
    SessionGone(sessionid4),
}

impl Effect {
    /// Returns whether the effect stores or deletes a client record. If such an effect fails, the server must fail the
    /// current request.
    pub fn is_of_record(&self) -> bool {
        use Effect::{Distrust, Forget, GraceOver, Lapse, Persist};
        matches!(self, Persist(_) | Forget(_) | Lapse { .. } | Distrust { .. } | GraceOver(_))
    }
}

/// Counts of the entries in the state tables, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Number of client records, including unconfirmed ones.
    pub clients: usize,
    /// Number of sessions.
    pub sessions: usize,
    /// Number of clients whose lease has expired and that still hold state.
    pub lapsed: usize,
    /// Number of open states.
    pub opens: usize,
    /// Number of locked byte ranges.
    pub locks: usize,
    /// Number of denied LOCKs that clients keep retrying.
    pub lock_waits: usize,
    /// Number of delegations, without revoked ones.
    pub delegations: usize,
    /// Number of layout states, including revoked ones.
    pub layouts: usize,
    /// Number of layout recalls and delegation recalls that are still in progress.
    pub recalls: usize,
}

/// All protocol state of one NFSv4.1 server.
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
    /// Clients with an expired lease that the server removed because requests of other clients conflicted with their
    /// state. The next [`State::expire`] returns these clients.
    pub(crate) expelled: Vec<leases::Expired>,
    /// The index in the next stateid. The index only grows, so no two stateids of one boot epoch are equal.
    pub(crate) next_stateid: u64,
}

impl State {
    /// Creates empty state tables. `records` are the client records of earlier starts; without records there is no
    /// grace period.
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

    /// Returns the settings of the state tables.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Removes and returns the effects that calls have recorded since the last `take_effects`, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        self.wake_lock_waiters();
        std::mem::take(&mut self.effects)
    }

    /// Returns the current numbers of entries in the state tables.
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

    /// Returns whether the server must refuse an open, a lock or other new state to a client, because the clients at
    /// its address have used up their share of the limit. `all` is the number of entries (for example opens) that all
    /// clients together have, at most `max`.
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
        // Counting the state of more than `COUNTED_MAX` clients takes long. If one address has more clients, treat its
        // share of the table as used up.
        same.len() > COUNTED_MAX || is_share_full(same.iter().map(|client| of_client(*client)).sum(), all, max)
    }

    /// Returns a new `other` field of a stateid of this kind.
    pub(crate) fn new_other(&mut self, kind: stateids::Kind) -> [u8; 12] {
        let index = self.next_stateid;
        self.next_stateid += 1;
        stateids::other(self.config.boot_epoch, kind, index)
    }
}
