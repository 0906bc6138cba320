//! Serving a store over TCP and a Unix socket.

mod connection;
mod judge;
mod lend;
mod lengths;
mod lines;
mod listen;
mod news;
mod objects;
mod peer;
mod procedures;
mod pulls;
mod socket;

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use types::limits::{CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX};
use types::{Fsid, IodId};
use wire::native::{Counter, Key, Local};

use crate::buffers::Pool;
use crate::store::{Store, StoreError};
use judge::Judge;
use lengths::Lengths;
use lines::Lines;
use listen::{Listener, Live};
use news::News;
use pulls::Pulls;

pub use connection::Broken;
pub use objects::ObjectBytes;
pub use peer::Peer;

/// Longest path of a Unix socket (`sun_path` without its NUL).
const SOCKET_PATH_MAX: usize = 107;
/// Name of the socket in the store's directory.
const SOCKET: &str = "iod.sock";

/// How an iod is to run. [`Config::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the store.
    pub dir: PathBuf,
    /// File system that the store must belong to.
    pub fsid: Fsid,
    /// Secret of the cluster.
    pub key: Key,
    /// TCP addresses to listen on; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Where the same objects are served by NFS, as the mgr tells clients of the files layout.
    pub data_server: Vec<String>,
    /// Whether clients of the same host may come by a Unix socket.
    pub unix: bool,
    /// Whether those who could open them anyway, the superuser and the user that the iod runs as, get descriptors of object files over
    /// the Unix socket, to read by themselves.
    pub lend: bool,
    /// Congestion control of TCP connections; `None` leaves the system's.
    pub congestion: Option<String>,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Most connections from one address at a time; those over the Unix socket count as one.
    pub max_per_peer: usize,
    /// How long a request may take to arrive once it has begun, a reply to be taken, and PROVE to be sent (10 s at most). Of it two
    /// seconds count while most payload buffers are in use.
    pub stall: Duration,
}

impl Config {
    /// Serve the store in `dir` on `listen`, everything else as usual: Unix socket, files lent over it, cubic, 30 seconds.
    pub fn new(dir: impl Into<PathBuf>, fsid: Fsid, key: Key, listen: Vec<SocketAddr>) -> Self {
        Config {
            dir: dir.into(),
            fsid,
            key,
            listen,
            data_server: Vec::new(),
            unix: true,
            lend: true,
            congestion: Some("cubic".into()),
            max_connections: CONNECTIONS_MAX,
            max_per_peer: CONNECTIONS_PER_PEER_MAX,
            stall: Duration::from_secs(30),
        }
    }
}

/// Why an iod did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address cannot be listened on.
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

/// What is served: a store, and the secret that tells who may use it. No thread and no socket.
pub struct Served {
    store: Store,
    judge: Judge,
    pool: Pool,
    local: Option<Local>,
    lend: bool,
    data_server: Vec<String>,
    lines: Arc<Lines>,
    news: News,
    lengths: Lengths,
    pulls: Pulls,
    /// Counters of further doors.
    doors: OnceLock<Box<dyn Fn() -> Vec<Counter> + Send + Sync>>,
}

impl Served {
    /// Serves `store` to those whom the mgr of the cluster with this secret lets.
    pub fn new(store: Store, key: &Key) -> Self {
        Served {
            judge: Judge::new(key, store.fsid(), store.iod()),
            store,
            pool: Pool::default(),
            local: None,
            lend: true,
            data_server: Vec::new(),
            lines: Arc::default(),
            news: News::default(),
            lengths: Lengths::default(),
            pulls: Pulls::default(),
            doors: OnceLock::new(),
        }
    }

    /// Has another door to the objects show its counters beside those of the store; one door has this.
    pub fn count_also(&self, counters: impl Fn() -> Vec<Counter> + Send + Sync + 'static) {
        // There is one; a second one would go uncounted, which harms nobody.
        let _ = self.doors.set(Box::new(counters));
    }

    /// All counters.
    pub fn counters(&self) -> Vec<Counter> {
        let mut all = self.store.snapshot();
        all.extend(self.doors.get().into_iter().flat_map(|counters| counters()));
        all
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }
}

/// What all connections of a running iod share.
struct Shared {
    served: Arc<Served>,
    congestion: Option<String>,
    max_connections: usize,
    max_per_peer: usize,
    stall: Duration,
    /// Number of the next connection.
    next: AtomicU64,
}

/// How long a start waits for the iod before it to let go of the store: the system may take its time to clear away one that was killed.
const IN_USE_WAIT: Duration = Duration::from_secs(5);
/// How often it looks whether that has happened.
const IN_USE_PAUSE: Duration = Duration::from_millis(50);

/// The data server.
#[derive(Debug)]
pub struct Iod;

impl Iod {
    /// Opens the store and serves it in threads of its own.
    ///
    /// # Errors
    /// When the store cannot be used or an address cannot be listened on; nothing is left running then.
    pub fn start(config: Config) -> Result<Running, StartError> {
        raise_file_limit();
        let store = open_when_free(&config.dir)?;
        if store.fsid() != config.fsid {
            let (found, wanted) = (store.fsid(), config.fsid);
            return Err(StoreError::OtherFileSystem { dir: config.dir, found, wanted }.into());
        }
        let mut listeners = Vec::new();
        let mut addrs = Vec::new();
        for address in config.listen {
            let listener = TcpListener::bind(address).and_then(|l| Ok((l.local_addr()?, l)));
            let (bound, listener) = listener.map_err(|source| StartError::Listen { address, source })?;
            addrs.push(bound);
            listeners.push(Listener::Tcp(Arc::new(listener)));
        }
        let mut socket = None;
        if config.unix {
            match UnixSocket::bind(&config.dir) {
                Ok((made, listener)) => {
                    socket = Some(made);
                    listeners.push(Listener::Unix(Arc::new(listener)));
                }
                Err(error) => tracing::warn!(%error, "no Unix socket; clients of this host will use TCP"),
            }
        }
        let local = socket.as_ref().and_then(UnixSocket::announcement);
        let shared = Arc::new(Shared {
            served: Arc::new(Served {
                local,
                lend: config.lend,
                data_server: config.data_server,
                pulls: Pulls::over_sockets(),
                ..Served::new(store, &config.key)
            }),
            congestion: config.congestion,
            max_connections: config.max_connections,
            max_per_peer: config.max_per_peer,
            stall: config.stall,
            next: AtomicU64::new(1),
        });
        let mut running = Running { shared, live: Arc::default(), listeners, threads: Vec::new(), addrs, socket };
        let watch = Live::watch(running.live.clone(), running.shared.clone()).map_err(StartError::Thread)?;
        running.threads.push(watch);
        for listener in running.listeners.clone() {
            let thread = listener.serve(running.shared.clone(), running.live.clone()).map_err(StartError::Thread)?;
            running.threads.push(thread);
        }
        Ok(running)
    }
}

/// A running iod; stops when dropped.
pub struct Running {
    shared: Arc<Shared>,
    live: Arc<Live>,
    listeners: Vec<Listener>,
    threads: Vec<JoinHandle<()>>,
    addrs: Vec<SocketAddr>,
    socket: Option<UnixSocket>,
}

impl Running {
    /// The TCP addresses, in the order of [`Config::listen`], with the ports that were taken.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// The path of the Unix socket, when there is one.
    pub fn unix_path(&self) -> Option<&Path> {
        self.socket.as_ref().map(|s| s.path.as_path())
    }

    /// The identity of the iod.
    pub fn iod(&self) -> IodId {
        self.shared.served.store.iod()
    }

    /// What is served, for further doors to it. The store is closed when nobody has it any more.
    pub fn served(&self) -> Arc<Served> {
        self.shared.served.clone()
    }

    /// The store that is served.
    pub fn store(&self) -> &Store {
        &self.shared.served.store
    }

    /// All counters.
    pub fn counters(&self) -> Vec<Counter> {
        self.shared.served.counters()
    }

    /// Stops: no new connections, requests in hand are finished, everything else is cut off. The store is closed when
    /// this returns. What was not committed is as safe as the system's caches.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.served.news.close();
        self.shared.served.lengths.close();
        self.live.refuse();
        for listener in &self.listeners {
            listener.shutdown();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an accepting thread had panicked");
            }
        }
        self.live.stop();
    }
}

/// A bound Unix socket; its file goes when it is dropped.
struct UnixSocket {
    path: PathBuf,
    /// The folder that was made for it because the store's path is too long.
    folder: Option<PathBuf>,
}

impl UnixSocket {
    /// Binds one in the store's directory, which is locked, or in a new folder for temporary files.
    fn bind(dir: &Path) -> io::Result<(Self, UnixListener)> {
        let dir = dir.canonicalize()?;
        let mut socket = UnixSocket { path: dir.join(SOCKET), folder: None };
        if socket.path.as_os_str().len() > SOCKET_PATH_MAX || socket.path.to_str().is_none() {
            let folder = std::env::temp_dir().join(format!("weir-iod-{}", uuid::Uuid::new_v4().simple()));
            // Fails when it is there already: another user may have made it.
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
        // Whoever can reach it still needs a ticket.
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
        // Leftovers do no harm: the next start removes or ignores them.
        drop(fs::remove_file(&self.path));
        if let Some(folder) = &self.folder {
            drop(fs::remove_dir(folder));
        }
    }
}

/// Opens a store, as soon as no other iod has it open any more.
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

/// Lets the process have as many files open as the system grants it: each object and each connection is one.
fn raise_file_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "cannot raise the limit of open files");
        }
    }
}
