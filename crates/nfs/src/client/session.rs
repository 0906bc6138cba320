//! A client's session: how it is asked for, which slot a request takes, what the answer to SEQUENCE means
//! (RFC 8881 §2.10, §18.35, §18.36, §18.46).

use crate::client::slots::{Slots, Ticket};
use bytes::Bytes;
use std::time::Duration;
use types::{Timestamp, limits};
use wire::nfs4::compound::{Ops, ResHeader};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Xdr};

/// The least size of messages that a client can work with, in bytes: the largest payload of a READ or WRITE, and headers,
/// credential, SEQUENCE, PUTFH and what else rides along.
const MESSAGE_MIN: u32 = limits::PAYLOAD_MAX as u32 + 2048;
/// The fewest operations per request that a client can work with: OPEN with all that goes along.
const OPERATIONS_MIN: u32 = 8;

/// Who the server says it is, and who we are to it: what EXCHANGE_ID returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Our client id.
    pub clientid: clientid4,
    /// What the next CREATE_SESSION has to carry.
    pub sequence: sequenceid4,
    /// Whether the server knew us already: state of ours may still be there (`EXCHGID4_FLAG_CONFIRMED_R`).
    pub confirmed: bool,
    /// What the server is: `EXCHGID4_FLAG_USE_*` bits.
    pub roles: u32,
    /// `so_major_id`: servers with different ones share nothing (§2.10.5).
    pub major: Bytes,
    /// `so_minor_id`: sessions can only be shared among equal ones.
    pub minor: u64,
    /// `eir_server_scope`: handles and stateids mean the same inside one (§2.10.4).
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

/// The domain of the implementation id by which Weir's own clients are known to its servers.
pub(crate) const DOMAIN: &[u8] = b"weir";

/// The arguments of EXCHANGE_ID. `owner` names this client for as long as it lives; `verifier` is new at each start.
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

/// What a client wants of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wishes {
    /// For requests.
    pub fore: channel_attrs4,
    /// For callbacks; `None` for a session without them.
    pub back: Option<channel_attrs4>,
    /// RPC program of callbacks.
    pub program: u32,
}

impl Wishes {
    /// As many requests in flight as `slots`, the largest messages, and callbacks.
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
        Wishes { fore, back: Some(back), program: 0x4000_0000 }
    }

    /// The arguments of CREATE_SESSION for `identity`.
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

/// Why a session offered by a server is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unusable {
    /// A channel was given larger messages or more slots than asked for.
    #[error("the server granted more than was asked for ({0})")]
    Grown(&'static str),
    /// Too few operations per request, no slot, or messages too small for anything.
    #[error("the server granted too little ({0})")]
    TooSmall(&'static str),
    /// The answer is to another CREATE_SESSION.
    #[error("the server answered another CREATE_SESSION")]
    WrongSequence,
}

/// What became of a request, by the answer to its SEQUENCE.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was executed. The slot is free again.
    Done {
        /// The results behind SEQUENCE, up to the first that failed.
        results: Ops,
        /// Status of the last of them.
        status: nfsstat4,
        /// `sr_status_flags`, for [`tasks`](crate::client::recovery::tasks).
        flags: u32,
    },
    /// It is being executed: after a pause send the same bytes again, with the same ticket.
    Wait,
    /// It was not executed and the slot is free: take another ticket and send it anew.
    Again,
    /// It was not executed: bind the connection (BIND_CONN_TO_SESSION), then send the same bytes again.
    Bind,
    /// It was executed, but its reply has not been kept. The slot is free again. Only requests that did not ask for
    /// caching can meet this.
    Executed,
    /// It does not fit the session: not executed, the slot is free.
    Refused(nfsstat4),
    /// The session does not exist any more. If the request was sent before, it may have been executed.
    SessionLost,
    /// The reply makes no sense; the session cannot be trusted.
    Malformed(Malformed),
}

/// One session, seen from the client.
#[derive(Clone, Debug)]
pub struct Session {
    id: sessionid4,
    clientid: clientid4,
    back: Option<channel_attrs4>,
    limit: u32,
    slots: Slots,
    /// When the last request was sent that renewed the lease.
    renewed: Timestamp,
    lease: Duration,
}

impl Session {
    /// The session that CREATE_SESSION made. `sent` is when that was sent; `lease` the lease time, if known already.
    ///
    /// # Errors
    /// The server did not keep to the rules, or granted too little to work with.
    pub fn new(
        identity: &Identity,
        wishes: &Wishes,
        reply: &CREATE_SESSION4resok,
        sent: Timestamp,
        lease: Duration,
    ) -> Result<Session, Unusable> {
        if reply.csr_sequence != identity.sequence {
            return Err(Unusable::WrongSequence);
        }
        not_grown(&wishes.fore, &reply.csr_fore_chan_attrs)?;
        let fore = &reply.csr_fore_chan_attrs;
        if fore.ca_maxoperations < OPERATIONS_MIN.min(wishes.fore.ca_maxoperations) {
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
        let back = match wishes.back.as_ref().filter(|_| granted) {
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
            limit: wishes.fore.ca_maxrequests,
            back,
            renewed: sent,
            lease,
        })
    }

    /// Its id.
    pub fn id(&self) -> sessionid4 {
        self.id
    }

    /// The client id that it belongs to.
    pub fn clientid(&self) -> clientid4 {
        self.clientid
    }

    /// What was agreed for callbacks; `None` if there are none.
    pub fn back(&self) -> Option<&channel_attrs4> {
        self.back.as_ref()
    }

    /// Takes a slot for a request; `None` when as many requests as the server allows are in flight.
    pub fn acquire(&mut self) -> Option<Ticket> {
        self.slots.acquire()
    }

    /// The slots, for counting.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The SEQUENCE to put in front of a request. `cached` asks the server to keep the reply: for whatever must not
    /// happen twice.
    pub fn sequence(&self, ticket: Ticket, cached: bool) -> SEQUENCE4args {
        SEQUENCE4args {
            sa_sessionid: self.id,
            sa_sequenceid: ticket.sequence,
            sa_slotid: ticket.slot,
            sa_highest_slotid: self.slots.highest_used().unwrap_or(0).max(ticket.slot),
            sa_cachethis: cached,
        }
    }

    /// Takes in a reply (`COMPOUND4res`) to the request with this ticket; `sent` is when that was last sent.
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

    /// What an error of SEQUENCE means for the slot and the request (§15.1.11).
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
            // The server has executed another request under this number: ours has not been, and its number is spent.
            NFS4ERR_SEQ_FALSE_RETRY => {
                self.slots.done(ticket);
                Outcome::Again
            }
            // Our idea of the slots is ahead of the server's: use fewer until it grants more.
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

    /// Gives up a request without its reply. If it was sent, nobody knows whether it was executed; to find out, send it
    /// again with the same ticket instead.
    pub fn give_up(&mut self, ticket: Ticket, sent: bool) {
        if sent {
            self.slots.lost(ticket);
        } else {
            self.slots.refused(ticket);
        }
    }

    /// Obeys CB_RECALL_SLOT (§20.8).
    pub fn recall_slots(&mut self, target: slotid4) {
        self.slots.aim(target);
    }

    /// Whether the reply to this request has not come yet, for the referring calls of callbacks (§2.10.6.3).
    pub fn is_outstanding(&self, call: &referring_call4) -> bool {
        self.slots.is_busy(Ticket { slot: call.rc_slotid, sequence: call.rc_sequenceid })
    }

    /// Sets the lease time, once the server's `lease_time` attribute is known.
    pub fn set_lease(&mut self, lease: Duration) {
        self.lease = lease;
    }

    /// Whether the server may have given away what is held here: nothing was heard of us for a lease. Bytes may not be
    /// moved under a layout then before the lease is renewed (RFC 8881 §12.7.2).
    pub fn lease_over(&self, now: Timestamp) -> bool {
        now.since(self.renewed) >= self.lease
    }

    /// Whether the server has heard of us within this time: it has answered a request that was sent since. Not if the clock was set back.
    pub fn is_heard_of(&self, within: Duration, now: Timestamp) -> bool {
        now >= self.renewed && now.since(self.renewed) < within
    }

    /// When to send a lone SEQUENCE unless something else is sent before: after two thirds of the lease.
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
    // More slots than asked for are harmless: they are not used.
    match pairs.iter().find(|(name, asked, got)| got > asked && *name != "ca_maxrequests") {
        Some((name, ..)) => Err(Unusable::Grown(name)),
        None => Ok(()),
    }
}
