//! Test bench for the NFS server: a server on the in-memory file system, and scripted clients. Unit tests and fuzz
//! targets use the bench.

mod play;

pub use play::{Seen, play, random_request};

use crate::exports::View;
use crate::server::{Call, CallbackPath, Callbacks, Config, Lost, Server};
use crate::state::{self, ConnectionId, Principal};
use crate::testing::memory::Memory;
use bytes::Bytes;
use futures_util::FutureExt;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use types::{Cred, Machine, Timestamp};
use wire::nfs4::*;
use xdr::{Segments, Xdr};

/// The lease period of the test server.
pub const LEASE: Duration = Duration::from_secs(90);

/// The backchannel of the scripted clients: it records callbacks and returns scripted replies.
#[derive(Debug, Default)]
pub struct Answers {
    inner: Mutex<Script>,
}

#[derive(Debug, Default)]
struct Script {
    taken: Vec<(CallbackPath, CB_COMPOUND4args)>,
    answers: VecDeque<Option<nfsstat4>>,
    attributes: Option<fattr4>,
    hangs: bool,
}

impl Answers {
    /// Removes and returns the recorded callbacks, oldest first.
    pub fn taken(&self) -> Vec<(CallbackPath, CB_COMPOUND4args)> {
        std::mem::take(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner).taken)
    }

    /// Queues a reply to a callback: a status, or `None` for a lost connection. Each callback consumes the oldest
    /// queued reply. A callback without a queued reply succeeds.
    pub fn next(&self, answer: Option<nfsstat4>) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).answers.push_back(answer);
    }

    /// Makes the next callback wait forever for its reply.
    pub fn hang(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).hangs = true;
    }

    /// Sets the attributes that the client returns for later CB_GETATTR callbacks.
    pub fn attributes(&self, attributes: fattr4) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).attributes = Some(attributes);
    }
}

impl Answers {
    fn hangs(&self) -> bool {
        std::mem::take(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner).hangs)
    }
}

impl Callbacks for Answers {
    async fn call(&self, path: CallbackPath, arguments: Segments) -> Result<Bytes, Lost> {
        let call = CB_COMPOUND4args::from_bytes(&arguments.to_bytes()).map_err(|_| Lost)?;
        if self.hangs() {
            self.inner.lock().unwrap_or_else(PoisonError::into_inner).taken.push((path, call));
            return std::future::pending().await;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = inner.answers.pop_front().unwrap_or(Some(NFS4_OK));
        let sequence = match call.argarray.first() {
            Some(nfs_cb_argop4::OP_CB_SEQUENCE(sequence)) => sequence.clone(),
            _ => return Err(Lost),
        };
        inner.taken.push((path, call));
        let status = answer.ok_or(Lost)?;
        let first = nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::NFS4_OK(CB_SEQUENCE4resok {
            csr_sessionid: sequence.csa_sessionid,
            csr_sequenceid: sequence.csa_sequenceid,
            csr_slotid: sequence.csa_slotid,
            csr_highest_slotid: 15,
            csr_target_highest_slotid: 15,
        }));
        let Some((_, call)) = inner.taken.last() else { return Err(Lost) };
        let second = match call.argarray.get(1) {
            Some(nfs_cb_argop4::OP_CB_NOTIFY_LOCK(_)) => {
                nfs_cb_resop4::OP_CB_NOTIFY_LOCK(CB_NOTIFY_LOCK4res { cnlr_status: status })
            }
            Some(nfs_cb_argop4::OP_CB_RECALL(_)) => nfs_cb_resop4::OP_CB_RECALL(CB_RECALL4res { status }),
            Some(nfs_cb_argop4::OP_CB_GETATTR(_)) => nfs_cb_resop4::OP_CB_GETATTR(match (status, &inner.attributes) {
                (NFS4_OK, Some(told)) => CB_GETATTR4res::NFS4_OK(CB_GETATTR4resok { obj_attributes: told.clone() }),
                (NFS4_OK, None) => CB_GETATTR4res::Default(NFS4ERR_DELAY),
                (status, _) => CB_GETATTR4res::Default(status),
            }),
            _ => nfs_cb_resop4::OP_CB_LAYOUTRECALL(CB_LAYOUTRECALL4res { clorr_status: status }),
        };
        Ok(CB_COMPOUND4res { status, tag: Bytes::new(), resarray: vec![first, second] }.to_bytes())
    }

    /// Returns a future that completes at its second poll, without advancing the test clock.
    async fn pause(&self, _: Duration) {
        let mut again = true;
        std::future::poll_fn(|task| {
            task.waker().wake_by_ref();
            if std::mem::take(&mut again) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

/// A test server with its clock.
pub struct Bench {
    /// The NFS server under test.
    pub server: Server<Memory, Answers>,
    /// The time that the server's clock shows.
    pub now: Cell<Timestamp>,
}

impl Default for Bench {
    fn default() -> Self {
        Bench::new(Memory::new())
    }
}

impl Bench {
    /// Starts a server on the file system `memory`.
    pub fn new(memory: Memory) -> Self {
        let now = Timestamp { secs: 1_000_000, nanos: 0 };
        let config = Config {
            state: state::Config { courtesy: LEASE, ..state::Config::new(7, EXCHGID4_FLAG_USE_PNFS_MDS, LEASE) },
            major_id: Bytes::from_static(b"server on trial"),
            implementation: "trial".into(),
        };
        let start = Server::start(memory, Answers::default(), config, now).now_or_never();
        let server = start.and_then(Result::ok).expect("the file system in memory never waits nor fails here");
        Bench { server, now: Cell::new(now) }
    }

    /// Advances the clock and runs [`Server::tick`].
    pub fn pass(&self, time: Duration) {
        self.now.set(self.now.get().after(time));
        self.server.tick(self.now.get()).now_or_never().expect("nothing in memory waits");
    }
}

/// A scripted client with at most one session.
pub struct Peer<'a> {
    /// The bench whose server the client uses.
    pub bench: &'a Bench,
    /// The client's only connection.
    pub connection: ConnectionId,
    /// The credentials of the client's requests.
    pub cred: Cred,
    /// The NFSv4 minor version of the client's requests.
    pub minor: u32,
    /// The client id; 0 before EXCHANGE_ID.
    pub client: u64,
    /// The session; zeros before CREATE_SESSION.
    pub session: sessionid4,
    /// The sequence number of the last request on slot 0.
    pub sequence: Cell<u32>,
    /// Whether the client asks the server to cache replies (`sa_cachethis`).
    pub cache: Cell<bool>,
    /// Whether EXCHANGE_ID identifies the client as one of Weir's clients.
    pub own: bool,
}

/// Returns the channel attributes that Linux requests in CREATE_SESSION: fore channel, then backchannel.
pub fn linux_channels() -> (channel_attrs4, channel_attrs4) {
    let fore = channel_attrs4 {
        ca_headerpadsize: 0,
        ca_maxrequestsize: 1_049_620,
        ca_maxresponsesize: 1_049_480,
        ca_maxresponsesize_cached: 7584,
        ca_maxoperations: 8,
        ca_maxrequests: 64,
        ca_rdma_ird: vec![],
    };
    let back = channel_attrs4 {
        ca_headerpadsize: 0,
        ca_maxrequestsize: 4096,
        ca_maxresponsesize: 4096,
        ca_maxresponsesize_cached: 0,
        ca_maxoperations: 2,
        ca_maxrequests: 16,
        ca_rdma_ird: vec![],
    };
    (fore, back)
}

impl<'a> Peer<'a> {
    /// Returns a client that the server does not know yet, with a connection of its own.
    pub fn stranger(bench: &'a Bench, connection: u64) -> Self {
        Peer {
            bench,
            connection: ConnectionId(connection),
            cred: Cred { uid: 1000, gid: 1000, groups: vec![] },
            minor: 2,
            client: 0,
            session: [0; 16],
            sequence: Cell::new(0),
            cache: Cell::new(true),
            own: false,
        }
    }

    /// Returns a client that has a session and has sent RECLAIM_COMPLETE.
    pub fn meet(bench: &'a Bench, connection: u64) -> Self {
        Peer::stranger(bench, connection).settle()
    }

    /// Returns a client like [`Peer::meet`] that identifies itself as one of Weir's clients.
    pub fn meet_own(bench: &'a Bench, connection: u64) -> Self {
        Peer { own: true, ..Peer::stranger(bench, connection) }.settle()
    }

    fn settle(self) -> Self {
        let connection = self.connection.0;
        let mut peer = self;
        peer.introduce(&format!("client {connection}"), [connection as u8; 8]);
        let (fore, back) = linux_channels();
        peer.new_session(1, fore, back).expect("a new client gets a session");
        peer.ok(vec![nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false })]);
        peer
    }

    /// Sends EXCHANGE_ID and stores the client id.
    pub fn introduce(&mut self, owner: &str, verifier: verifier4) -> EXCHANGE_ID4res {
        let own = crate::client::session::exchange_id_args(Bytes::new(), verifier, 0);
        let args = EXCHANGE_ID4args {
            eia_clientowner: client_owner4 {
                co_verifier: verifier,
                co_ownerid: Bytes::copy_from_slice(owner.as_bytes()),
            },
            eia_flags: EXCHGID4_FLAG_SUPP_MOVED_REFER | EXCHGID4_FLAG_BIND_PRINC_STATEID,
            eia_state_protect: state_protect4_a::SP4_NONE,
            eia_client_impl_id: if self.own { own.eia_client_impl_id } else { vec![] },
        };
        let reply = self.send(vec![nfs_argop4::OP_EXCHANGE_ID(args)]);
        match &reply.resarray[..] {
            [nfs_resop4::OP_EXCHANGE_ID(result)] => {
                if let EXCHANGE_ID4res::NFS4_OK(result) = result {
                    self.client = result.eir_clientid;
                }
                result.clone()
            }
            other => panic!("not the answer of EXCHANGE_ID: {other:?}"),
        }
    }

    /// Returns the CREATE_SESSION arguments that Linux sends.
    pub fn create_session(&self, sequence: u32, fore: channel_attrs4, back: channel_attrs4) -> nfs_argop4 {
        nfs_argop4::OP_CREATE_SESSION(CREATE_SESSION4args {
            csa_clientid: self.client,
            csa_sequence: sequence,
            csa_flags: CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            csa_fore_chan_attrs: fore,
            csa_back_chan_attrs: back,
            csa_cb_program: 0x4000_0000,
            csa_sec_parms: vec![callback_sec_parms4::AUTH_NONE],
        })
    }

    /// Sends CREATE_SESSION and stores the session id.
    pub fn new_session(
        &mut self,
        sequence: u32,
        fore: channel_attrs4,
        back: channel_attrs4,
    ) -> Result<CREATE_SESSION4resok, nfsstat4> {
        match &self.send(vec![self.create_session(sequence, fore, back)]).resarray[..] {
            [nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(result))] => {
                self.session = result.csr_sessionid;
                self.sequence.set(0);
                Ok(result.clone())
            }
            [nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::Default(status))] => Err(*status),
            other => panic!("not the answer of CREATE_SESSION: {other:?}"),
        }
    }

    /// Returns a COMPOUND of the client with these operations.
    pub fn call(&self, ops: Vec<nfs_argop4>) -> Call {
        let body = COMPOUND4args { tag: Bytes::from_static(b"try"), minorversion: self.minor, argarray: ops };
        self.raw(body.to_bytes())
    }

    /// Returns a request of the client with these bytes as COMPOUND arguments.
    pub fn raw(&self, body: Bytes) -> Call {
        Call {
            connection: self.connection,
            principal: Principal::Sys(self.cred.uid),
            origin: Machine::Local(self.cred.uid),
            cred: self.cred.clone(),
            view: View::ALL,
            message_len: body.len() + 100,
            body,
            now: self.bench.now.get(),
            random: 5,
        }
    }

    /// Returns the SEQUENCE for the client's next request on slot 0.
    pub fn next_sequence(&self) -> nfs_argop4 {
        self.sequence.set(self.sequence.get().wrapping_add(1));
        nfs_argop4::OP_SEQUENCE(SEQUENCE4args {
            sa_sessionid: self.session,
            sa_sequenceid: self.sequence.get(),
            sa_slotid: 0,
            sa_highest_slotid: 0,
            sa_cachethis: self.cache.get(),
        })
    }

    /// Returns the future of a COMPOUND with SEQUENCE and these operations. The server starts to execute the COMPOUND
    /// when the future is first polled.
    pub fn start(&self, mut ops: Vec<nfs_argop4>) -> impl Future<Output = COMPOUND4res> + use<'a> {
        ops.insert(0, self.next_sequence());
        let call = self.call(ops);
        let server = &self.bench.server;
        async move { decoded(server.compound(call).await.expect("what was encoded is a COMPOUND")) }
    }

    /// Sends a COMPOUND with these operations and without SEQUENCE.
    pub fn send(&self, ops: Vec<nfs_argop4>) -> COMPOUND4res {
        let reply = self.bench.server.compound(self.call(ops)).now_or_never().expect("nothing has to wait");
        decoded(reply.expect("what was encoded is a COMPOUND"))
    }

    /// Sends a COMPOUND with SEQUENCE and these operations. Returns the status of the COMPOUND, and the results after
    /// SEQUENCE.
    pub fn run(&self, ops: Vec<nfs_argop4>) -> (nfsstat4, Vec<nfs_resop4>) {
        let reply = self.start(ops).now_or_never().expect("nothing has to wait");
        (reply.status, reply.resarray.into_iter().skip(1).collect())
    }

    /// Sends operations like [`Peer::run`]. Panics unless all of them succeed.
    pub fn ok(&self, ops: Vec<nfs_argop4>) -> Vec<nfs_resop4> {
        let (status, results) = self.run(ops);
        assert_eq!(status, NFS4_OK, "{results:?}");
        results
    }

    /// Sends operations like [`Peer::run`], and returns the error. Panics if all of them succeed.
    pub fn fails(&self, ops: Vec<nfs_argop4>) -> nfsstat4 {
        let (status, results) = self.run(ops);
        assert_ne!(status, NFS4_OK, "{results:?}");
        status
    }
}

/// Decodes a reply. Panics if the reply is malformed, or if its status differs from the status of the last result.
fn decoded(reply: Segments) -> COMPOUND4res {
    let reply = COMPOUND4res::from_bytes(&reply.to_bytes()).expect("replies can be read");
    if let Some(last) = reply.resarray.last() {
        let bytes = last.to_bytes();
        assert_eq!(bytes[4..8], (reply.status as u32).to_be_bytes(), "{reply:?}");
    }
    reply
}
