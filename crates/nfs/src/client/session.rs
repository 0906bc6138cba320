//! A session on the client: its creation, the slots of its requests, and the outcome of each SEQUENCE (RFC 8881 §2.10,
//! §18.35, §18.36, §18.46).

use crate::client::slots::{Slots, Ticket};
use bytes::Bytes;
use std::time::Duration;
use types::{Timestamp, limits};
use wire::nfs4::compound::{Ops, ResHeader};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Xdr};

/// The smallest message size that the client accepts in CREATE_SESSION, in bytes. Such a message has space for the
/// largest payload of a READ or WRITE, and for headers, credential, SEQUENCE, PUTFH and other operations.
const MESSAGE_MIN: u32 = limits::PAYLOAD_MAX as u32 + 2048;
/// The smallest number of operations per request that the client accepts in CREATE_SESSION: enough for OPEN and the
/// operations before and after OPEN in one COMPOUND.
const OPERATIONS_MIN: u32 = 8;

/// The result of EXCHANGE_ID: the identity of the server, and the client id that the server assigned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The client id that the server assigned (`eir_clientid`).
    pub clientid: clientid4,
    /// The sequence number that the next CREATE_SESSION must carry (`eir_sequenceid`).
    pub sequence: sequenceid4,
    /// Whether the server already had a confirmed record of this client, so that the client's state may still exist
    /// (`EXCHGID4_FLAG_CONFIRMED_R`).
    pub confirmed: bool,
    /// The roles of the server: `EXCHGID4_FLAG_USE_*` bits.
    pub roles: u32,
    /// `so_major_id`: two addresses with different major ids belong to different servers (§2.10.5).
    pub major: Bytes,
    /// `so_minor_id`: one session can use several addresses only if their minor ids are equal (§2.10.5).
    pub minor: u64,
    /// `eir_server_scope`: filehandles and stateids are valid on all servers with this scope (§2.10.4).
    pub scope: Bytes,
}

impl From<&EXCHANGE_ID4resok> for Identity {
    fn from(reply: &EXCHANGE_ID4resok) -> Self {
        Identity {
            clientid: reply.eir_clientid,
            sequence: reply.eir_sequenceid,
            confirmed: reply.eir_flags & EXCHGID4_FLAG_CONFIRMED_R != 0,
            roles: reply.eir_flags & EXCHGID4_FLAG_MASK_PNFS,
            major: reply.eir_server_owner.so_major_id.clone(),
            minor: reply.eir_server_owner.so_minor_id,
            scope: reply.eir_server_scope.clone(),
        }
    }
}

/// The domain in the implementation id (`nii_domain`) by which Weir's server recognises Weir's clients.
pub(crate) const DOMAIN: &[u8] = b"weir";

/// Returns the arguments of EXCHANGE_ID. `owner` identifies this client and never changes; `verifier` is new at each
/// start of the client.
pub fn exchange_id_args(owner: Bytes, verifier: verifier4, flags: u32) -> EXCHANGE_ID4args {
    EXCHANGE_ID4args {
        eia_clientowner: client_owner4 { co_verifier: verifier, co_ownerid: owner },
        eia_flags: flags,
        eia_state_protect: state_protect4_a::SP4_NONE,
        eia_client_impl_id: vec![nfs_impl_id4 {
            nii_domain: Bytes::from_static(DOMAIN),
            nii_name: Bytes::from_static(concat!("weir ", env!("CARGO_PKG_VERSION")).as_bytes()),
            nii_date: nfstime4::default(),
        }],
    }
}

/// The channel attributes that the client requests in CREATE_SESSION.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionWants {
    /// The requested attributes of the fore channel.
    pub fore: channel_attrs4,
    /// The requested attributes of the backchannel; `None` requests a session without callbacks.
    pub back: Option<channel_attrs4>,
    /// The RPC program number that the server must use for callbacks (`csa_cb_program`).
    pub program: u32,
}

impl SessionWants {
    /// Requests `slots` slots on the fore channel, the largest message sizes, and a backchannel.
    pub fn new(slots: u32) -> Self {
        let fore = channel_attrs4 {
            ca_headerpadsize: 0,
            ca_maxrequestsize: limits::RECORD_MAX as u32,
            ca_maxresponsesize: limits::RECORD_MAX as u32,
            ca_maxresponsesize_cached: limits::REPLY_CACHED_MAX,
            ca_maxoperations: limits::COMPOUND_OPS_MAX,
            ca_maxrequests: slots.clamp(1, limits::SLOTS_MAX),
            ca_rdma_ird: Vec::new(),
        };
        let back = channel_attrs4 {
            ca_maxrequestsize: 4096,
            ca_maxresponsesize: 4096,
            ca_maxresponsesize_cached: 0,
            ca_maxoperations: 4,
            ca_maxrequests: 16,
            ..fore.clone()
        };
        SessionWants { fore, back: Some(back), program: 0x4000_0000 }
    }

    /// Returns the arguments of CREATE_SESSION for the client id of `identity`.
    pub fn args(&self, identity: &Identity) -> CREATE_SESSION4args {
        let empty = || channel_attrs4 { ca_maxrequests: 0, ..self.fore.clone() };
        CREATE_SESSION4args {
            csa_clientid: identity.clientid,
            csa_sequence: identity.sequence,
            csa_flags: if self.back.is_some() { CREATE_SESSION4_FLAG_CONN_BACK_CHAN } else { 0 },
            csa_fore_chan_attrs: self.fore.clone(),
            csa_back_chan_attrs: self.back.clone().unwrap_or_else(empty),
            csa_cb_program: self.program,
            csa_sec_parms: vec![callback_sec_parms4::AUTH_NONE],
        }
    }
}

/// Why the client cannot use the session that CREATE_SESSION returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unusable {
    /// The server granted a larger limit than the client requested; the text names the channel attribute.
    #[error("the server granted a session with a larger {0} than requested")]
    Grown(&'static str),
    /// The server granted too few operations per request, no slot, or too small messages; the text names the channel
    /// attribute.
    #[error("the server granted a session whose {0} is too small")]
    TooSmall(&'static str),
    /// The reply carries a sequence number that differs from the sequence number in the client's CREATE_SESSION.
    #[error("the server replied to a CREATE_SESSION that this client did not send")]
    WrongSequence,
}

/// The outcome of a request, which the client derives from the result of SEQUENCE in the reply.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The server executed the request. The slot is free again.
    Done {
        /// The results of the operations after SEQUENCE, up to and including the first failure.
        results: Ops,
        /// The status of the last result, which is the status of the COMPOUND.
        status: nfsstat4,
        /// `sr_status_flags` of SEQUENCE; [`tasks`](crate::client::recovery::tasks) returns the recovery actions that
        /// the flags require.
        flags: u32,
    },
    /// The server is still executing an earlier transmission of the request. Send the same bytes again after a pause,
    /// with the same slot and sequence number.
    Wait,
    /// The server did not execute the request, and its slot is free. Send the request again on any free slot.
    Again,
    /// The server did not execute the request, because the connection is not bound to the session. Send
    /// BIND_CONN_TO_SESSION, then the same bytes again.
    Bind,
    /// The server executed the request, but did not cache the reply. The slot is free again. Only requests without
    /// `sa_cachethis` end in this way.
    Executed,
    /// The request exceeds a limit of the session. The server did not execute the request, and the slot is free again.
    Refused(nfsstat4),
    /// The session no longer exists. The server may have executed an earlier transmission of the request.
    SessionLost,
    /// The reply is malformed, so the caller must give up the session.
    Malformed(Malformed),
}

/// A session of this client with one server.
#[derive(Clone, Debug)]
pub struct Session {
    id: sessionid4,
    clientid: clientid4,
    back: Option<channel_attrs4>,
    limit: u32,
    slots: Slots,
    /// When the client sent the last request that renewed the lease.
    renewed: Timestamp,
    lease: Duration,
}

impl Session {
    /// Creates a session from the reply to CREATE_SESSION. `sent` is when the client sent CREATE_SESSION. `lease` is
    /// the lease time that the client assumes until it reads the attribute `lease_time`.
    ///
    /// # Errors
    /// The server violated the protocol, or granted less than the client needs.
    pub fn new(
        identity: &Identity,
        wants: &SessionWants,
        reply: &CREATE_SESSION4resok,
        sent: Timestamp,
        lease: Duration,
    ) -> Result<Session, Unusable> {
        if reply.csr_sequence != identity.sequence {
            return Err(Unusable::WrongSequence);
        }
        not_grown(&wants.fore, &reply.csr_fore_chan_attrs)?;
        let fore = &reply.csr_fore_chan_attrs;
        if fore.ca_maxoperations < OPERATIONS_MIN.min(wants.fore.ca_maxoperations) {
            return Err(Unusable::TooSmall("ca_maxoperations"));
        }
        if fore.ca_maxrequests == 0 {
            return Err(Unusable::TooSmall("ca_maxrequests"));
        }
        if fore.ca_maxrequestsize < MESSAGE_MIN {
            return Err(Unusable::TooSmall("ca_maxrequestsize"));
        }
        if fore.ca_maxresponsesize < MESSAGE_MIN {
            return Err(Unusable::TooSmall("ca_maxresponsesize"));
        }
        let granted = reply.csr_flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN != 0;
        let back = match wants.back.as_ref().filter(|_| granted) {
            Some(asked) => {
                not_grown(asked, &reply.csr_back_chan_attrs)?;
                Some(reply.csr_back_chan_attrs.clone())
            }
            None => None,
        };
        Ok(Session {
            id: reply.csr_sessionid,
            clientid: identity.clientid,
            slots: Slots::new(fore.ca_maxrequests),
            limit: wants.fore.ca_maxrequests,
            back,
            renewed: sent,
            lease,
        })
    }

    /// Returns the session id.
    pub fn id(&self) -> sessionid4 {
        self.id
    }

    /// Returns the client id of the session.
    pub fn clientid(&self) -> clientid4 {
        self.clientid
    }

    /// Returns the negotiated attributes of the backchannel; `None` if the session has no backchannel.
    pub fn back(&self) -> Option<&channel_attrs4> {
        self.back.as_ref()
    }

    /// Occupies a free slot for a request. Returns `None` if no slot that new requests may use is free.
    pub fn acquire(&mut self) -> Option<Ticket> {
        self.slots.acquire()
    }

    /// Returns the slot table, so that the caller can count requests in flight.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Returns the SEQUENCE arguments for a request. `cached` asks the server to cache the reply (`sa_cachethis`),
    /// which every request that is not idempotent needs.
    pub fn sequence(&self, ticket: Ticket, cached: bool) -> SEQUENCE4args {
        SEQUENCE4args {
            sa_sessionid: self.id,
            sa_sequenceid: ticket.sequence,
            sa_slotid: ticket.slot,
            sa_highest_slotid: self.slots.highest_used().unwrap_or(0).max(ticket.slot),
            sa_cachethis: cached,
        }
    }

    /// Processes the reply (`COMPOUND4res`) to the request on the slot of `ticket`. `sent` is the time of the last
    /// transmission of the request.
    pub fn replied(&mut self, ticket: Ticket, reply: Bytes, sent: Timestamp) -> Outcome {
        match self.read(ticket, reply, sent) {
            Ok(outcome) => outcome,
            Err(malformed) => {
                self.slots.lost(ticket);
                Outcome::Malformed(malformed)
            }
        }
    }

    fn read(&mut self, ticket: Ticket, reply: Bytes, sent: Timestamp) -> Result<Outcome, Malformed> {
        let mut input = Reader::new(reply);
        let header = ResHeader::decode(&mut input)?;
        if header.numres == 0 {
            self.slots.refused(ticket);
            return Ok(Outcome::Refused(header.status));
        }
        let mut results = Ops::new(header.numres, input);
        if results.next_number()? != Some(OP_SEQUENCE as u32) {
            return Err(Malformed::Invalid("the first result is not that of SEQUENCE"));
        }
        match results.body::<SEQUENCE4res>()? {
            SEQUENCE4res::NFS4_OK(ok) => {
                if (ok.sr_sessionid, ok.sr_slotid, ok.sr_sequenceid) != (self.id, ticket.slot, ticket.sequence) {
                    return Err(Malformed::Invalid("the reply is to another request"));
                }
                self.slots.done(ticket);
                self.slots.grant(ok.sr_highest_slotid, ok.sr_target_highest_slotid, self.limit);
                if ok.sr_status_flags & SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED == 0 {
                    self.renewed = self.renewed.max(sent);
                }
                if header.status == NFS4ERR_RETRY_UNCACHED_REP {
                    return Ok(Outcome::Executed);
                }
                Ok(Outcome::Done { results, status: header.status, flags: ok.sr_status_flags })
            }
            SEQUENCE4res::Default(status) => Ok(self.refused(ticket, status)),
        }
    }

    /// Updates the slot after a failed SEQUENCE, and returns the outcome of the request (§15.1.11).
    fn refused(&mut self, ticket: Ticket, status: nfsstat4) -> Outcome {
        match status {
            NFS4ERR_DELAY => Outcome::Wait,
            NFS4ERR_CONN_NOT_BOUND_TO_SESSION => Outcome::Bind,
            NFS4ERR_BADSESSION | NFS4ERR_DEADSESSION => {
                self.slots.refused(ticket);
                Outcome::SessionLost
            }
            NFS4ERR_SEQ_MISORDERED => {
                self.slots.misordered(ticket);
                if self.slots.is_dead() { Outcome::SessionLost } else { Outcome::Again }
            }
            // The server executed a different request with this slot and sequence number, so this slot advances to the
            // next sequence number.
            NFS4ERR_SEQ_FALSE_RETRY => {
                self.slots.done(ticket);
                Outcome::Again
            }
            // The server has fewer slots than the client assumes. Use fewer slots until the server grants more.
            NFS4ERR_BADSLOT | NFS4ERR_BAD_HIGH_SLOT => {
                self.slots.refused(ticket);
                let lower = ticket.slot.saturating_sub(1);
                self.slots.grant(lower, lower, self.limit);
                if ticket.slot == 0 { Outcome::SessionLost } else { Outcome::Again }
            }
            _ => {
                self.slots.refused(ticket);
                Outcome::Refused(status)
            }
        }
    }

    /// Abandons a request whose reply has not arrived. If the client has sent the request, the server may have executed
    /// the request. A caller that needs the outcome must instead send the request again with the same slot and sequence
    /// number.
    pub fn give_up(&mut self, ticket: Ticket, sent: bool) {
        if sent {
            self.slots.lost(ticket);
        } else {
            self.slots.refused(ticket);
        }
    }

    /// Limits new requests to slot ids up to `target`, as CB_RECALL_SLOT demands (§20.8).
    pub fn recall_slots(&mut self, target: slotid4) {
        self.slots.aim(target);
    }

    /// Returns whether the client still waits for the reply to this referring call of a callback (§2.10.6.3).
    pub fn is_outstanding(&self, call: &referring_call4) -> bool {
        self.slots.is_busy(Ticket { slot: call.rc_slotid, sequence: call.rc_sequenceid })
    }

    /// Sets the lease time, after the client has read the server's attribute `lease_time`.
    pub fn set_lease(&mut self, lease: Duration) {
        self.lease = lease;
    }

    /// Returns whether no request has renewed the lease for one lease period, so that the server may have discarded the
    /// client's state. The client must then renew the lease before it does I/O under a layout (RFC 8881 §12.7.2).
    pub fn lease_over(&self, now: Timestamp) -> bool {
        now.since(self.renewed) >= self.lease
    }

    /// Returns whether the server has replied to a request that the client sent less than `within` ago. Returns false
    /// if `now` is earlier than the time of that request, because the clock was set back.
    pub fn is_heard_of(&self, within: Duration, now: Timestamp) -> bool {
        now >= self.renewed && now.since(self.renewed) < within
    }

    /// Returns when the client must send a SEQUENCE without other operations to renew the lease: two thirds of a lease
    /// after the last renewal.
    pub fn renewal_due(&self) -> Timestamp {
        self.renewed.after(self.lease * 2 / 3)
    }
}

fn not_grown(asked: &channel_attrs4, got: &channel_attrs4) -> Result<(), Unusable> {
    let pairs = [
        ("ca_maxrequestsize", asked.ca_maxrequestsize, got.ca_maxrequestsize),
        ("ca_maxresponsesize", asked.ca_maxresponsesize, got.ca_maxresponsesize),
        ("ca_maxresponsesize_cached", asked.ca_maxresponsesize_cached, got.ca_maxresponsesize_cached),
        ("ca_maxoperations", asked.ca_maxoperations, got.ca_maxoperations),
        ("ca_maxrequests", asked.ca_maxrequests, got.ca_maxrequests),
    ];
    // The client ignores slots beyond the requested number, so a larger `ca_maxrequests` is harmless.
    match pairs.iter().find(|(name, asked, got)| got > asked && *name != "ca_maxrequests") {
        Some((name, ..)) => Err(Unusable::Grown(name)),
        None => Ok(()),
    }
}
