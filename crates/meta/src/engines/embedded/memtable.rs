//! The memtable of the embedded store: changes that are in the log and not yet in the table, over a snapshot of the
//! table. A *window* is a group of batches that the writer commits together.

use super::table::{Reading, Snapshot};
use crate::engine::{Key, Survey, Unreadable, Value, View, Walk};
use crate::log::Changes;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::vec::IntoIter;

/// Approximate bytes that a record takes here besides its key and value.
const RECORD: u64 = 128;
/// Maximum number of records that a walk copies at once.
const CHUNK: usize = 256;

/// The newest layer, and the number of windows in it. No view can be taken while the writer adds a window.
pub(super) struct Memtable(RwLock<Top>);

struct Top {
    layer: Arc<Layer>,
    window: u64,
}

/// A snapshot of the table and the changes since.
struct Layer {
    table: Snapshot,
    records: RwLock<BTreeMap<Key, Record>>,
    bytes: AtomicU64,
}

/// The values of a record, each with the number of the window that set the value: the last value, and the earlier
/// values that a view may still read, oldest first.
struct Record {
    last: (u64, Option<Value>),
    before: Vec<(u64, Option<Value>)>,
}

impl Record {
    /// Returns the value after this window; `None` if no window up to this one changed the record.
    fn at(&self, window: u64) -> Option<&Option<Value>> {
        let all = std::iter::once(&self.last).chain(self.before.iter().rev());
        all.into_iter().find(|(since, _)| *since <= window).map(|(_, value)| value)
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    // No code panics while it holds one of the locks.
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl Memtable {
    /// Returns a memtable without changes.
    pub(super) fn new(table: Snapshot) -> Self {
        Memtable(RwLock::new(Top { layer: Layer::new(table), window: 0 }))
    }

    /// Returns a view of everything up to the last window.
    pub(super) fn picture<'s>(&self, corrupt: &'s AtomicU64) -> Picture<'s> {
        let top = read(&self.0);
        Picture { layer: top.layer.clone(), window: top.window, corrupt }
    }

    /// Adds the changes of a window; views taken from now on see them.
    pub(super) fn add(&self, changes: Changes) {
        let mut top = write(&self.0);
        top.window += 1;
        let window = top.window;
        // Views may be dropped meanwhile, but none can be taken. So this count includes every reader of older values.
        let alone = Arc::strong_count(&top.layer) == 1;
        let mut records = write(&top.layer.records);
        let mut bytes = 0;
        for (key, value) in changes {
            bytes += RECORD + (key.len() + value.as_ref().map_or(0, Value::len)) as u64;
            match records.get_mut(&key) {
                Some(record) => {
                    let last = std::mem::replace(&mut record.last, (window, value));
                    if alone {
                        record.before.clear();
                    } else {
                        record.before.push(last);
                    }
                }
                None => drop(records.insert(key, Record { last: (window, value), before: Vec::new() })),
            }
        }
        // The bytes of a replaced value stay counted, which only moves the changes into the table a little earlier.
        top.layer.bytes.fetch_add(bytes, Relaxed);
    }

    /// Returns the approximate number of bytes that were added.
    pub(super) fn bytes(&self) -> u64 {
        read(&self.0).layer.bytes.load(Relaxed)
    }

    /// Passes every changed record to `visit`, in order, with its last value.
    pub(super) fn each<E>(&self, mut visit: impl FnMut(&[u8], Option<&Value>) -> Result<(), E>) -> Result<(), E> {
        let layer = read(&self.0).layer.clone();
        read(&layer.records).iter().try_for_each(|(key, record)| visit(key, record.last.1.as_ref()))
    }

    /// Replaces the layer after the table has received all changes: views taken from now on read this snapshot.
    pub(super) fn renew(&self, table: Snapshot) {
        let layer = Layer::new(table);
        let before = std::mem::replace(&mut write(&self.0).layer, layer);
        // Freeing the layer takes a while, so it happens outside the lock.
        drop(before);
    }
}

impl Layer {
    fn new(table: Snapshot) -> Arc<Self> {
        Arc::new(Layer { table, records: RwLock::default(), bytes: AtomicU64::new(0) })
    }
}

/// A view of the store as of some window.
pub(super) struct Picture<'s> {
    layer: Arc<Layer>,
    window: u64,
    corrupt: &'s AtomicU64,
}

impl Picture<'_> {
    fn below(&self) -> Reading<'_> {
        Reading(&self.layer.table, self.corrupt)
    }
}

impl View for Picture<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable> {
        if let Some(value) = read(&self.layer.records).get(key).and_then(|record| record.at(self.window)) {
            return Ok(value.clone());
        }
        self.below().get(key)
    }

    fn survey(&self, range: Range<&[u8]>, limit: usize, visit: &mut Survey<'_>) -> Result<Option<Key>, Unreadable> {
        if range.start >= range.end {
            return Ok(None);
        }
        let mut recent = Ahead::new(self, range.clone(), limit);
        let mut below = self.below().walk(range)?;
        let (mut entry, mut is_taken) = (None, true);
        let mut shown = 0;
        loop {
            if std::mem::take(&mut is_taken) {
                entry = below.step()?;
            }
            // If both have a record of one key, the recent record counts.
            let first = match (&entry, recent.key()) {
                (None, None) => return Ok(None),
                (Some(entry), Some(key)) => entry.key().cmp(key),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
            };
            is_taken = first != Ordering::Greater;
            let walk = if let (Ordering::Less, Some(entry)) = (first, &entry) {
                if shown == limit {
                    return Ok(Some(entry.key().to_vec()));
                }
                visit(entry.key(), entry.value())
            } else {
                let Some((key, Some(value))) = recent.take() else { continue };
                if shown == limit {
                    return Ok(Some(key));
                }
                visit(&key, Some(&value))
            };
            shown = if walk == Walk::Stop { limit } else { shown + 1 };
        }
    }
}

/// The recent records of a range in order, copied a few at a time: no lock is held while `visit` runs.
struct Ahead<'p, 'r> {
    picture: &'p Picture<'p>,
    /// The range that is not copied yet; `None` if it is empty.
    rest: Option<(Bound<Key>, &'r [u8])>,
    size: usize,
    copied: std::iter::Peekable<IntoIter<(Key, Option<Value>)>>,
}

impl<'p, 'r> Ahead<'p, 'r> {
    fn new(picture: &'p Picture<'p>, range: Range<&'r [u8]>, limit: usize) -> Self {
        let rest = Some((Bound::Included(range.start.to_vec()), range.end));
        Ahead { picture, rest, size: limit.saturating_add(1).min(CHUNK), copied: Vec::new().into_iter().peekable() }
    }

    /// Returns the key of the next record.
    fn key(&mut self) -> Option<&[u8]> {
        while self.copied.peek().is_none() {
            let (from, to) = self.rest.take()?;
            let range = (from.as_ref().map(Vec::as_slice), Bound::Excluded(to));
            let mut copied = Vec::new();
            for (key, record) in read(&self.picture.layer.records).range::<[u8], _>(range) {
                let Some(value) = record.at(self.picture.window) else { continue };
                copied.push((key.clone(), value.clone()));
                if copied.len() == self.size {
                    self.rest = Some((Bound::Excluded(key.clone()), to));
                    break;
                }
            }
            self.copied = copied.into_iter().peekable();
        }
        self.copied.peek().map(|(key, _)| &key[..])
    }

    /// Takes the record whose key [`Self::key`] returned.
    fn take(&mut self) -> Option<(Key, Option<Value>)> {
        self.copied.next()
    }
}
