//! The engine trait of the metadata store: ordered keys, consistent views, and closed batches with expectations.

mod pending;
mod queue;
mod window;

pub use pending::Pending;
pub(crate) use queue::{Job, Queue};
pub(crate) use window::{Verdict, Window};

use bytes::Bytes;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use types::limits;

/// A key: at most [`limits::KEY_MAX`] bytes, ordered bytewise.
pub type Key = Vec<u8>;
/// A value: at most [`limits::VALUE_MAX`] bytes.
pub type Value = Bytes;

/// Computes a record from its present value and a delta ([`Write::Merge`]).
///
/// The function is pure. `None` says that the delta does not apply to the present value; the whole batch then
/// conflicts.
pub type MergeFn = fn(old: Option<&[u8]>, delta: &[u8]) -> Option<Value>;

/// Says that the store has failed permanently: this process can neither read nor write it any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the metadata store has failed: {0}")]
pub struct Broken(Arc<str>);

impl Broken {
    /// Returns a failure with this cause.
    pub fn new(cause: impl std::fmt::Display) -> Self {
        Broken(cause.to_string().into())
    }
}

impl From<Broken> for types::Status {
    fn from(_: Broken) -> Self {
        types::Status::Io
    }
}

/// Why a record cannot be read from a store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreadable {
    /// The record of this key does not match its checksum, or damage keeps the store from finding it. Other records can
    /// be read.
    #[error("a record of the metadata store is damaged: {}", .0.escape_ascii())]
    Corrupt(Key),
    /// No record can be read.
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

/// The number of a batch in logs, unique within one run of a daemon.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct RequestId(pub u64);

/// A moment in the history of a store: the number of windows committed since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Point(pub u64);

/// A condition on the store without which a batch is not applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expect {
    /// The key does not exist.
    Absent(Key),
    /// The key has exactly this value.
    Reads(Key, Value),
    /// No key from the first (inclusive) to the second (exclusive) exists.
    NoneIn(Key, Key),
}

/// One change of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Sets the key to this value.
    Put(Value),
    /// Deletes the key, if it exists.
    Delete,
    /// Sets the key to the result of the store's [`MergeFn`] for its present value and this delta.
    ///
    /// Changes that commute need no expectation about the record, so their writers never conflict.
    Merge(Bytes),
}

/// A closed batch: it is applied as a whole if every expectation holds, else not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Number of the batch.
    pub id: RequestId,
    /// Expectations, checked against the state after all earlier batches.
    pub expects: Vec<Expect>,
    /// Changes, in order.
    pub writes: Vec<(Key, Write)>,
    /// Whether the answer waits for stable storage. Otherwise only a later durable batch or [`Engine::settle`] makes
    /// the batch durable.
    pub durable: bool,
    /// Whether the batch is removal or recovery, which a store with little free space still accepts. Such a batch frees
    /// space in the end, or a removal may wait for it and it adds no lasting record.
    pub frees: bool,
}

impl Batch {
    /// Returns the number of bytes in its keys and values.
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

    /// Returns whether it has neither expectations nor changes.
    pub fn is_empty(&self) -> bool {
        self.expects.is_empty() && self.writes.is_empty()
    }

    /// Returns whether it keeps every limit; a store refuses other batches.
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

/// The value before a merge, `None` if the key did not exist, and the value after.
pub type Merged = (Option<Value>, Value);

/// The result of a batch.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Applied, and on stable storage if the batch was durable.
    Committed {
        /// The window in which the batch was committed.
        point: Point,
        /// Results of its [`Write::Merge`] changes, in their order.
        merged: Vec<Merged>,
    },
    /// Not applied: the expectation with this index did not hold, or the write whose index follows those of the
    /// expectations did not merge.
    Conflict(usize),
    /// Not applied: the batch exceeds a limit.
    TooLarge,
    /// Not applied: the store has no space for the batch. Batches that free space may still succeed.
    Full,
    /// Not applied: the batch depends on the record of this key, which is damaged.
    Corrupt(Key),
    /// Applied or not: the store failed meanwhile.
    Unknown(Broken),
}

/// Whether a walk over keys continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// Continue with the next key.
    On,
    /// Stop: this was the last key wanted.
    Stop,
}

/// A consistent snapshot of a store.
pub trait View {
    /// Returns the value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable>;

    /// Passes up to `limit` keys of `range` to `visit`, in order. Returns the first key that was not passed, or `None`
    /// at the end of the range.
    ///
    /// A damaged record is passed without a value. If damage hides the next key, the walk ends with an error that names
    /// the last key before the damage.
    fn survey(&self, range: Range<&[u8]>, limit: usize, visit: &mut Survey<'_>) -> Result<Option<Key>, Unreadable>;

    /// As [`Self::survey`], but ends with an error at a damaged record.
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

/// Receives a key and its value; the value is `None` if the record does not match its checksum.
pub type Survey<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Walk + 'a;

/// Counters of a store since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Batches applied.
    pub batches: u64,
    /// Flushes that answers waited for: of the batch log, or of the store itself if the log could not take a window.
    /// Many batches share one flush.
    pub flushes: u64,
    /// Flushes of the store itself, which free space in the batch log.
    pub checkpoints: u64,
    /// Batches refused because an expectation did not hold.
    pub conflicts: u64,
    /// Bytes of keys and values written by batches.
    pub bytes: u64,
    /// Reads of a record that does not match its checksum.
    pub corrupt: u64,
}

/// The state of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Name of the kind of store.
    pub kind: &'static str,
    /// Term of its leadership; 0 for a store with one owner.
    pub term: u64,
    /// Bytes that the store occupies, approximately.
    pub bytes: u64,
    /// Counters since the store was opened.
    pub counters: Counters,
    /// Why the store has failed permanently, if it has: the daemon must be restarted.
    pub broken: Option<Broken>,
}

/// An ordered map from bytes to bytes: everything the namespace knows about persistence.
pub trait Engine: Send + Sync {
    /// Returns a consistent snapshot, never older than the last batch reported as committed.
    fn view(&self) -> Result<Box<dyn View + '_>, Broken>;

    /// Submits a batch; batches are applied in the order in which they are submitted.
    ///
    /// When the queue of the store is full, the batch waits in the [`Pending`], and polling the [`Pending`] submits it.
    fn submit(&self, batch: Batch) -> Pending;

    /// Completes when all batches submitted so far are on stable storage.
    fn settle(&self) -> Pending {
        self.submit(Batch { durable: true, ..Batch::default() })
    }

    /// Returns the random number that the store got when it was created; zeros for a store that ends with the process.
    fn identity(&self) -> [u8; 16] {
        [0; 16]
    }

    /// Returns the state of the store.
    fn standing(&self) -> Standing;

    /// Completes when the store has failed permanently, and never otherwise.
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
    fn standing(&self) -> Standing {
        (**self).standing()
    }
    fn failed(&self) -> Pin<Box<dyn Future<Output = Broken> + Send + '_>> {
        (**self).failed()
    }
}
