//! The NFS data server of an iod (RFC 8881 §13), which serves the same objects as the iod's server for the native
//! protocol.
//!
//! Clients of the files layout send file offsets and the filehandle of their layout, which the mgr issued. The
//! filehandle names the object, the allowed operations and the striping. The data server keeps no state of files or
//! opens. The only state of a client that the data server keeps is the session.

mod objects;
mod service;

use iod::Daemon;
use net::rpc::{self, Limits};
use net::{Address, Listener, task};
use nfs::data_server::DataOnly;
use nfs::server::{self, Server};
use nfs::state;
use objects::Objects;
use service::{Gateway, NoCallbacks};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use types::{Status, Timestamp};
use wire::native::Counter;
use wire::nfs4::{EXCHGID4_FLAG_USE_PNFS_DS, OP_COMMIT, OP_READ, OP_WRITE, nfs_opnum4};

/// Lease time of client sessions with the data server. pNFS clients renew these sessions only at the interval of the
/// mgr's lease, which may be longer. So the data server keeps an expired session for some more time (courtesy).
const LEASE: Duration = Duration::from_secs(90);
/// Interval at which the server checks for expired leases.
const TICK: Duration = Duration::from_secs(1);

/// The NFS server, in the role of a pNFS data server.
type DataServer = Server<DataOnly<Objects>, NoCallbacks>;

/// A running NFS data server; dropping the value stops the server.
#[derive(Debug)]
pub struct Running {
    network: rpc::Server,
    counters: net::Counters,
    _ticking: JoinSet<()>,
}

/// Starts an NFS data server that serves the objects of `daemon` on `listeners`, in tasks of the current runtime.
///
/// # Errors
/// `Status::ServerFault` when the server cannot be set up.
pub async fn start(daemon: Arc<Daemon>, listeners: Vec<Listener>) -> Result<Running, Status> {
    let iod = daemon.first().store().iod();
    // The epoch (the time of this start) makes client ids and session ids of earlier starts invalid.
    let epoch = (net::clock::unix_now() as u32).max(1);
    let config = server::Config {
        state: state::Config::new(epoch, EXCHGID4_FLAG_USE_PNFS_DS, LEASE),
        // Each data server needs its own major id, because clients treat servers with the same major id as one server
        // (RFC 8881 §2.10.5).
        major_id: format!("weir/iod/{iod}").into(),
        implementation: concat!("weir ", env!("CARGO_PKG_VERSION")).into(),
    };
    let server = Server::start(DataOnly(Objects::new(daemon)), NoCallbacks, config, now()).await?;
    let server = Arc::new(server);
    let counted = Arc::downgrade(&server);
    server.fs().0.daemon().count_also(move || counted.upgrade().map_or_else(Vec::new, |server| counters(&server)));
    let mut ticking = JoinSet::new();
    let ticked = server.clone();
    task::spawn_in(&mut ticking, async move {
        loop {
            tokio::time::sleep(TICK).await;
            ticked.tick(now()).await;
        }
    });
    let counters = net::Counters::default();
    let network = rpc::serve(listeners, Arc::new(Gateway { server }), Limits::default(), counters.clone());
    for address in network.addresses() {
        tracing::info!(%address, %iod, "data server for NFS clients is up");
    }
    Ok(Running { network, counters, _ticking: ticking })
}

impl Running {
    /// Returns the addresses that the server listens on, with the port that the kernel chose where the configured port
    /// is 0.
    pub fn addresses(&self) -> &[Address] {
        self.network.addresses()
    }

    /// Returns the byte and connection counters of this server's network connections.
    pub fn counters(&self) -> &net::Counters {
        &self.counters
    }

    /// Stops the server: closes the listeners and lets the calls in progress finish.
    pub async fn stop(self) {
        self.network.shutdown().await;
    }
}

/// Returns the NFS counters that the iod adds to its reply to STATS.
fn counters(server: &DataServer) -> Vec<Counter> {
    let (done, held) = (server.counters(), server.inspect(|state| state.counts()));
    let op = |op: nfs_opnum4| {
        let count = done.op(op as u32);
        count.ok + count.failed
    };
    let rows = [
        ("nfs.clients", held.clients as u64),
        ("nfs.sessions", held.sessions as u64),
        ("nfs.compounds", done.compounds),
        ("nfs.reads", op(OP_READ)),
        ("nfs.read_bytes", done.read_bytes),
        ("nfs.writes", op(OP_WRITE)),
        ("nfs.write_bytes", done.write_bytes),
        ("nfs.commits", op(OP_COMMIT)),
    ];
    rows.map(|(name, value)| Counter { name: name.to_owned(), value }).to_vec()
}

fn now() -> Timestamp {
    net::clock::now().into()
}
