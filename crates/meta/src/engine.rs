//! The engine trait of the metadata store: an ordered key-value store with consistent snapshots, and atomic batches
//! with preconditions.

mod commit_group;
mod pending;
mod queue;

pub(crate) use commit_group::{CommitGroup, Verdict};
pub use pending::Pending;
pub(crate) use queue::{Job, Queue};

use bytes::Bytes;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use types::limits;

/// A key: at most [`limits::KEY_MAX`] bytes, ordered bytewise.
pub type Key = Vec<u8>;
/// A value of at most [`limits::VALUE_MAX`] bytes.
pub type Value = Bytes;

/// A merge function: computes a new value from the current value and a delta ([`Write::Merge`]).
///
/// The function is pure. If the function returns `None`, the delta cannot be applied to the current value, and the
/// whole batch conflicts.
pub type MergeFn = fn(old: Option<&[u8]>, delta: &[u8]) -> Option<Value>;

/// The error of a store that has failed permanently. The process can neither read nor write the store until the daemon
/// is restarted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the metadata store has failed: {0}")]
pub struct Broken(Arc<str>);

impl Broken {
    /// Returns an error with the text of `cause` as its message.
    pub fn new(cause: impl std::fmt::Display) -> Self {
        Broken(cause.to_string().into())
    }
}

impl From<Broken> for types::Status {
    fn from(_: Broken) -> Self {
        types::Status::Io
    }
}

/// The reason why a store cannot return a record.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreadable {
    /// The value with this key does not match its checksum, or damage in the database hides the record with this key.
    /// Other records remain readable.
    #[error("a record of the metadata store is damaged: {}", .0.escape_ascii())]
    Corrupt(Key),
    /// The store has failed permanently, so no record is readable.
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl From<Unreadable> for types::Status {
    fn from(cause: Unreadable) -> Self {
        match cause {
            Unreadable::Corrupt(_) => types::Status::Corrupt,
            Unreadable::Broken(broken) => broken.into(),
        }
    }
}

/// The number of a batch in log messages; unique until the daemon is restarted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct RequestId(pub u64);

/// A position in the history of a store: the number of commit groups (batches committed together) since the store was
/// opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Point(pub u64);

/// A precondition of a batch. The store applies the batch only if all its preconditions hold at the commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expect {
    /// The store has no record with this key.
    Absent(Key),
    /// The record with this key has exactly this value.
    Reads(Key, Value),
    /// The store has no key in the half-open range from the first to the second key.
    NoneIn(Key, Key),
}

/// A change of one record in a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Sets the record to this value.
    Put(Value),
    /// Deletes the record, if it exists.
    Delete,
    /// Sets the record to the result of the store's [`MergeFn`] for the current value and this delta.
    ///
    /// A merge suits changes that commute: it needs no precondition on the record, so concurrent writers do not
    /// conflict.
    Merge(Bytes),
}

/// A batch of changes with preconditions. The store applies the batch atomically: completely if all preconditions
/// hold, otherwise not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The number of the batch, for log messages.
    pub id: RequestId,
    /// Preconditions. The store checks the preconditions against its content after all batches that were submitted
    /// earlier.
    pub expects: Vec<Expect>,
    /// Changes of records, in the order in which the store applies them.
    pub writes: Vec<(Key, Write)>,
    /// Whether the store reports the outcome only when the batch is durable. A batch without this flag becomes durable
    /// with a later durable batch or with [`Engine::settle`].
    pub durable: bool,
    /// Whether a nearly full store still accepts the batch. This is set if the batch eventually frees space, or if a
    /// removal or a recovery needs the batch.
    pub frees: bool,
}

impl Batch {
    /// Returns the total number of bytes in the keys and values of the batch.
    pub fn len(&self) -> usize {
        let expects = self.expects.iter().map(|expect| match expect {
            Expect::Absent(key) => key.len(),
            Expect::Reads(key, value) => key.len() + value.len(),
            Expect::NoneIn(from, to) => from.len() + to.len(),
        });
        let writes = self.writes.iter().map(|(key, write)| {
            key.len()
                + match write {
                    Write::Put(bytes) | Write::Merge(bytes) => bytes.len(),
                    Write::Delete => 0,
                }
        });
        expects.sum::<usize>() + writes.sum::<usize>()
    }

    /// Returns whether the batch has no preconditions and no changes.
    pub fn is_empty(&self) -> bool {
        self.expects.is_empty() && self.writes.is_empty()
    }

    /// Returns whether the batch is within every limit. A store refuses batches that exceed a limit.
    pub fn is_within_limits(&self) -> bool {
        let key = |key: &Key| key.len() <= limits::KEY_MAX;
        let expects = self.expects.iter().all(|expect| match expect {
            Expect::Absent(k) => key(k),
            Expect::Reads(k, value) => key(k) && value.len() <= limits::VALUE_MAX,
            Expect::NoneIn(from, to) => key(from) && key(to),
        });
        let writes = self.writes.iter().all(|(k, write)| {
            key(k)
                && match write {
                    Write::Put(bytes) | Write::Merge(bytes) => bytes.len() <= limits::VALUE_MAX,
                    Write::Delete => true,
                }
        });
        expects
            && writes
            && self.expects.len() <= limits::BATCH_EXPECTS_MAX
            && self.writes.len() <= limits::BATCH_WRITES_MAX
            && self.len() <= limits::BATCH_BYTES_MAX
    }
}

/// The result of a merge: the record's value before the merge (`None` if the record did not exist), and its value after
/// the merge.
pub type Merged = (Option<Value>, Value);

/// The outcome of a submitted batch.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The store has applied the batch. If the batch required durability, the batch is durable.
    Committed {
        /// The commit group (batches committed together) that contains the batch.
        point: Point,
        /// The results of all [`Write::Merge`] changes of the batch, in the order of these changes.
        merged: Vec<Merged>,
    },
    /// The store has not applied the batch, because a precondition did not hold or a delta could not be applied. The
    /// variant contains the index of the precondition or change that failed; preconditions count first, then changes.
    Conflict(usize),
    /// The store has not applied the batch, because the batch exceeds a size limit.
    TooLarge,
    /// The store has not applied the batch, because the disk is nearly full. In this state the store accepts only
    /// batches with [`Batch::frees`].
    Full,
    /// The store has not applied the batch, because the batch depends on the record with this key, which is damaged.
    Corrupt(Key),
    /// The store failed before it sent the outcome, so it is unknown whether the batch was applied.
    Unknown(Broken),
}

/// What a callback decides after each key: whether the scan of the keys continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// The scan continues with the next key.
    On,
    /// The scan ends, because the callback needs no more keys.
    Stop,
}

/// A consistent, read-only snapshot of a store.
pub trait View {
    /// Returns the value of `key`; `None` if the store has no such record.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable>;

    /// Passes up to `limit` records of `range` to `visit`, in key order. Returns the next key in the range, at which a
    /// later call can continue; `None` at the end of the range.
    ///
    /// For a damaged record, `visit` receives the key without a value. If damage hides the following keys, the scan
    /// ends with an error that names the last key before the damage.
    fn survey(&self, range: Range<&[u8]>, limit: usize, visit: &mut Survey<'_>) -> Result<Option<Key>, Unreadable>;

    /// Passes up to `limit` records of `range` to `visit`, in key order, as [`Self::survey`] does. At a damaged record,
    /// the scan ends with an error.
    fn scan(
        &self,
        range: Range<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Walk,
    ) -> Result<Option<Key>, Unreadable> {
        let mut damaged = None;
        let next = self.survey(range, limit, &mut |key, value| match value {
            Some(value) => visit(key, value),
            None => {
                damaged = Some(key.to_vec());
                Walk::Stop
            }
        })?;
        match damaged {
            None => Ok(next),
            Some(key) => Err(Unreadable::Corrupt(key)),
        }
    }
}

/// A callback that receives a key and its value. The value is `None` if the record does not match its checksum.
pub type Survey<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Walk + 'a;

/// Event counters of a store since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Number of batches that the store applied.
    pub batches: u64,
    /// Number of flushes that made batches durable before their outcomes were reported. The store flushes the batch
    /// log, or the database if the log has no space for a commit group. Many batches share one flush.
    pub flushes: u64,
    /// Number of checkpoints: flushes of the database, after which the batch log has free space again.
    pub checkpoints: u64,
    /// Number of batches that the store refused because a precondition did not hold at the commit.
    pub conflicts: u64,
    /// Total number of bytes in the keys and values that batches wrote.
    pub bytes: u64,
    /// Number of reads that found a record with a wrong checksum.
    pub corrupt: u64,
}

/// The state of a store, for status reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreStatus {
    /// Name of the engine, such as the name of the embedded engine.
    pub kind: &'static str,
    /// Term of the leader of a replicated store; 0 for a store with a single owner.
    pub term: u64,
    /// Approximate disk space that the store uses, in bytes.
    pub bytes: u64,
    /// Event counters since the store was opened.
    pub counters: Counters,
    /// The cause of the permanent failure; `None` if the store works. After a failure the daemon must be restarted.
    pub broken: Option<Broken>,
}

/// An ordered key-value store. The namespace stores all its data through this trait.
pub trait Engine: Send + Sync {
    /// Returns a consistent snapshot of the store. The snapshot contains every batch that the store reported as
    /// committed before this call.
    fn view(&self) -> Result<Box<dyn View + '_>, Broken>;

    /// Submits a batch. The store applies batches in the order of submission.
    ///
    /// If the queue of the store is full, the batch stays in the returned [`Pending`]. Polling the [`Pending`] then
    /// submits the batch.
    fn submit(&self, batch: Batch) -> Pending;

    /// Completes when all batches submitted so far are durable.
    fn settle(&self) -> Pending {
        self.submit(Batch { durable: true, ..Batch::default() })
    }

    /// Returns the random id that the store received at its creation; zeros for a store in memory.
    fn identity(&self) -> [u8; 16] {
        [0; 16]
    }

    /// Returns the state of the store for status reports.
    fn status(&self) -> StoreStatus;

    /// Completes only if the store fails permanently.
    fn failed(&self) -> Pin<Box<dyn Future<Output = Broken> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}

impl<E: Engine + ?Sized> Engine for Arc<E> {
    fn view(&self) -> Result<Box<dyn View + '_>, Broken> {
        (**self).view()
    }
    fn submit(&self, batch: Batch) -> Pending {
        (**self).submit(batch)
    }
    fn settle(&self) -> Pending {
        (**self).settle()
    }
    fn identity(&self) -> [u8; 16] {
        (**self).identity()
    }
    fn status(&self) -> StoreStatus {
        (**self).status()
    }
    fn failed(&self) -> Pin<Box<dyn Future<Output = Broken> + Send + '_>> {
        (**self).failed()
    }
}
