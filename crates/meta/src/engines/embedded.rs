//! The embedded store: a redb file with one writer thread, in which everything queued shares one flush.

use crate::engine::{
    Batch, Broken, Counters, Engine, Job, Key, MergeFn, Merged, Outcome, Pending, Point, Queue, Standing, Value,
    Verdict, View, Walk, Window,
};
use futures_channel::oneshot;
use redb::{
    Database, DatabaseError, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition,
};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use types::limits;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("weir");

/// Why a store could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's message says it
pub enum StoreError {
    #[error("there is no metadata store at {0}: make one with `weir mkfs`")]
    Missing(PathBuf),
    #[error("there is a metadata store at {0} already")]
    Exists(PathBuf),
    #[error("another mgr is using the metadata store {0}: stop it first, two would destroy it")]
    InUse(PathBuf),
    #[error("{path} is not a metadata store, or is damaged: {cause}")]
    Damaged { path: PathBuf, cause: String },
    #[error("the metadata store {path} cannot be used: {cause}")]
    Unusable { path: PathBuf, cause: String },
}

impl StoreError {
    fn from_redb(path: &Path, error: DatabaseError) -> Self {
        let path = path.to_owned();
        match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(path),
            DatabaseError::Storage(StorageError::Io(cause)) => Self::from_io(&path, cause),
            other => StoreError::Damaged { path, cause: other.to_string() },
        }
    }

    fn from_io(path: &Path, cause: std::io::Error) -> Self {
        let path = path.to_owned();
        match cause.kind() {
            std::io::ErrorKind::NotFound => StoreError::Missing(path),
            std::io::ErrorKind::AlreadyExists => StoreError::Exists(path),
            std::io::ErrorKind::InvalidData => StoreError::Damaged { path, cause: cause.to_string() },
            _ => StoreError::Unusable { path, cause: cause.to_string() },
        }
    }
}

/// A store in one redb file, locked against a second opener for as long as this lives.
///
/// After an input/output error nothing works any more: the daemon has to be started again, and finds everything that
/// was reported committed.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    database: Database,
    queue: Arc<Queue>,
    merge: MergeFn,
    state: Mutex<State>,
    free: Box<Free>,
    path: PathBuf,
}

/// Free bytes of the disk below a store, `None` if it cannot be told.
type Free = dyn Fn() -> Option<u64> + Send + Sync;

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
}

fn disk_free(path: &Path) -> Box<Free> {
    let path = path.to_owned();
    Box::new(move || {
        let stat = rustix::fs::statvfs(&path).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    })
}

impl Embedded {
    /// Makes a new, empty store at `path`, which must not exist.
    pub fn create(path: &Path, merge: MergeFn) -> Result<Self, StoreError> {
        let io = |cause| match cause {
            // The file is made here: what is missing is its directory.
            cause if std::io::Error::kind(&cause) == std::io::ErrorKind::NotFound => {
                StoreError::Unusable { path: path.to_owned(), cause: cause.to_string() }
            }
            cause => StoreError::from_io(path, cause),
        };
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(path).map_err(io)?;
        let database = Self::builder().create_file(file).map_err(|error| StoreError::from_redb(path, error))?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        std::fs::File::open(parent).and_then(|dir| dir.sync_all()).map_err(io)?;
        Self::start(database, merge, path, disk_free(path))
    }

    /// Opens the store at `path`, which must exist.
    pub fn open(path: &Path, merge: MergeFn) -> Result<Self, StoreError> {
        let database = Self::builder().open(path).map_err(|error| StoreError::from_redb(path, error))?;
        Self::start(database, merge, path, disk_free(path))
    }

    /// Opens a store, or makes it if it is empty, on storage of the caller's, with `free` telling the room left there.
    pub fn on(
        storage: impl StorageBackend,
        merge: MergeFn,
        free: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let path = Path::new("(given storage)");
        let database =
            Self::builder().create_with_backend(storage).map_err(|error| StoreError::from_redb(path, error))?;
        Self::start(database, merge, path, Box::new(free))
    }

    fn builder() -> redb::Builder {
        let mut builder = Database::builder();
        builder.set_cache_size(limits::META_CACHE_BYTES);
        builder
    }

    fn start(database: Database, merge: MergeFn, path: &Path, free: Box<Free>) -> Result<Self, StoreError> {
        let path = path.to_owned();
        let shared = Shared { database, queue: Arc::default(), merge, state: Mutex::default(), free, path };
        // Views need the table to be there.
        let created = shared
            .commit_window(&[], true)
            .map_err(|broken| StoreError::Damaged { path: shared.path.clone(), cause: broken.to_string() });
        created?;
        let shared = Arc::new(shared);
        let writer = std::thread::Builder::new().name("meta-writer".into()).spawn({
            let shared = shared.clone();
            move || shared.write()
        });
        match writer {
            Ok(writer) => Ok(Embedded { shared, writer: Some(writer) }),
            Err(cause) => Err(StoreError::Unusable { path: shared.path.clone(), cause: cause.to_string() }),
        }
    }
}

impl Drop for Embedded {
    /// Finishes what was submitted, then closes the file.
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has nothing more to tell: its callers got `Unknown`.
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer thread: windows of batches, one flush each, until the queue is closed.
    fn write(&self) {
        // Batches that come while nobody takes them learn from the closed queue that nobody will.
        struct Close<'a>(&'a Queue);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        let _close = Close(&self.queue);
        while let Some(jobs) = self.queue.window() {
            let broken = self.state().broken.clone();
            let outcomes = match broken {
                Some(broken) => Err(broken),
                None => self.commit_jobs(&jobs),
            };
            match outcomes {
                Ok(outcomes) => {
                    for (job, outcome) in jobs.into_iter().zip(outcomes) {
                        // Whoever dropped the answer does not want it.
                        let _ = job.answer.send(outcome);
                    }
                }
                Err(broken) => {
                    self.state().broken.get_or_insert_with(|| broken.clone());
                    for job in jobs {
                        let _ = job.answer.send(Outcome::Unknown(broken.clone()));
                    }
                }
            }
        }
    }

    fn commit_jobs(&self, jobs: &[Job]) -> Result<Vec<Outcome>, Broken> {
        let batches: Vec<&Batch> = jobs.iter().map(|job| &job.batch).collect();
        let outcomes = self.commit_window(&batches, false);
        if let Err(broken) = &outcomes {
            tracing::error!(store = %self.path.display(), %broken, "the metadata store cannot go on");
        }
        outcomes
    }

    /// Applies the batches in order in one transaction; on error nothing is known about any of them.
    fn commit_window(&self, batches: &[&Batch], create: bool) -> Result<Vec<Outcome>, Broken> {
        let free = (self.free)().unwrap_or(u64::MAX);
        let mut transaction = self.database.begin_write().map_err(Broken::new)?;
        transaction.set_quick_repair(true);
        let mut verdicts = Vec::with_capacity(batches.len());
        let mut bytes = 0;
        let mut durable = create;
        let mut changed = create;
        {
            let mut table = transaction.open_table(TABLE).map_err(Broken::new)?;
            let changes = {
                let view = Reading(&table);
                let mut window = Window::new(&view, self.merge);
                for batch in batches {
                    let room = if batch.frees { limits::META_RESERVE_BYTES / 4 } else { limits::META_RESERVE_BYTES };
                    if free < room && !batch.writes.is_empty() {
                        verdicts.push(Err(Outcome::Full));
                        continue;
                    }
                    match window.apply(batch)? {
                        Verdict::Applied(merged) => {
                            durable |= batch.durable;
                            verdicts.push(Ok(merged));
                        }
                        Verdict::Conflict(index) => verdicts.push(Err(Outcome::Conflict(index))),
                    }
                }
                window.into_changes()
            };
            changed |= !changes.is_empty();
            for (key, value) in changes {
                bytes += (key.len() + value.as_ref().map_or(0, Value::len)) as u64;
                match value {
                    Some(value) => table.insert(&key[..], &value[..]).map_err(Broken::new)?,
                    None => table.remove(&key[..]).map_err(Broken::new)?,
                };
            }
        }
        // A window without changes still flushes if a batch asked for durability: what went before may not be flushed.
        if changed || durable {
            let durability = if durable { Durability::Immediate } else { Durability::None };
            transaction.set_durability(durability).map_err(Broken::new)?;
            transaction.commit().map_err(Broken::new)?;
        } else {
            transaction.abort().map_err(Broken::new)?;
        }
        Ok(self.count(verdicts, bytes, durable))
    }

    fn count(&self, verdicts: Vec<Result<Vec<Merged>, Outcome>>, bytes: u64, flushed: bool) -> Vec<Outcome> {
        let mut state = self.state();
        state.point += 1;
        let point = Point(state.point);
        state.counters.flushes += u64::from(flushed);
        state.counters.bytes += bytes;
        let settle = |verdict| match verdict {
            Ok(merged) => {
                state.counters.batches += 1;
                Outcome::Committed { point, merged }
            }
            Err(outcome) => {
                state.counters.conflicts += u64::from(matches!(outcome, Outcome::Conflict(_)));
                outcome
            }
        };
        verdicts.into_iter().map(settle).collect()
    }
}

/// A table as a view: the writer's own inside a transaction, or a snapshot.
struct Reading<'t, T>(&'t T);

impl<T: ReadableTable<&'static [u8], &'static [u8]>> View for Reading<'_, T> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Broken> {
        let found = self.0.get(key).map_err(Broken::new)?;
        Ok(found.map(|value| Value::copy_from_slice(value.value())))
    }

    fn scan(
        &self,
        range: Range<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Walk,
    ) -> Result<Option<Key>, Broken> {
        if range.start >= range.end {
            return Ok(None);
        }
        let mut entries = self.0.range::<&[u8]>(range).map_err(Broken::new)?;
        for entry in entries.by_ref().take(limit) {
            let (key, value) = entry.map_err(Broken::new)?;
            if visit(key.value(), value.value()) == Walk::Stop {
                break;
            }
        }
        let next = entries.next().transpose().map_err(Broken::new)?;
        Ok(next.map(|(key, _)| key.value().to_vec()))
    }
}

struct Snapshot(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl View for Snapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Broken> {
        Reading(&self.0).get(key)
    }

    fn scan(
        &self,
        range: Range<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Walk,
    ) -> Result<Option<Key>, Broken> {
        Reading(&self.0).scan(range, limit, visit)
    }
}

impl Engine for Embedded {
    fn view(&self) -> Result<Box<dyn View + '_>, Broken> {
        if let Some(broken) = &self.shared.state().broken {
            return Err(broken.clone());
        }
        let transaction = self.shared.database.begin_read().map_err(Broken::new)?;
        Ok(Box::new(Snapshot(transaction.open_table(TABLE).map_err(Broken::new)?)))
    }

    fn submit(&self, batch: Batch) -> Pending {
        if !batch.is_within_limits() {
            return Pending::known(Outcome::TooLarge);
        }
        let (answer, outcome) = oneshot::channel();
        Pending::queued(Job { batch, answer }, outcome, &self.shared.queue)
    }

    fn standing(&self) -> Standing {
        let bytes = std::fs::metadata(&self.shared.path).map_or(0, |file| file.len());
        let state = self.shared.state();
        Standing { kind: "embedded", term: 0, bytes, counters: state.counters, broken: state.broken.clone() }
    }
}
