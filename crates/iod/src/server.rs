//! The server of an iod, which serves one or more volumes over TCP and Unix sockets.

mod capability_check;
mod connection;
mod daemon;
mod file_sizes;
mod incarnations;
mod listen;
mod objects;
mod peer;
mod procedures;
mod pull_slots;
mod pulls;
mod short_circuit;
mod socket;
mod volume;
mod write_reports;

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use types::limits::{CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX};
use types::{Fsid, IodId};
use wire::native::{Counter, Key, Local};

use crate::store::{Store, StoreError};
use listen::{Listener, Live};
use pull_slots::Pulls;

pub use connection::Broken;
pub use daemon::Daemon;
pub use objects::ObjectBytes;
pub use peer::Peer;
pub use volume::Volume;

/// Longest path of a Unix socket (`sun_path` without its NUL).
const SOCKET_PATH_MAX: usize = 107;
/// Name of the socket in the store's directory.
const SOCKET: &str = "iod.sock";

/// A store to serve.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Directory of the store.
    pub dir: PathBuf,
    /// File system that the store must belong to; otherwise the start fails.
    pub fsid: Fsid,
    /// Secret of the cluster.
    pub key: Key,
}

/// Configuration of an iod. [`Config::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the store.
    pub dir: PathBuf,
    /// File system that the store must belong to; otherwise the start fails.
    pub fsid: Fsid,
    /// Secret of the cluster.
    pub key: Key,
    /// Further stores to serve, each of another file system. All other settings hold for every store.
    pub more: Vec<StoreConfig>,
    /// TCP addresses to listen on; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Addresses of the NFS service for the same objects, which the mgr passes to clients of the files layout.
    pub data_server: Vec<String>,
    /// Whether clients of the same host may connect over a Unix socket.
    pub unix: bool,
    /// Whether the superuser and the user of the iod process get descriptors of object files over the Unix socket, for
    /// short-circuit reads. These users could open the files anyway.
    pub short_circuit: bool,
    /// Congestion control of TCP connections; `None` keeps the default of the system.
    pub congestion: Option<String>,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Maximum number of connections from one machine ([`types::Machine`]); over the Unix socket, of one user.
    pub max_per_peer: usize,
    /// Time limit for a started request to arrive, for the peer to take a reply, and for PROVE to arrive (10 s at
    /// most). While at least half of the payload buffers are in use, requests and replies have at most two seconds.
    pub stall: Duration,
}

impl Config {
    /// Returns the defaults for a store in `dir` on `listen`: Unix socket, short-circuit reads, cubic, 30 seconds.
    pub fn new(dir: impl Into<PathBuf>, fsid: Fsid, key: Key, listen: Vec<SocketAddr>) -> Self {
        Config {
            dir: dir.into(),
            fsid,
            key,
            more: Vec::new(),
            listen,
            data_server: Vec::new(),
            unix: true,
            short_circuit: true,
            congestion: Some("cubic".into()),
            max_connections: CONNECTIONS_MAX,
            max_per_peer: CONNECTIONS_PER_PEER_MAX,
            stall: Duration::from_secs(30),
        }
    }
}

/// Reason why an iod did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store cannot be opened or used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Two stores belong to the same file system, so that a ticket could mean either.
    #[error("{} and {} belong to the same file system, {fsid}; serve each with an iod of its own", .dirs[0].display(), .dirs[1].display())]
    SameFileSystem {
        /// The file system.
        fsid: Fsid,
        /// The directories of the stores.
        dirs: [PathBuf; 2],
    },
    /// The iod cannot listen on an address.
    #[error("cannot listen on {address}: {source}; is another daemon using it?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// State that all connections of a running iod share.
struct Shared {
    daemon: Arc<Daemon>,
    congestion: Option<String>,
    max_connections: usize,
    max_per_peer: usize,
    stall: Duration,
    /// Number of the next connection.
    next: AtomicU64,
}

/// How long a start waits for an earlier iod to close the store: the system may need time to clean up a killed process.
const IN_USE_WAIT: Duration = Duration::from_secs(5);
/// Interval between attempts to open the store.
const IN_USE_PAUSE: Duration = Duration::from_millis(50);

/// The data server.
#[derive(Debug)]
pub struct Iod;

impl Iod {
    /// Opens the store and serves it in new threads.
    ///
    /// # Errors
    /// When the store cannot be used or the iod cannot listen on an address. No thread is left running then.
    pub fn start(config: Config) -> Result<Running, StartError> {
        raise_file_limit();
        let first = StoreConfig { dir: config.dir.clone(), fsid: config.fsid, key: config.key.clone() };
        let stores = open_all(std::iter::once(&first).chain(&config.more))?;
        let (mut listeners, addrs) = listen_all(&config.listen)?;
        let mut sockets = Vec::new();
        let mut volumes = stores.into_iter().map(|(store, key)| {
            let socket = if config.unix { socket_of(store.dir()) } else { None };
            let local = socket.as_ref().and_then(|(socket, _)| socket.announcement());
            sockets.push(socket.map(|(socket, listener)| {
                listeners.push(Listener::Unix(Arc::new(listener)));
                socket
            }));
            let data_server = config.data_server.clone();
            let pulls = Pulls::over_sockets();
            Volume { local, short_circuit: config.short_circuit, data_server, pulls, ..Volume::new(store, &key) }
        });
        // There is always a first store.
        let Some(first) = volumes.next() else { return Err(StoreError::Missing(config.dir).into()) };
        let others = volumes.collect();
        let shared = Arc::new(Shared {
            daemon: Arc::new(Daemon::new(first, others)),
            congestion: config.congestion,
            max_connections: config.max_connections,
            max_per_peer: config.max_per_peer,
            stall: config.stall,
            next: AtomicU64::new(1),
        });
        let mut running = Running { shared, live: Arc::default(), listeners, threads: Vec::new(), addrs, sockets };
        let watch = Live::watch(running.live.clone(), running.shared.clone()).map_err(StartError::Thread)?;
        running.threads.push(watch);
        for listener in running.listeners.clone() {
            let thread = listener.serve(running.shared.clone(), running.live.clone()).map_err(StartError::Thread)?;
            running.threads.push(thread);
        }
        Ok(running)
    }
}

/// Opens the stores, and checks that each belongs to its file system and no two to the same one.
fn open_all<'a>(configs: impl Iterator<Item = &'a StoreConfig>) -> Result<Vec<(Store, Key)>, StartError> {
    let mut stores: Vec<(Store, Key)> = Vec::new();
    for StoreConfig { dir, fsid, key } in configs {
        let fsid = *fsid;
        if let Some((other, _)) = stores.iter().find(|(other, _)| other.fsid() == fsid) {
            return Err(StartError::SameFileSystem { fsid, dirs: [other.dir().to_owned(), dir.clone()] });
        }
        let store = open_when_free(dir)?;
        if store.fsid() != fsid {
            return Err(StoreError::OtherFileSystem { dir: dir.clone(), found: store.fsid(), wanted: fsid }.into());
        }
        stores.push((store, key.clone()));
    }
    Ok(stores)
}

/// Listens on TCP addresses; also returns the actual addresses.
fn listen_all(addresses: &[SocketAddr]) -> Result<(Vec<Listener>, Vec<SocketAddr>), StartError> {
    let (mut listeners, mut addrs) = (Vec::new(), Vec::new());
    for address in addresses.iter().copied() {
        let listener = TcpListener::bind(address).and_then(|l| Ok((l.local_addr()?, l)));
        let (bound, listener) = listener.map_err(|source| StartError::Listen { address, source })?;
        addrs.push(bound);
        listeners.push(Listener::Tcp(Arc::new(listener)));
    }
    Ok((listeners, addrs))
}

/// Binds the Unix socket of a store, if possible.
fn socket_of(dir: &Path) -> Option<(UnixSocket, UnixListener)> {
    let bound = UnixSocket::bind(dir);
    bound.inspect_err(|error| tracing::warn!(%error, "no Unix socket; clients of this host will use TCP")).ok()
}

/// A running iod; stops when dropped.
pub struct Running {
    shared: Arc<Shared>,
    live: Arc<Live>,
    listeners: Vec<Listener>,
    threads: Vec<JoinHandle<()>>,
    addrs: Vec<SocketAddr>,
    /// The Unix sockets of the volumes.
    sockets: Vec<Option<UnixSocket>>,
}

impl Running {
    /// Returns the TCP addresses in the order of [`Config::listen`], with the actual ports.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Returns the path of the Unix socket of the first volume, if there is one.
    pub fn unix_path(&self) -> Option<&Path> {
        self.sockets.first()?.as_ref().map(|s| s.path.as_path())
    }

    /// Returns the identity of the iod as which the first volume is served.
    pub fn iod(&self) -> IodId {
        self.volume().store().iod()
    }

    /// Returns the service, for other services of the same objects. The stores are closed when the last reference is
    /// dropped.
    pub fn daemon(&self) -> Arc<Daemon> {
        self.shared.daemon.clone()
    }

    /// Returns the first volume.
    pub fn volume(&self) -> &Arc<Volume> {
        self.shared.daemon.first()
    }

    /// Returns the store of the first volume.
    pub fn store(&self) -> &Store {
        self.volume().store()
    }

    /// Returns all counters of the first volume.
    pub fn counters(&self) -> Vec<Counter> {
        self.shared.daemon.counters_of(self.volume())
    }

    /// Stops the iod: accepts no new connections, completes requests in progress, and closes all connections. The
    /// stores are closed when this returns, unless another service still refers to them. Uncommitted data are only in
    /// the page cache of the system.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for volume in self.shared.daemon.volumes() {
            volume.news.close();
            volume.lengths.close();
        }
        self.live.refuse();
        for listener in &self.listeners {
            listener.shutdown();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that accepts connections has panicked");
            }
        }
        self.live.stop();
    }
}

/// A bound Unix socket; dropping it removes its file.
struct UnixSocket {
    path: PathBuf,
    /// The temporary folder of the socket, if the path of the store is too long.
    folder: Option<PathBuf>,
}

impl UnixSocket {
    /// Binds a socket in the store's directory, which is locked, or in a new temporary folder.
    fn bind(dir: &Path) -> io::Result<(Self, UnixListener)> {
        let dir = dir.canonicalize()?;
        let mut socket = UnixSocket { path: dir.join(SOCKET), folder: None };
        if socket.path.as_os_str().len() > SOCKET_PATH_MAX || socket.path.to_str().is_none() {
            let folder = std::env::temp_dir().join(format!("weir-iod-{}", uuid::Uuid::new_v4().simple()));
            // Fails if the folder exists: another user may have created it.
            net::files::make_way(&folder)?;
            socket = UnixSocket { path: folder.join(SOCKET), folder: Some(folder) };
        }
        if socket.folder.is_none() {
            match fs::remove_file(&socket.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let listener = UnixListener::bind(&socket.path)?;
        // A client that connects to the socket still needs a ticket.
        fs::set_permissions(&socket.path, fs::Permissions::from_mode(0o666))?;
        Ok((socket, listener))
    }

    fn announcement(&self) -> Option<Local> {
        let host = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Local { host: host.trim().to_owned(), path: self.path.to_str()?.to_owned() })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Leftovers are harmless: the next start removes or ignores them.
        drop(fs::remove_file(&self.path));
        if let Some(folder) = &self.folder {
            drop(fs::remove_dir(folder));
        }
    }
}

/// Opens a store, and waits while another iod has it open.
fn open_when_free(dir: &Path) -> Result<Store, StoreError> {
    let until = Instant::now() + IN_USE_WAIT;
    let mut said = false;
    loop {
        match Store::open(dir) {
            Err(StoreError::InUse(_)) if Instant::now() < until => {}
            done => return done,
        }
        if !said {
            tracing::warn!(store = %dir.display(), "another iod is using this store; waiting up to {} s for its end", IN_USE_WAIT.as_secs());
            said = true;
        }
        std::thread::sleep(IN_USE_PAUSE);
    }
}

/// Raises the limit of open files to the allowed maximum: each object and each connection uses one.
fn raise_file_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "cannot raise the limit of open files");
        }
    }
}
