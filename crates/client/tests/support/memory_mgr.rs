//! An NFS server over the file system in memory, on a real socket: a mgr without iods.

use bytes::Bytes;
use client::{Mount, Options, Target};
use net::rpc::{CallContext, Connection, Limits, Refusal, Service};
use net::{Address, Listener};
use nfs::memory::Memory;
use nfs::server::{Call, CallbackPath, Callbacks, Config, Lost, Server};
use nfs::state::{self, ConnectionId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use types::{Cred, Timestamp};
use wire::nfs4::EXCHGID4_FLAG_USE_PNFS_MDS;
use wire::rpc::Auth;
use xdr::{Reader, Segments};

/// Sends callbacks over the connections that requests came from.
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

struct Served {
    server: Server<Memory, Back>,
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
        let call = Call {
            connection: ConnectionId(id),
            principal,
            cred,
            body: body.rest(),
            message_len: context.message_len,
            now: now(),
            random,
        };
        Ok(self.server.compound(call).await?)
    }

    fn disconnected(&self, connection: u64) {
        self.server.callbacks().connections.lock().unwrap().remove(&connection);
        self.server.connection_lost(ConnectionId(connection));
    }
}

/// A running server.
pub struct MemoryMgr {
    service: Arc<Served>,
    _running: net::rpc::Server,
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
        let service = Arc::new(Served { server });
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let running = net::rpc::serve(vec![listener], service.clone(), Limits::default(), net::Counters::default());
        let Address::Tcp { host, port } = &running.addresses()[0] else { panic!("not TCP") };
        let target = Target::parse(&format!("weir://{host}:{port}/")).unwrap();
        MemoryMgr { service, _running: running, target }
    }

    pub async fn mount(&self, options: Options) -> Mount {
        Mount::connect(&self.target, options).await.unwrap()
    }

    /// Lets the leases of all clients run out, as if nothing had been heard of them for long.
    pub async fn expire(&self) {
        self.service.server.tick(now().after(Duration::from_secs(1000))).await;
    }

    /// Cuts every connection, as a network does.
    pub fn cut(&self) {
        for connection in self.service.server.callbacks().connections.lock().unwrap().values() {
            connection.close();
        }
    }
}

/// Root's options.
pub fn options() -> Options {
    Options { cred: Cred::root(), ..Options::default() }
}
