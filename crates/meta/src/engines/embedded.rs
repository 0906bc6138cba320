//! The embedded store: a redb database with a write-ahead log (batch log). One writer commits all queued batches with a
//! single flush (group commit).

mod error;
mod file;
mod group_commit;
mod guard;
mod memtable;
mod open;
mod record_checksum;
mod table;
mod writer;

pub use error::StoreError;
pub use file::FileLog;
pub use writer::{Step, Stepper};

use crate::engine::{Batch, Broken, Counters, Engine, Job, MergeFn, Outcome, Pending, Queue, StoreStatus, View};
use crate::log::LogDisk;
use futures_channel::oneshot;
use group_commit::GroupCommit;
use guard::{Guarded, guarded};
use memtable::Memtable;
use open::{Base, attach};
use redb::{Database, StorageBackend, TableDefinition};
use std::future::poll_fn;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use types::limits;
use writer::Writer;

type Table = TableDefinition<'static, &'static [u8], &'static [u8]>;
/// The redb table of the records. Each record has a checksum.
const TABLE: Table = TableDefinition::new("weir");
/// The redb table with the log's anchor, under the key [`ANCHOR`]. The anchor identifies the last log record whose
/// changes are in the table of records, so a replay begins after this record.
const LOG: Table = TableDefinition::new("log");
const ANCHOR: &[u8] = b"anchor";

/// A store in a redb file and a batch log file. The files are locked against other processes while the store is open.
///
/// After an I/O error all operations fail, and the daemon must be restarted. The restarted daemon recovers all batches
/// that were reported as committed and durable.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    /// The writer with its queue of batches; `None` if a [`Stepper`] owns the writer.
    group_commit: Option<Arc<GroupCommit>>,
    thread: Option<JoinHandle<()>>,
    /// Whether threads that submit batches may commit them, instead of the writer's thread.
    led: bool,
}

struct Shared {
    /// The memtable holds snapshots of the database. This field is declared before the database, so Rust drops the
    /// memtable before it drops and closes the database.
    recent: Memtable,
    database: Guarded,
    queue: Arc<Queue>,
    merge: MergeFn,
    state: Mutex<State>,
    /// Number of reads that found a damaged record.
    corrupt: AtomicU64,
    free: Box<Free>,
    path: PathBuf,
    /// Random id of the store; the store's batch log has the same id.
    id: [u8; 16],
}

/// Free space on the disk of a store, and the space that the store reserves there.
#[derive(Clone, Copy, Debug)]
struct Space {
    /// Free space on the disk in bytes.
    free: u64,
    /// Free space in bytes below which the store accepts only batches of removals and of recovery
    /// ([`limits::meta_reserve`]).
    reserve: u64,
}

/// A function that returns the free space on the disk of a store; `None` if the operating system does not report the
/// free space.
type Free = dyn Fn() -> Option<Space> + Send + Sync;

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("path", &self.path).field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    counters: Counters,
    point: u64,
    broken: Option<Broken>,
    /// Wakers of the tasks that wait for a failure of the store.
    watching: Vec<Waker>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the store as failed. Only the first call sets the cause of the failure.
    fn fail(&self, broken: &Broken) {
        let mut state = self.state();
        state.broken.get_or_insert_with(|| broken.clone());
        let watching = std::mem::take(&mut state.watching);
        drop(state);
        watching.into_iter().for_each(Waker::wake);
    }
}

fn disk_free(path: &Path) -> Box<Free> {
    let path = path.to_owned();
    Box::new(move || {
        let stat = rustix::fs::statvfs(&path).ok()?;
        let bytes = |blocks: u64| blocks.checked_mul(stat.f_frsize);
        Some(Space { free: bytes(stat.f_bavail)?, reserve: limits::meta_reserve(bytes(stat.f_blocks)?) })
    })
}

/// Returns the path of the batch log of the store at `path`.
fn log_path(path: &Path) -> PathBuf {
    path.with_extension("log")
}

impl Embedded {
    /// Creates an empty store at `path`, which must not exist. The batch log is created next to the database file,
    /// with the file extension `log`. The permission bits of both files let only the owner use them, whatever the
    /// umask is.
    ///
    /// `id` is the random id of the store.
    pub fn create(path: &Path, id: [u8; 16], merge: MergeFn) -> Result<Self, StoreError> {
        let io = |cause| match cause {
            // The open call may create the file, so the error "not found" means that the directory is missing.
            cause if std::io::Error::kind(&cause) == std::io::ErrorKind::NotFound => {
                StoreError::Unusable { path: path.to_owned(), cause: cause.to_string() }
            }
            cause => StoreError::from_io(path, cause),
        };
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
        let make = || {
            let database = Self::database(path, || Self::builder().create_file(file))?;
            let log = Box::new(FileLog::create(&log_path(path)).map_err(io)?);
            let parent = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            std::fs::File::open(parent).and_then(|dir| dir.sync_all()).map_err(io)?;
            let base = Base { database, merge, path: path.to_owned(), free: disk_free(path) };
            attach(base, Some(id), || Ok(log))
        };
        match make() {
            Ok(writer) => Self::start(writer),
            Err(error) => {
                // Remove the files of the incomplete store. Otherwise the next attempt to create the store would
                // fail.
                let _ = (std::fs::remove_file(path), std::fs::remove_file(log_path(path)));
                Err(error)
            }
        }
    }

    /// Opens the existing store at `path`.
    pub fn open(path: &Path, merge: MergeFn) -> Result<Self, StoreError> {
        let database = Self::database(path, || Self::builder().open(path))?;
        let log = || match FileLog::open(&log_path(path)) {
            Ok(log) => Ok(Box::new(log) as Box<dyn LogDisk>),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                Err(StoreError::LogMissing { store: path.to_owned(), log: log_path(path) })
            }
            Err(cause) => Err(StoreError::Unusable { path: log_path(path), cause: cause.to_string() }),
        };
        let base = Base { database, merge, path: path.to_owned(), free: disk_free(path) };
        Self::start(attach(base, None, log)?)
    }

    /// Opens a store on a storage for the database and a disk for the log, which the caller provides. If the storage is
    /// empty, creates a store with the random id `id`. `free` returns the free space of the storage.
    pub fn on(
        storage: impl StorageBackend,
        log: impl LogDisk,
        id: [u8; 16],
        merge: MergeFn,
        free: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        Self::start(Self::attach_on(storage, log, id, merge, free)?)
    }

    /// Opens a store as [`Self::on`] does, but without a thread for the writer. The store commits batches and makes
    /// checkpoints only when the caller calls [`Stepper::step`] with the current time.
    pub fn stepped(
        storage: impl StorageBackend,
        log: impl LogDisk,
        id: [u8; 16],
        merge: MergeFn,
        free: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Result<(Self, Stepper), StoreError> {
        let writer = Self::attach_on(storage, log, id, merge, free)?;
        let shared = writer.shared().clone();
        Ok((Embedded { shared, group_commit: None, thread: None, led: false }, Stepper::new(writer)))
    }

    /// Allows threads that submit batches to commit them inside [`Engine::submit`], if the writer is free and flushes
    /// are fast. Without this setting, only the writer's thread commits batches.
    pub fn led_by_callers(mut self) -> Self {
        self.led = true;
        self
    }

    fn attach_on(
        storage: impl StorageBackend,
        log: impl LogDisk,
        id: [u8; 16],
        merge: MergeFn,
        free: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Result<Writer, StoreError> {
        let path = PathBuf::from("(given storage)");
        let database = Self::database(&path, || Self::builder().create_with_backend(storage))?;
        let free = Box::new(move || Some(Space { free: free()?, reserve: limits::META_RESERVE_BYTES }));
        attach(Base { database, merge, path, free }, Some(id), || Ok(Box::new(log)))
    }

    fn builder() -> redb::Builder {
        let mut builder = Database::builder();
        builder.set_cache_size(limits::META_CACHE_BYTES);
        builder
    }

    fn database(
        path: &Path,
        open: impl FnOnce() -> Result<Database, redb::DatabaseError>,
    ) -> Result<Guarded, StoreError> {
        match guarded(open) {
            Ok(opened) => opened.map(Guarded::new).map_err(|error| StoreError::from_redb(path, error)),
            Err(broken) => Err(StoreError::damaged(path, broken)),
        }
    }

    fn start(writer: Writer) -> Result<Self, StoreError> {
        let shared = writer.shared().clone();
        let group_commit = GroupCommit::new(writer);
        let works = group_commit.clone();
        match std::thread::Builder::new().name("meta-writer".into()).spawn(move || works.run()) {
            Ok(thread) => Ok(Embedded { shared, group_commit: Some(group_commit), thread: Some(thread), led: false }),
            Err(cause) => Err(StoreError::Unusable { path: shared.path.clone(), cause: cause.to_string() }),
        }
    }
}

impl Drop for Embedded {
    /// Commits all submitted batches, then closes the files.
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(thread) = self.thread.take() {
            // Ignore a panic of the writer's thread: the threads that submitted its batches have already received the
            // outcome `Unknown`.
            let _ = thread.join();
        }
    }
}

impl Engine for Embedded {
    fn view(&self) -> Result<Box<dyn View + '_>, Broken> {
        if let Some(broken) = &self.shared.state().broken {
            return Err(broken.clone());
        }
        Ok(Box::new(self.shared.recent.view(&self.shared.corrupt)))
    }

    fn submit(&self, batch: Batch) -> Pending {
        if !batch.is_within_limits() {
            return Pending::known(Outcome::TooLarge);
        }
        let (answer, outcome) = oneshot::channel();
        let pending = Pending::queued(Job { batch, answer }, outcome, &self.shared.queue);
        match &self.group_commit {
            Some(group_commit) if self.led => group_commit.look(),
            Some(_) => self.shared.queue.call(),
            None => {}
        }
        pending
    }

    fn identity(&self) -> [u8; 16] {
        self.shared.id
    }

    fn status(&self) -> StoreStatus {
        let len = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        let bytes = len(&self.shared.path) + len(&log_path(&self.shared.path));
        let state = self.shared.state();
        let counters = Counters { corrupt: self.shared.corrupt.load(Relaxed), ..state.counters };
        StoreStatus { kind: "embedded", term: 0, bytes, counters, broken: state.broken.clone() }
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = Broken> + Send + '_>> {
        Box::pin(poll_fn(|context| {
            let mut state = self.shared.state();
            if let Some(broken) = &state.broken {
                return Poll::Ready(broken.clone());
            }
            if !state.watching.iter().any(|waker| waker.will_wake(context.waker())) {
                state.watching.push(context.waker().clone());
            }
            Poll::Pending
        }))
    }
}
