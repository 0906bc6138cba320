//! What the namespace asks of a store: ordered keys, consistent views, and closed batches with expectations.

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

/// How a store makes a record from the present one and a delta ([`Write::Merge`]).
///
/// Pure. `None` says that the delta does not apply to what is there; the whole batch is then a conflict.
pub type MergeFn = fn(old: Option<&[u8]>, delta: &[u8]) -> Option<Value>;

/// The store has failed for good: nothing more can be read from it or written to it by this process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the metadata store has failed: {0}")]
pub struct Broken(Arc<str>);

impl Broken {
    /// A failure with this cause.
    pub fn new(cause: impl std::fmt::Display) -> Self {
        Broken(cause.to_string().into())
    }
}

impl From<Broken> for types::Status {
    fn from(_: Broken) -> Self {
        types::Status::Io
    }
}

/// Why something cannot be read from a store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreadable {
    /// The record of this key is not what was written, or cannot be found for damage. Others can be read.
    #[error("a record of the metadata store is damaged: {}", .0.escape_ascii())]
    Corrupt(Key),
    /// Nothing can be read.
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

/// The number of a batch, unique within one run of a daemon; names it in logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct RequestId(pub u64);

/// A moment in the history of a store: the number of windows committed since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Point(pub u64);

/// What must be true of the store for a batch to be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expect {
    /// The key is not there.
    Absent(Key),
    /// The key has exactly this value.
    Reads(Key, Value),
    /// No key from the first (inclusive) to the second (exclusive) is there.
    NoneIn(Key, Key),
}

/// One change of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// The key takes this value.
    Put(Value),
    /// The key goes, if it is there.
    Delete,
    /// The key takes what the store's [`MergeFn`] makes of its present value and this delta.
    ///
    /// Changes that commute need no expectation about the record, so that their writers never conflict.
    Merge(Bytes),
}

/// A closed batch: applied whole if every expectation holds, else not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Its number.
    pub id: RequestId,
    /// Expectations, checked against the state that all earlier batches left.
    pub expects: Vec<Expect>,
    /// Changes, in order.
    pub writes: Vec<(Key, Write)>,
    /// Whether the answer waits for stable storage; else only a later durable batch or [`Engine::settle`] promises it.
    pub durable: bool,
    /// Whether it is removal or recovery, which a store with little free space still accepts: it frees space in the end, or
    /// removal may wait for it and it adds no lasting record.
    pub frees: bool,
}

impl Batch {
    /// Bytes of keys and values in it.
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

    /// Whether it neither expects nor writes anything.
    pub fn is_empty(&self) -> bool {
        self.expects.is_empty() && self.writes.is_empty()
    }

    /// Whether it keeps to every limit; a store refuses it otherwise.
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

/// One merge as it happened: the value before, `None` if the key was not there, and the value after.
pub type Merged = (Option<Value>, Value);

/// What became of a batch.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Applied, and on stable storage if it asked for that.
    Committed {
        /// When.
        point: Point,
        /// What its [`Write::Merge`] changes did, in their order.
        merged: Vec<Merged>,
    },
    /// Not applied: this expectation did not hold (or, counted on behind them, this write did not merge).
    Conflict(usize),
    /// Not applied: it breaks a limit.
    TooLarge,
    /// Not applied: the store has no room for it. Batches that free room may still pass.
    Full,
    /// Not applied: the record of this key, on which it depends, is damaged.
    Corrupt(Key),
    /// Applied or not: the store failed on the way.
    Unknown(Broken),
}

/// Whether a walk over keys goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// Show the next one.
    On,
    /// This was the last one wanted.
    Stop,
}

/// A consistent picture of a store.
pub trait View {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable>;

    /// Shows up to `limit` keys of `range` in order; returns the first one not shown, `None` at the end of the range.
    ///
    /// A damaged record is shown without a value. Where damage is such that nobody can say what comes next, the walk ends
    /// with an error that names the last key before it.
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

/// Takes a key and its value, or none if the record does not match its checksum.
pub type Survey<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Walk + 'a;

/// What a store has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Batches applied.
    pub batches: u64,
    /// Flushes for the sake of answers: of the batch log, or of the store itself where the log could not take a window.
    /// Many batches share one.
    pub flushes: u64,
    /// Flushes of the store itself, which make room in the batch log.
    pub checkpoints: u64,
    /// Batches refused because an expectation did not hold.
    pub conflicts: u64,
    /// Bytes of keys and values written by batches.
    pub bytes: u64,
    /// How often a record was read that does not match its checksum.
    pub corrupt: u64,
}

/// How a store stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Name of the kind of store.
    pub kind: &'static str,
    /// Term of its leadership; 0 for a store with one owner.
    pub term: u64,
    /// Bytes that it occupies, approximately.
    pub bytes: u64,
    /// What it has done.
    pub counters: Counters,
    /// Why it has failed for good, if it has: the daemon must be started again.
    pub broken: Option<Broken>,
}

/// Ordered bytes to bytes: everything the namespace knows about persistence.
pub trait Engine: Send + Sync {
    /// A consistent picture, never older than the last batch reported committed.
    fn view(&self) -> Result<Box<dyn View + '_>, Broken>;

    /// Hands a batch over; batches are applied in the order in which they are handed over.
    ///
    /// When the queue of the store is full, the batch waits in the [`Pending`] and is handed over as that is polled.
    fn submit(&self, batch: Batch) -> Pending;

    /// Completes when everything submitted so far is on stable storage.
    fn settle(&self) -> Pending {
        self.submit(Batch { durable: true, ..Batch::default() })
    }

    /// The random number that the store was made with; zeros for one that ends with the process.
    fn identity(&self) -> [u8; 16] {
        [0; 16]
    }

    /// How the store stands.
    fn standing(&self) -> Standing;

    /// Completes when the store has failed for good, and never otherwise.
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
