//! What the log has and the table below has not yet: changes of the last windows, over a snapshot of the table.

use super::table::{Reading, Snapshot};
use crate::engine::{Key, Survey, Unreadable, Value, View, Walk};
use crate::log::Changes;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::vec::IntoIter;

/// Bytes that a record takes here beside its key and value, about.
const RECORD: u64 = 128;
/// Most records that a walk copies at once.
const CHUNK: usize = 256;

/// The newest layer, and how many windows are in it. Nobody can take a view while the writer adds a window.
pub(super) struct Recent(RwLock<Top>);

struct Top {
    layer: Arc<Layer>,
    window: u64,
}

/// A snapshot of the table and what changed since.
struct Layer {
    table: Snapshot,
    records: RwLock<BTreeMap<Key, Record>>,
    bytes: AtomicU64,
}

/// What a record became in which window: the last value first, then those before it, as long as somebody may read them.
struct Record {
    last: (u64, Option<Value>),
    before: Vec<(u64, Option<Value>)>,
}

impl Record {
    /// What it was after this window, `None` if it had not changed by then.
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

impl Recent {
    /// Nothing but the table.
    pub(super) fn new(table: Snapshot) -> Self {
        Recent(RwLock::new(Top { layer: Layer::new(table), window: 0 }))
    }

    /// Everything up to the last window.
    pub(super) fn picture<'s>(&self, corrupt: &'s AtomicU64) -> Picture<'s> {
        let top = read(&self.0);
        Picture { layer: top.layer.clone(), window: top.window, corrupt }
    }

    /// Adds the changes of a window, for every picture that is taken from now on.
    pub(super) fn add(&self, changes: Changes) {
        let mut top = write(&self.0);
        top.window += 1;
        let window = top.window;
        // Pictures may go meanwhile, but not come: who reads older values is counted here.
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
        // What replaced something counts again: that only brings it into the table a little earlier.
        top.layer.bytes.fetch_add(bytes, Relaxed);
    }

    /// Bytes that were added, about.
    pub(super) fn bytes(&self) -> u64 {
        read(&self.0).layer.bytes.load(Relaxed)
    }

    /// Shows every record that changed, in order, with its last value.
    pub(super) fn each<E>(&self, mut visit: impl FnMut(&[u8], Option<&Value>) -> Result<(), E>) -> Result<(), E> {
        let layer = read(&self.0).layer.clone();
        read(&layer.records).iter().try_for_each(|(key, record)| visit(key, record.last.1.as_ref()))
    }

    /// The table has everything: pictures taken from now on show this one.
    pub(super) fn renew(&self, table: Snapshot) {
        let layer = Layer::new(table);
        let before = std::mem::replace(&mut write(&self.0).layer, layer);
        // Freeing it takes a while: nobody should wait for the lock meanwhile.
        drop(before);
    }
}

impl Layer {
    fn new(table: Snapshot) -> Arc<Self> {
        Arc::new(Layer { table, records: RwLock::default(), bytes: AtomicU64::new(0) })
    }
}

/// The store as it was after some window.
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
            // Of two records of one key the recent one counts.
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

/// The recent records of a range in order, copied a few at a time: nobody holds a lock while they are shown.
struct Ahead<'p, 'r> {
    picture: &'p Picture<'p>,
    /// What was not copied yet, `None` if that is nothing.
    rest: Option<(Bound<Key>, &'r [u8])>,
    size: usize,
    copied: std::iter::Peekable<IntoIter<(Key, Option<Value>)>>,
}

impl<'p, 'r> Ahead<'p, 'r> {
    fn new(picture: &'p Picture<'p>, range: Range<&'r [u8]>, limit: usize) -> Self {
        let rest = Some((Bound::Included(range.start.to_vec()), range.end));
        Ahead { picture, rest, size: limit.saturating_add(1).min(CHUNK), copied: Vec::new().into_iter().peekable() }
    }

    /// The key of the next record.
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

    /// The record whose key was told.
    fn take(&mut self) -> Option<(Key, Option<Value>)> {
        self.copied.next()
    }
}
