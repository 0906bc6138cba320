//! An mgr without iods: an NFS server that listens on a real socket and keeps its file system in memory.

use bytes::Bytes;
use client::{Mount, Options, Target};
use net::rpc::{CallContext, Connection, Limits, Refusal, Service};
use net::{Address, Listener};
use nfs::server::{Call, CallbackPath, Callbacks, Config, Lost, Server};
use nfs::state::{self, ConnectionId};
use nfs::testing::memory::Memory;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use types::{Cred, Timestamp};
use wire::nfs4::*;
use wire::rpc::Auth;
use xdr::{Reader, Segments, Xdr};

/// Sends callbacks to clients, each over a connection on which requests of the client arrived.
#[derive(Default)]
pub struct Back {
    connections: Mutex<HashMap<u64, Connection>>,
}

impl Callbacks for Back {
    async fn call(&self, path: CallbackPath, arguments: Segments) -> Result<Bytes, Lost> {
        let connection = self.connections.lock().unwrap().get(&path.connection.0).cloned().ok_or(Lost)?;
        let timeout = Duration::from_secs(10);
        let reply = connection.call(path.program, 1, 1, &Auth::None, arguments, timeout).await;
        reply.map(|reply| reply.body.rest()).map_err(|_| Lost)
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// A hook that the server calls with each executed request and its reply. The hook may change the reply.
type Meddler = Box<dyn FnMut(&COMPOUND4args, &mut COMPOUND4res) + Send>;

/// A hook that the server calls with each request before it executes the request. If the hook returns the index of an
/// operation, the server replies NFS4ERR_DELAY to this operation.
type Hinderer = Box<dyn FnMut(&COMPOUND4args) -> Option<usize> + Send>;

struct Served {
    server: Server<Memory, Back>,
    meddler: Mutex<Option<Meddler>>,
    hinderer: Mutex<Option<Hinderer>>,
}

/// Returns the operations of a COMPOUND before index `at`, and the result NFS4ERR_DELAY for the operation at index
/// `at`.
fn cut(request: &COMPOUND4args, at: usize) -> (COMPOUND4args, nfs_resop4) {
    let later = match &request.argarray[at] {
        nfs_argop4::OP_SETATTR(_) => {
            nfs_resop4::OP_SETATTR(SETATTR4res { status: NFS4ERR_DELAY, attrsset: bitmap4::default() })
        }
        nfs_argop4::OP_CLOSE(_) => nfs_resop4::OP_CLOSE(CLOSE4res::Default(NFS4ERR_DELAY)),
        nfs_argop4::OP_RENAME(_) => nfs_resop4::OP_RENAME(RENAME4res::Default(NFS4ERR_DELAY)),
        nfs_argop4::OP_GETATTR(_) => nfs_resop4::OP_GETATTR(GETATTR4res::Default(NFS4ERR_DELAY)),
        other => panic!("no test delays {other:?}"),
    };
    (COMPOUND4args { argarray: request.argarray[..at].to_vec(), ..request.clone() }, later)
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

impl Service for Served {
    async fn call(&self, context: CallContext, body: Reader) -> Result<Segments, Refusal> {
        if context.header.procedure == 0 {
            return Ok(Segments::default());
        }
        let (principal, cred) = Call::identity(&context.header.cred).ok_or(Refusal::Auth(5))?;
        let id = context.peer.id();
        self.server.callbacks().connections.lock().unwrap().insert(id, context.peer.clone());
        let random = getrandom::u64().map_err(|_| Refusal::SystemErr)?;
        let mut asked = body.rest();
        let whole = asked.clone();
        let request = || COMPOUND4args::from_bytes(&whole).unwrap();
        let at = self.hinderer.lock().unwrap().as_mut().and_then(|hinder| hinder(&request()));
        let hindered = at.map(|at| cut(&request(), at));
        if let Some((before, _)) = &hindered {
            asked = before.to_bytes();
        }
        let call = Call {
            view: nfs::exports::View::ALL,
            connection: ConnectionId(id),
            principal,
            origin: types::Machine::Local(0),
            cred,
            body: asked.clone(),
            message_len: context.message_len,
            now: now(),
            random,
        };
        let reply = self.server.compound(call).await?;
        let mut meddler = self.meddler.lock().unwrap();
        if meddler.is_none() && hindered.is_none() {
            return Ok(reply);
        }
        let mut answer = COMPOUND4res::from_bytes(&reply.to_bytes()).unwrap();
        if let Some((_, later)) = hindered {
            assert_eq!(answer.status, NFS4_OK, "{:?}", request());
            answer.status = NFS4ERR_DELAY;
            answer.resarray.push(later);
        }
        if let Some(meddle) = meddler.as_mut() {
            meddle(&request(), &mut answer);
        }
        Ok(answer.to_bytes().into())
    }

    fn disconnected(&self, connection: u64) {
        self.server.callbacks().connections.lock().unwrap().remove(&connection);
        self.server.connection_lost(ConnectionId(connection));
    }
}

/// A running server; dropping it stops the server.
pub struct MemoryMgr {
    service: Arc<Served>,
    _running: net::rpc::Server,
    /// The task that sends queued callbacks to clients; it ends when this value is dropped.
    _telling: tokio::task::JoinSet<()>,
    pub target: Target,
}

impl MemoryMgr {
    pub async fn start() -> Self {
        let config = Config {
            state: state::Config::new(7, EXCHGID4_FLAG_USE_PNFS_MDS, Duration::from_secs(90)),
            major_id: Bytes::from_static(b"a test"),
            implementation: "test".into(),
        };
        let server = Server::start(Memory::new(), Back::default(), config, now()).await.unwrap();
        let service = Arc::new(Served { server, meddler: Mutex::default(), hinderer: Mutex::default() });
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let running = net::rpc::serve(vec![listener], service.clone(), Limits::default(), net::Counters::default());
        let Address::Tcp { host, port } = &running.addresses()[0] else { panic!("not TCP") };
        let target = Target::parse(&format!("weir://{host}:{port}/")).unwrap();
        let (mut telling, teller) = (tokio::task::JoinSet::new(), service.clone());
        telling.spawn(async move { teller.server.deliver().await });
        MemoryMgr { service, _running: running, _telling: telling, target }
    }

    /// Installs the hook `meddle`, which the server calls with each executed request and its reply. The hook may change
    /// the reply.
    #[allow(dead_code)]
    pub fn meddle(&self, meddle: impl FnMut(&COMPOUND4args, &mut COMPOUND4res) + Send + 'static) {
        *self.service.meddler.lock().unwrap() = Some(Box::new(meddle));
    }

    /// Installs the hook `hinder`, which the server calls with each request before it executes the request. If the
    /// hook returns an index, the server replies NFS4ERR_DELAY to the operation at this index, and executes neither
    /// this operation nor the operations after it.
    #[allow(dead_code)]
    pub fn hinder(&self, hinder: impl FnMut(&COMPOUND4args) -> Option<usize> + Send + 'static) {
        *self.service.hinderer.lock().unwrap() = Some(Box::new(hinder));
    }

    pub async fn mount(&self, options: Options) -> Mount {
        Mount::connect(&self.target, options).await.unwrap()
    }

    /// Expires the leases of all clients and the courtesy time after the leases. The server then drops the state of
    /// these clients.
    #[allow(dead_code)]
    pub async fn expire(&self) {
        for _ in 0..2 {
            self.service.server.tick(now().after(Duration::from_secs(1000))).await;
        }
    }

    /// Expires the leases of all clients. The server keeps the state of each client until the client sends a request
    /// again, or until another client requests conflicting state.
    #[allow(dead_code)]
    pub async fn lapse(&self) {
        self.service.server.tick(now().after(Duration::from_secs(100))).await;
    }

    /// Opens a file on behalf of a second client, with share deny: all other clients are denied access
    /// (OPEN4_SHARE_DENY_BOTH).
    #[allow(dead_code)]
    pub async fn open_alone(&self, handle: &Bytes) {
        let fore = channel_attrs4 {
            ca_headerpadsize: 0,
            ca_maxrequestsize: 4096,
            ca_maxresponsesize: 4096,
            ca_maxresponsesize_cached: 4096,
            ca_maxoperations: 8,
            ca_maxrequests: 1,
            ca_rdma_ird: vec![],
        };
        let introduce = EXCHANGE_ID4args {
            eia_clientowner: client_owner4 { co_verifier: [1; 8], co_ownerid: Bytes::from_static(b"somebody alone") },
            eia_flags: 0,
            eia_state_protect: state_protect4_a::SP4_NONE,
            eia_client_impl_id: vec![],
        };
        let results = self.raw(vec![nfs_argop4::OP_EXCHANGE_ID(introduce)]).await;
        let [nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(known))] = &results[..] else { panic!("{results:?}") };
        let create = CREATE_SESSION4args {
            csa_clientid: known.eir_clientid,
            csa_sequence: known.eir_sequenceid,
            csa_flags: 0,
            csa_fore_chan_attrs: fore.clone(),
            csa_back_chan_attrs: fore,
            csa_cb_program: 0,
            csa_sec_parms: vec![],
        };
        let results = self.raw(vec![nfs_argop4::OP_CREATE_SESSION(create)]).await;
        let [nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(session))] = &results[..] else {
            panic!("{results:?}")
        };
        let open = OPEN4args {
            seqid: 0,
            share_access: OPEN4_SHARE_ACCESS_BOTH,
            share_deny: OPEN4_SHARE_DENY_BOTH,
            owner: state_owner4 { clientid: 0, owner: Bytes::from_static(b"alone") },
            openhow: openflag4::Default(OPEN4_NOCREATE),
            claim: open_claim4::CLAIM_FH,
        };
        let sequence = SEQUENCE4args {
            sa_sessionid: session.csr_sessionid,
            sa_sequenceid: 1,
            sa_slotid: 0,
            sa_highest_slotid: 0,
            sa_cachethis: false,
        };
        self.raw(vec![
            nfs_argop4::OP_SEQUENCE(sequence),
            nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false }),
            nfs_argop4::OP_PUTFH(PUTFH4args { object: handle.clone() }),
            nfs_argop4::OP_OPEN(open),
        ])
        .await;
    }

    /// Executes a COMPOUND directly on the server, without a connection. Panics if the COMPOUND fails.
    async fn raw(&self, argarray: Vec<nfs_argop4>) -> Vec<nfs_resop4> {
        let body = COMPOUND4args { tag: Bytes::new(), minorversion: 2, argarray }.to_bytes();
        let call = Call {
            view: nfs::exports::View::ALL,
            connection: ConnectionId(u64::MAX),
            principal: state::Principal::Sys(0),
            origin: types::Machine::Local(0),
            cred: Cred::root(),
            message_len: body.len(),
            body,
            now: now(),
            random: 1,
        };
        let reply = self.service.server.compound(call).await.unwrap();
        let reply = COMPOUND4res::from_bytes(&reply.to_bytes()).unwrap();
        assert_eq!(reply.status, nfsstat4::NFS4_OK, "{reply:?}");
        reply.resarray
    }

    /// Returns how many opens, locks and other items of client state the server keeps.
    #[allow(dead_code)]
    pub fn counts(&self) -> state::Counts {
        self.service.server.inspect(|state| state.counts())
    }

    /// Closes every connection, as a network failure would.
    #[allow(dead_code)]
    pub fn cut(&self) {
        for connection in self.service.server.callbacks().connections.lock().unwrap().values() {
            connection.close();
        }
    }
}

/// Returns client options for root.
#[allow(dead_code)]
pub fn options() -> Options {
    Options { cred: Cred::root(), ..Options::default() }
}
