//! The in-memory engine for tests and simulations. It applies each batch at once and stores nothing on disk.

use crate::engine::{
    Batch, Broken, CommitGroup, Counters, Engine, Key, MergeFn, Outcome, Pending, Point, StoreStatus, Survey,
    Unreadable, Value, Verdict, View, Walk,
};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

type Map = BTreeMap<Key, Value>;

/// An ordered map behind a read-write lock.
///
/// A view holds the lock for reading, so a thread that submits a batch while it has a view deadlocks.
#[derive(Debug)]
pub struct Memory {
    map: RwLock<Map>,
    counters: Mutex<Counters>,
    merge: MergeFn,
}

impl Memory {
    /// Returns an empty store with the merge function `merge`.
    pub fn new(merge: MergeFn) -> Self {
        Memory { map: RwLock::default(), counters: Mutex::default(), merge }
    }
}

struct MemoryView<M>(M);

impl<M: std::ops::Deref<Target = Map>> View for MemoryView<M> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Unreadable> {
        Ok(self.0.get(key).cloned())
    }

    fn survey(&self, range: Range<&[u8]>, limit: usize, visit: &mut Survey<'_>) -> Result<Option<Key>, Unreadable> {
        if range.start >= range.end {
            return Ok(None);
        }
        let mut rest = self.0.range::<[u8], _>((Bound::Included(range.start), Bound::Excluded(range.end)));
        for (key, value) in rest.by_ref().take(limit) {
            if visit(key, Some(value)) == Walk::Stop {
                break;
            }
        }
        Ok(rest.next().map(|(key, _)| key.clone()))
    }
}

impl Engine for Memory {
    fn view(&self) -> Result<Box<dyn View + '_>, Broken> {
        let guard: RwLockReadGuard<'_, Map> = self.map.read().unwrap_or_else(PoisonError::into_inner);
        Ok(Box::new(MemoryView(guard)))
    }

    fn submit(&self, batch: Batch) -> Pending {
        if !batch.is_within_limits() {
            return Pending::known(Outcome::TooLarge);
        }
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let view = MemoryView(&*map);
        let mut group = CommitGroup::new(&view, self.merge);
        let merged = match group.apply(&batch) {
            Ok(Verdict::Applied(merged)) => merged,
            Ok(Verdict::Conflict(index)) => {
                counters.conflicts += 1;
                return Pending::known(Outcome::Conflict(index));
            }
            Ok(Verdict::Corrupt(key)) => return Pending::known(Outcome::Corrupt(key)),
            Err(broken) => return Pending::known(Outcome::Unknown(broken)),
        };
        for (key, value) in group.into_changes() {
            counters.bytes += (key.len() + value.as_ref().map_or(0, Value::len)) as u64;
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        counters.batches += 1;
        counters.flushes += u64::from(batch.durable);
        Pending::known(Outcome::Committed { point: Point(counters.batches), merged })
    }

    fn status(&self) -> StoreStatus {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let bytes = map.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
        let counters = *self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        StoreStatus { kind: "memory", term: 0, bytes, counters, broken: None }
    }
}
