//! NFS sessions with the mgr, for the well-behaved client and for attackers.

use crate::link::{ANSWERED_WITHIN, Link, Place, STUCK, call, is_timeout};
use crate::mutate::mutate;
use crate::seeded_random::SeededRandom;
use bytes::Bytes;
use nfs::testing::bench::{Bench, Peer, Seen, linux_channels, random_request};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use wire::admin;
use wire::nfs4::*;
use wire::rpc::{Message, decode_message};
use xdr::{Reader, Segments, Xdr};

pub const NFS: (u32, u32) = (NFS4_PROGRAM, 4);
/// The layout type that this mgr grants: the native type.
const KIND: u32 = layout::kinds::native::KIND;

static OWNERS: AtomicU64 = AtomicU64::new(1);

fn compound(ops: Vec<nfs_argop4>) -> Bytes {
    COMPOUND4args { tag: Bytes::new(), minorversion: 2, argarray: ops }.to_bytes()
}

fn exchange_id(owner: String) -> nfs_argop4 {
    nfs_argop4::OP_EXCHANGE_ID(EXCHANGE_ID4args {
        eia_clientowner: client_owner4 { co_verifier: [1; 8], co_ownerid: owner.into() },
        eia_flags: 0,
        eia_state_protect: state_protect4_a::SP4_NONE,
        eia_client_impl_id: vec![],
    })
}

fn create_session(client: u64, back: bool) -> nfs_argop4 {
    let (fore, back_channel) = linux_channels();
    nfs_argop4::OP_CREATE_SESSION(CREATE_SESSION4args {
        csa_clientid: client,
        csa_sequence: 1,
        csa_flags: if back { CREATE_SESSION4_FLAG_CONN_BACK_CHAN } else { 0 },
        csa_fore_chan_attrs: fore,
        csa_back_chan_attrs: back_channel,
        csa_cb_program: 0x4000_0000,
        csa_sec_parms: vec![callback_sec_parms4::AUTH_NONE],
    })
}

/// An NFS session on a connection of its own.
pub struct Session {
    pub link: Link,
    pub client: u64,
    pub id: sessionid4,
    pub sequence: u32,
    uid: u32,
    xid: u32,
}

fn broken(why: impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("{why:?}"))
}

impl Session {
    pub fn establish(place: &Place, uid: u32, back: bool, patience: Duration) -> io::Result<Self> {
        let link = Link::connect(place, patience)?;
        let mut session = Session { link, client: 0, id: [0; 16], sequence: 0, uid, xid: 1 };
        let owner = format!("hostile test {}", OWNERS.fetch_add(1, Relaxed));
        let met = session.exchange(compound(vec![exchange_id(owner)]))?;
        match met.resarray.first() {
            Some(nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(met))) => session.client = met.eir_clientid,
            other => return Err(broken(other)),
        }
        let made = session.exchange(compound(vec![create_session(session.client, back)]))?;
        match made.resarray.first() {
            Some(nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made))) => session.id = made.csr_sessionid,
            other => return Err(broken(other)),
        }
        let complete = nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false });
        session.ops(vec![complete])?;
        Ok(session)
    }

    /// Sends a COMPOUND and returns its reply. Ignores callbacks that arrive before this reply.
    fn exchange(&mut self, body: Bytes) -> io::Result<COMPOUND4res> {
        self.xid += 1;
        self.link.send(call(self.xid, NFS, 1, Some(self.uid), body.into()))?;
        self.answer()
    }

    /// Receives the reply to the last request. Ignores all other messages from the mgr.
    fn answer(&mut self) -> io::Result<COMPOUND4res> {
        loop {
            let mut reply = Reader::new(self.link.receive()?);
            match decode_message(&mut reply).map_err(broken)? {
                Message::Reply(header) if header.xid == self.xid => {
                    return COMPOUND4res::from_bytes(&reply.rest()).map_err(broken);
                }
                _ => {}
            }
        }
    }

    fn sequence(&mut self) -> nfs_argop4 {
        self.sequence += 1;
        nfs_argop4::OP_SEQUENCE(SEQUENCE4args {
            sa_sessionid: self.id,
            sa_sequenceid: self.sequence,
            sa_slotid: 0,
            sa_highest_slotid: 0,
            sa_cachethis: false,
        })
    }

    /// Sends a COMPOUND of a SEQUENCE and these operations. Returns the results without that of SEQUENCE. Fails if any
    /// operation fails.
    pub fn ops(&mut self, mut ops: Vec<nfs_argop4>) -> io::Result<Vec<nfs_resop4>> {
        ops.insert(0, self.sequence());
        self.all(ops)
    }

    /// Sends the operations like [`Session::ops`], but as the first request of the slot `slot`, and requests that the
    /// mgr caches the reply.
    pub fn first_on_slot(&mut self, slot: u32, mut ops: Vec<nfs_argop4>) -> io::Result<Vec<nfs_resop4>> {
        let sequence = SEQUENCE4args {
            sa_sessionid: self.id,
            sa_sequenceid: 1,
            sa_slotid: slot,
            sa_highest_slotid: slot,
            sa_cachethis: true,
        };
        ops.insert(0, nfs_argop4::OP_SEQUENCE(sequence));
        self.all(ops)
    }

    fn all(&mut self, ops: Vec<nfs_argop4>) -> io::Result<Vec<nfs_resop4>> {
        let reply = self.exchange(compound(ops))?;
        if reply.status == NFS4_OK { Ok(reply.resarray.into_iter().skip(1).collect()) } else { Err(broken(reply)) }
    }
}

/// An attacker of the mgr, which sends damaged and random requests.
pub struct Attacker {
    place: Place,
    random: SeededRandom,
    /// The test bench that the generator of random requests needs. The attacker sends these requests to the mgr, and
    /// none to the bench.
    bench: Bench,
    seen: Seen,
    session: Option<Session>,
    stranger: Option<Link>,
    /// Sessions whose last request has no reply yet, each with the time of this request.
    late: VecDeque<(Session, Instant)>,
}

/// Largest number of sessions with a request to which the mgr has not replied yet. When there are more, the attacker
/// waits for a reply.
const LATE_MAX: usize = 64;
/// How long the attacker waits for a reply before it continues in a new session. Some requests wait for callbacks, to
/// which the attacker does not reply.
const PATIENCE: Duration = Duration::from_millis(200);

impl Attacker {
    pub fn new(place: Place, seed: u64) -> Self {
        let bench = Bench::default();
        Attacker {
            place,
            random: SeededRandom::new(seed),
            bench,
            seen: Seen::default(),
            session: None,
            stranger: None,
            late: VecDeque::new(),
        }
    }

    /// Sends one random frame to the mgr. Returns a name for the kind of the frame. The mgr may reply with any status.
    pub fn frame(&mut self) -> &'static str {
        match self.random.below(16) {
            0 => {
                let garbage = self.random.bytes(200);
                self.as_stranger(|link| link.send(garbage));
                "garbage to the mgr"
            }
            1 => {
                let call = self.stranger_call();
                let record = wire::rpc::record::mark(Segments::from(call)).to_bytes();
                let damaged = mutate(&record, self.random.number());
                self.as_stranger(|link| link.raw(&damaged));
                "damaged records to the mgr"
            }
            2 | 3 => {
                let damaged = mutate(&self.stranger_call(), self.random.number());
                self.as_stranger(|link| link.send(damaged));
                "damaged calls to the mgr"
            }
            4..10 => {
                self.in_session(true);
                "damaged operations in sessions"
            }
            _ => {
                self.in_session(false);
                "random operations in sessions"
            }
        }
    }

    /// Waits for the replies of sessions until at most `most` sessions wait for a reply.
    pub fn settle(&mut self, most: usize) {
        while self.late.len() > most {
            let Some((mut session, sent)) = self.late.pop_front() else { return };
            let left = ANSWERED_WITHIN.saturating_sub(sent.elapsed()).max(PATIENCE);
            let answer = session.link.wait_for(left).and_then(|()| session.answer());
            if let Err(error) = answer
                && is_timeout(&error)
            {
                STUCK.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns an RPC call that needs no session.
    fn stranger_call(&mut self) -> Bytes {
        let (xid, uid) = (self.random.number() as u32, self.random.of(&[None, Some(0), Some(1000)]));
        let nfs = |ops| call(xid, NFS, 1, uid, compound(ops).into());
        match self.random.below(6) {
            0 => call(xid, NFS, 0, uid, Segments::default()),
            1 => nfs(vec![exchange_id(format!("flood {xid}"))]),
            2 => nfs(vec![create_session(u64::from(xid), true)]),
            3 => nfs(vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_GETFH]),
            4 => call(xid, (admin::PROGRAM, admin::VERSION), admin::STATUS, uid, Segments::default()),
            _ => {
                let known = self.session.as_ref().map_or([0; 16], |s| s.id);
                nfs(vec![nfs_argop4::OP_DESTROY_SESSION(DESTROY_SESSION4args { dsa_sessionid: known })])
            }
        }
    }

    /// Sends a frame on a connection without a session. Connects again if the mgr has closed the connection.
    fn as_stranger(&mut self, send: impl FnOnce(&mut Link) -> io::Result<()>) {
        let mut link = match self.stranger.take() {
            Some(link) if !self.random.once_in(8) => link,
            _ => match Link::connect(&self.place, PATIENCE) {
                Ok(link) => link,
                Err(_) => return,
            },
        };
        if send(&mut link).is_ok() {
            self.stranger = Some(link);
        }
    }

    fn in_session(&mut self, damage: bool) {
        if self.session.is_none() {
            let (uid, back) = (self.random.of(&[0, 1000]), self.random.once_in(6));
            self.session = Session::establish(&self.place, uid, back, PATIENCE).ok();
        }
        let Some(mut session) = self.session.take() else { return };
        let peer = Peer {
            minor: 2,
            client: session.client,
            session: session.id,
            sequence: Cell::new(session.sequence),
            cache: Cell::new(self.random.once_in(2)),
            ..Peer::stranger(&self.bench, 1)
        };
        let mut ops = random_request(&peer, &self.random.bytes(120), &self.seen);
        ops.iter_mut().for_each(set_layout_type);
        let first = compound(vec![ops[0].clone()]).len();
        let mut body = compound(ops).to_vec();
        if damage {
            let tail = mutate(&body[first..], self.random.number());
            body.truncate(first);
            body.extend(tail);
        }
        session.sequence += 1;
        let sent = Instant::now();
        let reply = match session.exchange(body.into()) {
            Ok(reply) => reply,
            Err(error) if is_timeout(&error) => {
                self.late.push_back((session, sent));
                return self.settle(LATE_MAX);
            }
            Err(_) => return,
        };
        self.seen.note(&reply);
        let begun = matches!(reply.resarray.first(), Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(_))));
        // Keep the session only if its SEQUENCE succeeded. Also abandon one in 200 sessions, whose state the mgr then
        // has to discard.
        if begun && !self.random.once_in(200) {
            self.session = Some(session);
        }
    }
}

/// Sets the layout type of an operation to the layout type that this mgr grants.
fn set_layout_type(op: &mut nfs_argop4) {
    match op {
        nfs_argop4::OP_LAYOUTGET(args) => args.loga_layout_type = KIND,
        nfs_argop4::OP_LAYOUTRETURN(args) => args.lora_layout_type = KIND,
        nfs_argop4::OP_LAYOUTCOMMIT(args) => args.loca_layoutupdate.lou_type = KIND,
        _ => {}
    }
}
