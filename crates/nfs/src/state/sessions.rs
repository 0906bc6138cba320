//! Sessions of the server: their creation and end, SEQUENCE, connections and the backchannel (RFC 8881 §2.10, §18.34 to
//! §18.37, §18.46).

use crate::client::slots::{Slots, Ticket};
use crate::state::reply_cache::{Fingerprint, ReplyCache, Verdict};
use crate::state::{ClientId, ConnectionId, Effect, Principal, Result, State};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use types::{Machine, Timestamp, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{
    BACKCHANNEL_CTL4args, BIND_CONN_TO_SESSION4args, BIND_CONN_TO_SESSION4resok, CB_SEQUENCE4args,
    CREATE_SESSION4_FLAG_CONN_BACK_CHAN, CREATE_SESSION4_FLAG_CONN_RDMA, CREATE_SESSION4_FLAG_PERSIST,
    CREATE_SESSION4args, CREATE_SESSION4resok, SEQ4_STATUS_BACKCHANNEL_FAULT, SEQ4_STATUS_CB_PATH_DOWN,
    SEQ4_STATUS_CB_PATH_DOWN_SESSION, SEQ4_STATUS_RECALLABLE_STATE_REVOKED, SEQUENCE4args, SEQUENCE4resok,
    callback_sec_parms4, channel_attrs4, channel_dir_from_client4, channel_dir_from_server4, sessionid4,
};

/// The smallest request size and reply size of a channel that a client may ask for, in bytes: enough for headers,
/// SEQUENCE and one small operation.
const MESSAGE_MIN: u32 = 256;
/// The smallest amount of memory, in bytes, that the server reserves for the cached reply of a slot. The reply cache
/// keeps small replies even if the client does not ask for caching.
const CACHED_MIN: u32 = 512;
/// Size of the reply to a SEQUENCE alone, with all headers and without the tag, in bytes. A session with a smaller
/// limit for cached replies can cache no reply (§18.46.3).
const SEQUENCE_REPLY: u32 = 80;
/// The flags that a client may set in CREATE_SESSION (§18.36.1).
const CREATE_FLAGS: u32 =
    CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN | CREATE_SESSION4_FLAG_CONN_RDMA;
/// The smallest number of operations per request that a client may ask for: SEQUENCE and one other operation.
const OPERATIONS_MIN: u32 = 2;
/// The largest number of slots of a backchannel.
const BACK_SLOTS_MAX: u32 = 16;

/// A session of a client, with its slots, connections and backchannel.
#[derive(Clone, Debug)]
pub struct Session {
    /// The session id: boot epoch, counter and random bytes.
    pub id: sessionid4,
    /// The client that owns the session.
    pub client: ClientId,
    /// The negotiated attributes of the fore channel.
    pub fore: channel_attrs4,
    /// The negotiated attributes of the backchannel.
    pub back: channel_attrs4,
    /// The RPC program number of the client's callback service (`csa_cb_program`).
    pub cb_program: u32,
    /// The authentication of callbacks: the first method of `csa_sec_parms` that this server supports.
    pub cb_security: Option<callback_sec_parms4>,
    slots: ReplyCache,
    /// Bytes that this session has reserved from the memory budget of the reply caches.
    reserved: u64,
    /// The client's machine. The bytes in `reserved` count towards the share of this machine in the memory budget.
    machine: Machine,
    /// Live connections that are bound to the fore channel.
    fore_connections: BTreeSet<ConnectionId>,
    /// Live connections that are bound to the backchannel.
    back_connections: BTreeSet<ConnectionId>,
    /// Whether the client has ever requested a backchannel for this session.
    wants_back: bool,
    /// Whether a callback got no reply, so that the client must bind another connection to the backchannel (§18.46.3).
    back_broken: bool,
    callbacks: Slots,
}

/// All sessions of the server.
#[derive(Clone, Debug)]
pub struct Sessions {
    boot_epoch: u32,
    next: u32,
    reserved: u64,
    /// Bytes that the sessions of each machine have reserved for reply caches.
    by_machine: HashMap<Machine, u64>,
    by_id: HashMap<sessionid4, Session>,
    by_connection: HashMap<ConnectionId, BTreeSet<sessionid4>>,
}

impl Sessions {
    pub(crate) fn new(boot_epoch: u32) -> Self {
        let (by_machine, by_id, by_connection) = (HashMap::new(), HashMap::new(), HashMap::new());
        Sessions { boot_epoch, next: 1, reserved: 0, by_machine, by_id, by_connection }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether the server is executing a request of one of these sessions.
    pub(crate) fn busy(&self, ids: &[sessionid4]) -> bool {
        ids.iter().filter_map(|id| self.by_id.get(id)).any(|s| s.slots.in_progress() > 0)
    }

    fn bind(&mut self, id: sessionid4, connection: ConnectionId, fore: bool, back: bool) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        if fore {
            session.fore_connections.insert(connection);
        }
        if back {
            session.back_connections.insert(connection);
            session.back_broken = false;
        }
        self.by_connection.entry(connection).or_default().insert(id);
    }
}

/// The properties of a request that SEQUENCE checks in addition to its own arguments (`SEQUENCE4args`).
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The connection on which the request arrived.
    pub connection: ConnectionId,
    /// The fingerprint of the request: the sender, and a digest of the operations after SEQUENCE.
    pub fingerprint: Fingerprint,
    /// Length of the RPC message in bytes.
    pub size: usize,
    /// Number of operations in the request, SEQUENCE included.
    pub operations: u32,
}

/// The slot that a request occupies until [`State::finish`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotToken {
    /// The session id of the request.
    pub session: sessionid4,
    /// The slot id.
    pub slot: u32,
    /// The sequence number of the request on the slot.
    pub sequence: u32,
}

/// A new request that SEQUENCE has accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequenced {
    /// The client that sent the request.
    pub client: ClientId,
    /// The slot of the request. The caller must pass the slot to [`State::finish`] with the reply, even if the
    /// connection was lost.
    pub token: SlotToken,
    /// The result of SEQUENCE for the reply.
    pub result: SEQUENCE4resok,
    /// Largest RPC reply that the client accepts, in bytes. A longer reply fails with REP_TOO_BIG.
    pub max_response: u32,
    /// Largest RPC reply that the session caches, in bytes, if the client asked for caching. A longer reply fails with
    /// REP_TOO_BIG_TO_CACHE.
    pub max_cached: Option<u32>,
}

/// What the server must do with a COMPOUND whose SEQUENCE is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sequence {
    /// The request is new. Execute the request, then call [`State::finish`].
    New(Sequenced),
    /// The request is a retry. Send these bytes, the reply that an earlier call of [`State::finish`] cached.
    Replay(Bytes),
    /// The request is a retry whose reply was not cached. Reply with this result of SEQUENCE, then RETRY_UNCACHED_REP
    /// for the next operation.
    Uncached(SEQUENCE4resok),
}

/// The address and the CB_SEQUENCE of a callback to a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backchannel {
    /// The session whose backchannel carries the callback.
    pub session: sessionid4,
    /// A live connection that is bound to the backchannel.
    pub connection: ConnectionId,
    /// The RPC program number of the client's callback service. The version is 1 and the procedure `CB_COMPOUND`.
    pub program: u32,
    /// The authentication of the callback: the first method on the client's list that this server supports; `None` if
    /// the server supports no method on the list.
    pub security: Option<callback_sec_parms4>,
    /// The CB_SEQUENCE, first operation of the CB_COMPOUND.
    pub sequence: CB_SEQUENCE4args,
    /// The callback slot, which the callback occupies until [`State::callback_done`].
    pub slot: Ticket,
}

/// The outcome of a callback, which determines the next sequence number of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallbackEnd {
    /// CB_SEQUENCE succeeded. The status of the operation after CB_SEQUENCE does not matter.
    Answered,
    /// The server did not send the callback, or CB_SEQUENCE failed with an error other than SEQ_MISORDERED. The slot is
    /// free, and its next callback uses the sequence number of this callback.
    Refused,
    /// CB_SEQUENCE failed with SEQ_MISORDERED.
    Misordered,
    /// No reply arrived. The connection is lost, and the client may or may not have received the callback.
    Lost,
}

/// Negotiates the attributes of a channel. No limit exceeds the client's request or this server's maximum (§18.36.3).
fn negotiate(asked: &channel_attrs4, max_message: u32, max_cached: u32, max_requests: u32) -> Result<channel_attrs4> {
    if asked.ca_maxrequestsize < MESSAGE_MIN || asked.ca_maxresponsesize < MESSAGE_MIN {
        return Err(NFS4ERR_TOOSMALL);
    }
    if asked.ca_maxoperations < OPERATIONS_MIN || asked.ca_maxrequests == 0 {
        return Err(NFS4ERR_INVAL);
    }
    Ok(channel_attrs4 {
        ca_headerpadsize: 0,
        ca_maxrequestsize: asked.ca_maxrequestsize.min(max_message),
        ca_maxresponsesize: asked.ca_maxresponsesize.min(max_message),
        ca_maxresponsesize_cached: asked.ca_maxresponsesize_cached.min(max_cached),
        ca_maxoperations: asked.ca_maxoperations.min(limits::COMPOUND_OPS_MAX),
        ca_maxrequests: asked.ca_maxrequests.min(max_requests),
        ca_rdma_ird: Vec::new(),
    })
}

/// Returns the first authentication method in the client's list that this server supports. The result is a copy, so
/// that the buffer of the request can be freed.
fn security(parms: &[callback_sec_parms4]) -> Option<callback_sec_parms4> {
    parms.iter().find_map(|parms| match parms {
        callback_sec_parms4::AUTH_NONE => Some(callback_sec_parms4::AUTH_NONE),
        callback_sec_parms4::AUTH_SYS(sys) => {
            let machinename = Bytes::copy_from_slice(&sys.machinename);
            Some(callback_sec_parms4::AUTH_SYS(wire::nfs4::authsys_parms { machinename, ..sys.clone() }))
        }
        callback_sec_parms4::RPCSEC_GSS(_) => None,
    })
}

impl State {
    /// CREATE_SESSION (§18.36). `random` makes session ids unguessable.
    ///
    /// Invalid arguments fail without using up the sequence number. So the client can correct the arguments and send
    /// CREATE_SESSION with the same sequence number.
    ///
    /// # Errors
    /// STALE_CLIENTID. CLID_INUSE: the client id is unconfirmed, and another principal created it. SEQ_MISORDERED,
    /// TOOSMALL, INVAL. NOSPC: too many sessions, or no memory for another reply cache. A retry with the same sequence
    /// number returns the result of the first request.
    pub fn create_session(
        &mut self,
        args: &CREATE_SESSION4args,
        principal: Principal,
        connection: ConnectionId,
        random: u64,
        now: Timestamp,
    ) -> Result<CREATE_SESSION4resok> {
        let id = ClientId(args.csa_clientid);
        let client = self.clients.get(id).ok_or(NFS4ERR_STALE_CLIENTID)?;
        if !client.confirmed && client.principal != principal {
            return Err(NFS4ERR_CLID_INUSE);
        }
        if args.csa_sequence == client.sequence {
            return client.cached.clone();
        }
        if args.csa_sequence != client.sequence.wrapping_add(1) {
            return Err(NFS4ERR_SEQ_MISORDERED);
        }
        let channels = self.channels(args)?;
        let result = self.new_session(id, args, channels, connection, random);
        if result.is_ok() {
            self.confirm_client(id);
            self.renew(id, now);
        }
        if let Some(client) = self.clients.get_mut(id) {
            client.sequence = args.csa_sequence;
            client.cached = result.clone();
        }
        result
    }

    /// Negotiates the attributes of the fore channel and the backchannel.
    fn channels(&self, args: &CREATE_SESSION4args) -> Result<(channel_attrs4, channel_attrs4)> {
        if args.csa_flags & !CREATE_FLAGS != 0 {
            return Err(NFS4ERR_INVAL);
        }
        let max_message = self.config.max_message;
        let (fore, back) = (&args.csa_fore_chan_attrs, &args.csa_back_chan_attrs);
        let fore = negotiate(fore, max_message, limits::REPLY_CACHED_MAX, limits::SLOTS_MAX)?;
        let wanted = args.csa_flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN != 0;
        let back = match negotiate(back, max_message, limits::REPLY_CACHED_MAX, BACK_SLOTS_MAX) {
            // A client that requests no backchannel may leave the backchannel attributes zero. The session then has no
            // backchannel.
            Err(_) if !wanted && back.ca_maxrequestsize == 0 => channel_attrs4::default(),
            agreed => agreed?,
        };
        Ok((fore, back))
    }

    fn new_session(
        &mut self,
        client: ClientId,
        args: &CREATE_SESSION4args,
        (mut fore, back): (channel_attrs4, channel_attrs4),
        connection: ConnectionId,
        random: u64,
    ) -> Result<CREATE_SESSION4resok> {
        let held = self.clients.get(client).map_or(0, |c| c.sessions.len());
        if held >= limits::SESSIONS_PER_CLIENT_MAX {
            return Err(NFS4ERR_NOSPC);
        }
        let back_channel = args.csa_flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
        let machine = self.clients.get(client).map_or(Machine::UNKNOWN, |client| client.origin);
        let reserved = self.reserve(machine, &mut fore)?;
        let session = Session {
            id: self.sessions.new_id(random),
            client,
            slots: ReplyCache::new(fore.ca_maxrequests, fore.ca_maxresponsesize_cached),
            callbacks: Slots::new(back.ca_maxrequests),
            fore,
            back,
            cb_program: args.csa_cb_program,
            cb_security: security(&args.csa_sec_parms),
            reserved,
            machine,
            fore_connections: BTreeSet::new(),
            back_connections: BTreeSet::new(),
            wants_back: back_channel != 0,
            back_broken: false,
        };
        let result = CREATE_SESSION4resok {
            csr_sessionid: session.id,
            csr_sequence: args.csa_sequence,
            csr_flags: back_channel,
            csr_fore_chan_attrs: session.fore.clone(),
            csr_back_chan_attrs: session.back.clone(),
        };
        let id = session.id;
        self.sessions.by_id.insert(id, session);
        self.sessions.bind(id, connection, true, back_channel != 0);
        if let Some(client) = self.clients.get_mut(client) {
            client.sessions.push(id);
        }
        Ok(result)
    }

    /// Reserves memory for the reply cache of a session and charges this memory to the client's machine. Grants fewer
    /// slots when memory runs low: the sessions of one machine may reserve at most as much memory together as is
    /// still free.
    fn reserve(&mut self, machine: Machine, fore: &mut channel_attrs4) -> Result<u64> {
        let per_slot = u64::from(fore.ca_maxresponsesize_cached.max(CACHED_MIN));
        let own = self.sessions.by_machine.get(&machine).copied().unwrap_or(0);
        let left = self.config.reply_cache_bytes.saturating_sub(self.sessions.reserved).saturating_sub(own);
        let slots = (left / limits::REPLY_CACHE_SHARE / per_slot).max(1).min(u64::from(fore.ca_maxrequests));
        if slots * per_slot > left {
            return Err(NFS4ERR_NOSPC);
        }
        fore.ca_maxrequests = slots as u32;
        self.sessions.reserved += slots * per_slot;
        *self.sessions.by_machine.entry(machine).or_default() += slots * per_slot;
        Ok(slots * per_slot)
    }

    /// SEQUENCE (§18.46): checks the request, renews the lease, and occupies the slot.
    ///
    /// # Errors
    /// BADSESSION, BADSLOT, BAD_HIGH_SLOT, SEQ_MISORDERED, SEQ_FALSE_RETRY, DELAY (the server is executing the last
    /// request of the slot), REQ_TOO_BIG, TOO_MANY_OPS, REP_TOO_BIG_TO_CACHE. An error changes no state.
    pub fn sequence(&mut self, args: &SEQUENCE4args, request: Request, now: Timestamp) -> Result<Sequence> {
        let (slot, number, highest) = (args.sa_slotid, args.sa_sequenceid, args.sa_highest_slotid);
        let session = self.sessions.by_id.get_mut(&args.sa_sessionid).ok_or(NFS4ERR_BADSESSION)?;
        if session.slots.judge(slot, number, highest, request.fingerprint)? == Verdict::New {
            if request.size > session.fore.ca_maxrequestsize as usize {
                return Err(NFS4ERR_REQ_TOO_BIG);
            }
            if request.operations > session.fore.ca_maxoperations {
                return Err(NFS4ERR_TOO_MANY_OPS);
            }
            if args.sa_cachethis && session.fore.ca_maxresponsesize_cached < SEQUENCE_REPLY {
                return Err(NFS4ERR_REP_TOO_BIG_TO_CACHE);
            }
        }
        let verdict = session.slots.begin(slot, number, highest, args.sa_cachethis, request.fingerprint)?;
        let client = session.client;
        let max_response = session.fore.ca_maxresponsesize;
        let max_cached = args.sa_cachethis.then_some(session.fore.ca_maxresponsesize_cached.min(max_response));
        let (highest, target) = (session.slots.highest(), session.slots.target());
        self.sessions.bind(args.sa_sessionid, request.connection, true, false);
        self.renew(client, now);
        let result = SEQUENCE4resok {
            sr_sessionid: args.sa_sessionid,
            sr_sequenceid: number,
            sr_slotid: slot,
            sr_highest_slotid: highest,
            sr_target_highest_slotid: target,
            sr_status_flags: self.status_flags(args.sa_sessionid),
        };
        let token = SlotToken { session: args.sa_sessionid, slot, sequence: number };
        Ok(match verdict {
            Verdict::New => Sequence::New(Sequenced { client, token, result, max_response, max_cached }),
            Verdict::Replay(bytes) => Sequence::Replay(bytes),
            Verdict::Uncached => Sequence::Uncached(result),
        })
    }

    /// Ends a request. Caches `reply` (`COMPOUND4res` without RPC header) for retries if the client asked for caching
    /// or the reply is small.
    ///
    /// The server must call this for every [`Sequence::New`], even if the connection is lost; `None` means no reply.
    /// Returns whether the reply is cached. Does nothing if the session no longer exists.
    pub fn finish(&mut self, token: SlotToken, reply: Option<&[u8]>) -> bool {
        let session = self.sessions.by_id.get_mut(&token.session);
        session.is_some_and(|s| s.slots.finish(token.slot, token.sequence, reply))
    }

    /// Returns the `sr_status_flags` of a session (§18.46.3).
    ///
    /// The server never sets some flags. RESTART_RECLAIM_NEEDED: no session survives a restart, so BADSESSION reports
    /// the restart. EXPIRED_SOME_STATE_REVOKED and EXPIRED_ALL_STATE_REVOKED: a client with an expired lease loses its
    /// client id together with its opens and locks. ADMIN_STATE_REVOKED: an administrator cannot revoke state.
    /// LEASE_MOVED: no file system moves to another server.
    fn status_flags(&self, id: sessionid4) -> u32 {
        let Some(session) = self.sessions.by_id.get(&id) else { return 0 };
        let mut flags = 0;
        if self.wants_backchannel(session.client) && !self.has_backchannel(session.client) {
            flags |= SEQ4_STATUS_CB_PATH_DOWN;
        }
        if session.wants_back && (session.back_connections.is_empty() || session.back_broken) {
            flags |= SEQ4_STATUS_CB_PATH_DOWN_SESSION;
        }
        if session.callbacks.is_dead() {
            flags |= SEQ4_STATUS_BACKCHANNEL_FAULT;
        }
        if self.layouts.any_revoked(session.client) || self.delegations.any_revoked(session.client) {
            flags |= SEQ4_STATUS_RECALLABLE_STATE_REVOKED;
        }
        flags
    }

    /// BIND_CONN_TO_SESSION (§18.34): binds a connection to the fore channel, the backchannel or both.
    ///
    /// If the session has no backchannel, CDFC4_BACK fails, and every other requested direction binds the connection to
    /// the fore channel only. A connection that is already bound to one channel can gain the other channel with
    /// CDFC4_FORE_OR_BOTH or CDFC4_BACK_OR_BOTH. A connection never loses a channel.
    ///
    /// # Errors
    /// BADSESSION. INVAL: the session has no backchannel, or the request would remove or add a channel of the
    /// connection.
    pub fn bind_conn_to_session(
        &mut self,
        args: &BIND_CONN_TO_SESSION4args,
        connection: ConnectionId,
    ) -> Result<BIND_CONN_TO_SESSION4resok> {
        let session = self.sessions.by_id.get_mut(&args.bctsa_sessid).ok_or(NFS4ERR_BADSESSION)?;
        let possible = session.back.ca_maxrequests > 0;
        let (fore, back) = match args.bctsa_dir {
            channel_dir_from_client4::CDFC4_BACK if !possible => return Err(NFS4ERR_INVAL),
            channel_dir_from_client4::CDFC4_BACK => (false, true),
            channel_dir_from_client4::CDFC4_FORE => (true, false),
            channel_dir_from_client4::CDFC4_FORE_OR_BOTH | channel_dir_from_client4::CDFC4_BACK_OR_BOTH => {
                (true, possible)
            }
        };
        let before = (session.fore_connections.contains(&connection), session.back_connections.contains(&connection));
        let exact =
            matches!(args.bctsa_dir, channel_dir_from_client4::CDFC4_FORE | channel_dir_from_client4::CDFC4_BACK);
        if exact && before != (false, false) && before != (fore, back) {
            return Err(NFS4ERR_INVAL);
        }
        session.wants_back |= back;
        self.sessions.bind(args.bctsa_sessid, connection, fore, back);
        Ok(BIND_CONN_TO_SESSION4resok {
            bctsr_sessid: args.bctsa_sessid,
            bctsr_dir: match (fore, back) {
                (true, true) => channel_dir_from_server4::CDFS4_BOTH,
                (false, true) => channel_dir_from_server4::CDFS4_BACK,
                _ => channel_dir_from_server4::CDFS4_FORE,
            },
            bctsr_use_conn_in_rdma_mode: args.bctsa_use_conn_in_rdma_mode,
        })
    }

    /// BACKCHANNEL_CTL (§18.33): sets RPC program and authentication of the session's callbacks.
    ///
    /// # Errors
    /// BADSESSION, NOENT (this server supports none of the authentication methods).
    pub fn backchannel_ctl(&mut self, id: sessionid4, args: &BACKCHANNEL_CTL4args) -> Result<()> {
        let session = self.sessions.by_id.get_mut(&id).ok_or(NFS4ERR_BADSESSION)?;
        session.cb_security = Some(security(&args.bca_sec_parms).ok_or(NFS4ERR_NOENT)?);
        session.cb_program = args.bca_cb_program;
        Ok(())
    }

    /// DESTROY_SESSION (§18.37). A session with live connections can be destroyed only on one of these connections.
    ///
    /// # Errors
    /// BADSESSION, CONN_NOT_BOUND_TO_SESSION.
    pub fn destroy_session(&mut self, id: sessionid4, connection: ConnectionId) -> Result<()> {
        let session = self.sessions.by_id.get(&id).ok_or(NFS4ERR_BADSESSION)?;
        let mut bound = session.fore_connections.union(&session.back_connections).peekable();
        if bound.peek().is_some() && bound.all(|bound| *bound != connection) {
            return Err(NFS4ERR_CONN_NOT_BOUND_TO_SESSION);
        }
        let client = session.client;
        self.remove_session(id);
        if let Some(client) = self.clients.get_mut(client) {
            client.sessions.retain(|s| *s != id);
        }
        Ok(())
    }

    pub(crate) fn remove_session(&mut self, id: sessionid4) {
        let Some(session) = self.sessions.by_id.remove(&id) else { return };
        self.sessions.reserved -= session.reserved;
        if let Some(own) = self.sessions.by_machine.get_mut(&session.machine) {
            *own -= session.reserved;
            if *own == 0 {
                self.sessions.by_machine.remove(&session.machine);
            }
        }
        for connection in session.fore_connections.union(&session.back_connections) {
            self.sessions.unbind(*connection, id);
        }
        self.effects.push(Effect::SessionGone(id));
    }

    /// Removes a closed connection from all its sessions. The requests of the connection continue, and the reply cache
    /// keeps their replies.
    pub fn connection_lost(&mut self, connection: ConnectionId) {
        for id in self.sessions.by_connection.remove(&connection).unwrap_or_default() {
            if let Some(session) = self.sessions.by_id.get_mut(&id) {
                session.fore_connections.remove(&connection);
                session.back_connections.remove(&connection);
            }
        }
    }

    /// Returns the session with this id.
    pub fn session(&self, id: sessionid4) -> Option<&Session> {
        self.sessions.by_id.get(&id)
    }

    /// Returns the parameters for a callback to a client and occupies a callback slot. `None` if the client has no live
    /// backchannel connection with a free slot.
    pub fn backchannel(&mut self, client: ClientId) -> Option<Backchannel> {
        let ids = self.clients.get(client)?.sessions.clone();
        ids.into_iter().find_map(|id| {
            let session = self.sessions.by_id.get_mut(&id)?;
            let connection = *session.back_connections.first()?;
            let slot = session.callbacks.acquire()?;
            let sequence = CB_SEQUENCE4args {
                csa_sessionid: id,
                csa_sequenceid: slot.sequence,
                csa_slotid: slot.slot,
                csa_highest_slotid: session.callbacks.highest_used().unwrap_or(slot.slot),
                csa_cachethis: false,
                csa_referring_call_lists: Vec::new(),
            };
            let (program, security) = (session.cb_program, session.cb_security.clone());
            Some(Backchannel { session: id, connection, program, security, sequence, slot })
        })
    }

    fn sessions_of(&self, client: ClientId) -> impl Iterator<Item = &Session> {
        let ids = self.clients.get(client).map_or(&[][..], |c| &c.sessions);
        ids.iter().filter_map(|id| self.sessions.by_id.get(id))
    }

    /// Returns whether a live connection is bound to a backchannel of this client.
    pub fn has_backchannel(&self, client: ClientId) -> bool {
        self.sessions_of(client).any(|s| !s.back_connections.is_empty())
    }

    /// Returns whether the client can receive callbacks, as far as the server knows. Otherwise the server grants no
    /// delegations to the client.
    pub(crate) fn is_callable(&self, client: ClientId) -> bool {
        let mut sessions = self.sessions_of(client);
        sessions.any(|s| !s.back_connections.is_empty() && !s.back_broken && !s.callbacks.is_dead())
    }

    /// Returns whether this client has requested a backchannel for any of its sessions.
    pub(crate) fn wants_backchannel(&self, client: ClientId) -> bool {
        self.sessions_of(client).any(|s| s.wants_back)
    }

    /// Ends a callback and frees its slot. After [`CallbackEnd::Lost`] the status flag CB_PATH_DOWN_SESSION in SEQUENCE
    /// replies asks the client to bind another connection.
    pub fn callback_done(&mut self, session: sessionid4, slot: Ticket, end: CallbackEnd) {
        let Some(session) = self.sessions.by_id.get_mut(&session) else { return };
        match end {
            CallbackEnd::Answered => session.callbacks.done(slot),
            CallbackEnd::Refused => session.callbacks.refused(slot),
            CallbackEnd::Misordered => session.callbacks.misordered(slot),
            CallbackEnd::Lost => {
                session.callbacks.lost(slot);
                session.back_broken = true;
            }
        }
    }
}

impl Sessions {
    fn new_id(&mut self, random: u64) -> sessionid4 {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&self.boot_epoch.to_be_bytes());
        id[4..8].copy_from_slice(&self.next.to_be_bytes());
        id[8..].copy_from_slice(&random.to_be_bytes());
        self.next = self.next.wrapping_add(1);
        id
    }

    fn unbind(&mut self, connection: ConnectionId, id: sessionid4) {
        if let Some(sessions) = self.by_connection.get_mut(&connection) {
            sessions.remove(&id);
            if sessions.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }
}
