//! The memtable of the embedded store: the changes that are in the batch log but not yet in the database table, on top
//! of a snapshot of the table. A *commit group* is the batches that the writer commits together.

use super::table::{Reading, Snapshot};
use crate::engine::{Key, Survey, Unreadable, Value, View, Walk};
use crate::log::Changes;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::vec::IntoIter;

/// Approximate memory in bytes that the memtable needs for a record in addition to the record's key and value.
const RECORD: u64 = 128;
/// Maximum number of memtable records that a scan copies each time it holds the lock on the records.
const CHUNK: usize = 256;

/// The current layer of the memtable (a snapshot of the database table, and the changes since this snapshot), and the
/// number of commit groups that were added since the store was opened. While the writer holds the lock on this struct
/// to add a commit group, no thread can take a view.
pub(super) struct Memtable(RwLock<Top>);

struct Top {
    layer: Arc<Layer>,
    group: u64,
}

/// A layer of the memtable: a snapshot of the database table, and the changes since this snapshot.
struct Layer {
    table: Snapshot,
    records: RwLock<BTreeMap<Key, Record>>,
    bytes: AtomicU64,
}

/// The versions of a record, each with the number of the commit group that wrote it. `before` has the older versions
/// that a view may still read, oldest first.
struct Record {
    last: (u64, Option<Value>),
    before: Vec<(u64, Option<Value>)>,
}

impl Record {
    /// Returns the value of the record as it was after the commit group with the number `group`. Returns `None` if
    /// neither this commit group nor an earlier commit group changed the record.
    fn at(&self, group: u64) -> Option<&Option<Value>> {
        let all = std::iter::once(&self.last).chain(self.before.iter().rev());
        all.into_iter().find(|(since, _)| *since <= group).map(|(_, value)| value)
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    // A poisoned lock is harmless, because no code panics while it holds one of the locks of the memtable.
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl Memtable {
    /// Returns an empty memtable over the snapshot `table` of the database table.
    pub(super) fn new(table: Snapshot) -> Self {
        Memtable(RwLock::new(Top { layer: Layer::new(table), group: 0 }))
    }

    /// Returns a view of the store after the last added commit group.
    pub(super) fn view<'s>(&self, corrupt: &'s AtomicU64) -> MemtableView<'s> {
        let top = read(&self.0);
        MemtableView { layer: top.layer.clone(), group: top.group, corrupt }
    }

    /// Adds the changes of a commit group. Existing views do not see these changes; later views do.
    pub(super) fn add(&self, changes: Changes) {
        let mut top = write(&self.0);
        top.group += 1;
        let group = top.group;
        // This thread holds the lock of the memtable, so no other thread can take a view now. If the memtable has the
        // only reference to the layer, no view exists that reads older versions of the records.
        let alone = Arc::strong_count(&top.layer) == 1;
        let mut records = write(&top.layer.records);
        let mut bytes = 0;
        for (key, value) in changes {
            bytes += RECORD + (key.len() + value.as_ref().map_or(0, Value::len)) as u64;
            match records.get_mut(&key) {
                Some(record) => {
                    let last = std::mem::replace(&mut record.last, (group, value));
                    if alone {
                        record.before.clear();
                    } else {
                        record.before.push(last);
                    }
                }
                None => drop(records.insert(key, Record { last: (group, value), before: Vec::new() })),
            }
        }
        // The byte count still includes replaced versions of records. So the memtable moves into the database slightly
        // earlier than necessary.
        top.layer.bytes.fetch_add(bytes, Relaxed);
    }

    /// Returns the approximate memory of the memtable in bytes.
    pub(super) fn bytes(&self) -> u64 {
        read(&self.0).layer.bytes.load(Relaxed)
    }

    /// Passes the key and the newest value of every changed record to `visit`, in key order.
    pub(super) fn each<E>(&self, mut visit: impl FnMut(&[u8], Option<&Value>) -> Result<(), E>) -> Result<(), E> {
        let layer = read(&self.0).layer.clone();
        read(&layer.records).iter().try_for_each(|(key, record)| visit(key, record.last.1.as_ref()))
    }

    /// Replaces the layer of the memtable by a layer without changes over `table`, a snapshot of the database that
    /// contains all changes of the old layer. Views that are taken after this call use the new layer.
    pub(super) fn renew(&self, table: Snapshot) {
        let layer = Layer::new(table);
        let before = std::mem::replace(&mut write(&self.0).layer, layer);
        // Freeing a layer takes long, so release the lock on the memtable before dropping the old layer.
        drop(before);
    }
}

impl Layer {
    fn new(table: Snapshot) -> Arc<Self> {
        Arc::new(Layer { table, records: RwLock::default(), bytes: AtomicU64::new(0) })
    }
}

/// A view of the store as it was after a given commit group.
pub(super) struct MemtableView<'s> {
    layer: Arc<Layer>,
    group: u64,
    corrupt: &'s AtomicU64,
}

impl MemtableView<'_> {
    fn below(&self) -> Reading<'_> {
        Reading(&self.layer.table, self.corrupt)
    }
}

impl View for MemtableView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable> {
        if let Some(value) = read(&self.layer.records).get(key).and_then(|record| record.at(self.group)) {
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
            // If both the memtable and the database table have a value for a key, the value in the memtable is newer.
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

/// An iterator over the memtable's records in a key range. It copies a few records at a time, so the thread holds no
/// lock while the callback `visit` runs.
struct Ahead<'p, 'r> {
    view: &'p MemtableView<'p>,
    /// The keys of the range that are not copied yet; `None` if all records of the range are copied.
    rest: Option<(Bound<Key>, &'r [u8])>,
    size: usize,
    copied: std::iter::Peekable<IntoIter<(Key, Option<Value>)>>,
}

impl<'p, 'r> Ahead<'p, 'r> {
    fn new(view: &'p MemtableView<'p>, range: Range<&'r [u8]>, limit: usize) -> Self {
        let rest = Some((Bound::Included(range.start.to_vec()), range.end));
        Ahead { view, rest, size: limit.saturating_add(1).min(CHUNK), copied: Vec::new().into_iter().peekable() }
    }

    /// Returns the key of the next record without consuming the record.
    fn key(&mut self) -> Option<&[u8]> {
        while self.copied.peek().is_none() {
            let (from, to) = self.rest.take()?;
            let range = (from.as_ref().map(Vec::as_slice), Bound::Excluded(to));
            let mut copied = Vec::new();
            for (key, record) in read(&self.view.layer.records).range::<[u8], _>(range) {
                let Some(value) = record.at(self.view.group) else { continue };
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

    /// Consumes the next record, whose key [`Self::key`] returned.
    fn take(&mut self) -> Option<(Key, Option<Value>)> {
        self.copied.next()
    }
}
