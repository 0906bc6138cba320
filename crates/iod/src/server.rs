//! The server of an iod, which serves one or more volumes over TCP and Unix sockets.

mod capability_check;
mod connection;
mod daemon;
mod file_sizes;
mod incarnations;
mod listen;
mod log_procedures;
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
use listen::{Listener, OpenConnections};
use pull_slots::Pulls;

pub use connection::Broken;
pub use daemon::Daemon;
pub use objects::ObjectBytes;
pub use peer::Peer;
pub use volume::Volume;

/// Longest path of a Unix socket (`sun_path` without its NUL).
const SOCKET_PATH_MAX: usize = 107;
/// Name of the iod's Unix socket in the directory of the store.
const SOCKET: &str = "iod.sock";

/// A store that an iod serves.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Directory of the store.
    pub dir: PathBuf,
    /// Id of the file system that the store must belong to. The iod does not start if the store belongs to another file
    /// system.
    pub fsid: Fsid,
    /// Secret of the cluster that the file system belongs to.
    pub key: Key,
}

/// Configuration of an iod. [`Config::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the first store.
    pub dir: PathBuf,
    /// Id of the file system that the first store must belong to. The iod does not start if the store belongs to
    /// another file system.
    pub fsid: Fsid,
    /// Secret of the cluster that the first store's file system belongs to.
    pub key: Key,
    /// Stores to serve besides the first store, each of a different file system. All other settings apply to every
    /// store.
    pub more: Vec<StoreConfig>,
    /// TCP addresses on which the iod listens. For port 0 the system chooses a free port.
    pub listen: Vec<SocketAddr>,
    /// Addresses at which the NFS service (`ds`) serves the objects of the iod. The mgr passes these addresses to
    /// clients of the files layout.
    pub data_server: Vec<String>,
    /// Whether clients of the same host may connect to the iod over a Unix socket.
    pub unix: bool,
    /// Whether the iod passes descriptors of object files over the Unix socket, for short-circuit reads. Only the
    /// superuser and the user of the iod process get descriptors; both could open the files anyway.
    pub short_circuit: bool,
    /// Congestion control of TCP connections; `None` keeps the default of the system.
    pub congestion: Option<String>,
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Maximum number of open connections from one machine ([`types::Machine`]); over the Unix socket, from one user.
    pub max_per_peer: usize,
    /// Longest time that a started request may take to arrive, or that the peer may take to accept a reply. PROVE, by
    /// which the peer authenticates, must arrive in this time too, and within ten seconds of the connection. While
    /// requests hold at least half of the payload buffers, the limit for requests and replies is at most two seconds.
    pub stall: Duration,
}

impl Config {
    /// Returns the default configuration for a store in `dir` on TCP address `listen`: with a Unix socket,
    /// short-circuit reads, and congestion control `cubic`. The time limit for stalled peers is 30 seconds.
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

/// The reason why an iod did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The iod cannot open or use the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Two stores belong to the same file system. A HELLO names only the file system, so the iod could not choose
    /// between the stores.
    #[error("{} and {} belong to the same file system, {fsid}; serve each with an iod of its own", .dirs[0].display(), .dirs[1].display())]
    SameFileSystem {
        /// Id of the file system to which both stores belong.
        fsid: Fsid,
        /// Directories of the two stores that belong to the same file system.
        dirs: [PathBuf; 2],
    },
    /// The iod cannot listen on an address.
    #[error("cannot listen on {address}: {source}; is another daemon using it?")]
    Listen {
        /// The address on which the iod tried to listen.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The operating system could not start a thread for the iod.
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
    /// The connection number of the next connection. The iod finds open connections by this number.
    next: AtomicU64,
}

/// How long a starting iod waits for an earlier iod to release its lock on the store. The system may need this time to
/// clean up after a killed process.
const IN_USE_WAIT: Duration = Duration::from_secs(5);
/// Interval between attempts to open a store that an earlier iod has locked.
const IN_USE_PAUSE: Duration = Duration::from_millis(50);

/// The data server; [`Iod::start`] runs it.
#[derive(Debug)]
pub struct Iod;

impl Iod {
    /// Opens the store and serves it in new threads.
    ///
    /// # Errors
    /// When the store cannot be used or the iod cannot listen on an address. After an error, no thread of the iod is
    /// left running.
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
        // This error cannot occur: the configuration has a first store, so `open_all` returns at least one store.
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
        let watch = OpenConnections::watch(running.live.clone(), running.shared.clone()).map_err(StartError::Thread)?;
        running.threads.push(watch);
        for listener in running.listeners.clone() {
            let thread = listener.serve(running.shared.clone(), running.live.clone()).map_err(StartError::Thread)?;
            running.threads.push(thread);
        }
        Ok(running)
    }
}

/// Opens the stores. Checks that each store belongs to its configured file system, and that no two stores belong to the
/// same file system.
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

/// Listens on these TCP addresses. Also returns the actual addresses, in which port 0 is replaced by the chosen port.
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

/// Binds the Unix socket of a store. Logs a failure and returns `None`, so that the iod starts without the socket.
fn socket_of(dir: &Path) -> Option<(UnixSocket, UnixListener)> {
    let bound = UnixSocket::bind(dir);
    bound.inspect_err(|error| tracing::warn!(%error, "no Unix socket; clients of this host will use TCP")).ok()
}

/// A running iod; stops when dropped.
pub struct Running {
    shared: Arc<Shared>,
    live: Arc<OpenConnections>,
    listeners: Vec<Listener>,
    threads: Vec<JoinHandle<()>>,
    addrs: Vec<SocketAddr>,
    /// The Unix sockets on which the iod listens, one for each volume.
    sockets: Vec<Option<UnixSocket>>,
}

impl Running {
    /// Returns the TCP addresses on which the iod listens, in the order of [`Config::listen`], with the actual port in
    /// place of port 0.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Returns the path of the first volume's Unix socket; `None` if the iod does not listen on one.
    pub fn unix_path(&self) -> Option<&Path> {
        self.sockets.first()?.as_ref().map(|s| s.path.as_path())
    }

    /// Returns the iod id of the first volume. Each volume of a daemon has an iod id of its own.
    pub fn iod(&self) -> IodId {
        self.volume().store().iod()
    }

    /// Returns the daemon that serves the requests from all sockets, so that another service, such as the NFS service,
    /// can serve the same objects. Dropping the last reference to the daemon closes the stores.
    pub fn daemon(&self) -> Arc<Daemon> {
        self.shared.daemon.clone()
    }

    /// Returns the volume of the first configured store.
    pub fn volume(&self) -> &Arc<Volume> {
        self.shared.daemon.first()
    }

    /// Returns the first configured store.
    pub fn store(&self) -> &Store {
        self.volume().store()
    }

    /// Returns all counters of the first volume, and the connection counters of the daemon.
    pub fn counters(&self) -> Vec<Counter> {
        self.shared.daemon.counters_of(self.volume())
    }

    /// Stops the iod: accepts no more connections, completes requests in progress, and closes all connections. The
    /// stores are closed when this function returns, unless another service still refers to the daemon. The iod does
    /// not sync when it stops, so uncommitted data may be only in the page cache of the kernel.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for volume in self.shared.daemon.volumes() {
            volume.write_reports.close();
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

/// A bound Unix socket; dropping this value removes the socket file.
struct UnixSocket {
    path: PathBuf,
    /// The temporary folder that holds the socket, if the path in the store's directory would be too long.
    folder: Option<PathBuf>,
}

impl UnixSocket {
    /// Binds a socket in the directory of the store. Binds in a new temporary folder if the path would be too long or
    /// is not UTF-8. The caller holds the lock of the store, so no other iod uses the socket.
    fn bind(dir: &Path) -> io::Result<(Self, UnixListener)> {
        let dir = dir.canonicalize()?;
        let mut socket = UnixSocket { path: dir.join(SOCKET), folder: None };
        if socket.path.as_os_str().len() > SOCKET_PATH_MAX || socket.path.to_str().is_none() {
            let folder = std::env::temp_dir().join(format!("weir-iod-{}", uuid::Uuid::new_v4().simple()));
            // `make_way` creates the folder, and fails if the folder exists. So the iod never uses a folder of another
            // user, who could replace the socket.
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
        // Every user may connect to the socket, because the iod serves only clients that prove that they have a ticket.
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
        // If this removal of the socket or of its folder fails, the remaining file or folder is harmless: the next
        // start replaces the socket, and ignores an old temporary folder.
        drop(fs::remove_file(&self.path));
        if let Some(folder) = &self.folder {
            drop(fs::remove_dir(folder));
        }
    }
}

/// Opens a store; waits if another iod still has the store locked.
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

/// Raises the process's soft limit of open files to its hard limit, because each open object and each connection uses a
/// descriptor.
fn raise_file_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "cannot raise the limit of open files");
        }
    }
}
