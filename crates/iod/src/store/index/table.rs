//! The table of the shards in memory: drops the shards that were not used for the longest time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use types::FileId;

use super::IndexShard;
use crate::counters::Counters;
use crate::lock::lock;
use crate::store::Store;

/// Number of bytes of memory that all shards of a store may use together. Shards with pending registrations stay in
/// memory even if they exceed this number.
const MEMORY_MAX: usize = 256 << 20;
/// Least number of bytes of records of a shard between two checkpoints.
const CHECKPOINT_LEAST: u64 = 64 << 10;

/// The shards of a store that are in memory. There is never more than one [`IndexShard`] in memory for a file.
pub(in crate::store) struct IndexTable {
    inner: Mutex<Inner>,
    /// Number of bytes of memory that all shards may use together.
    max: usize,
    /// Least number of bytes of records of a shard between two checkpoints.
    checkpoint_least: u64,
}

#[derive(Default)]
struct Inner {
    slots: HashMap<FileId, Slot>,
    /// The files of all shards, by the time of the last use.
    order: BTreeMap<u64, FileId>,
    /// Number of uses so far.
    time: u64,
    memory: usize,
}

struct Slot {
    shard: Arc<IndexShard>,
    /// The time of the last use.
    used: u64,
    memory: usize,
}

impl Default for IndexTable {
    fn default() -> Self {
        IndexTable::new(MEMORY_MAX, CHECKPOINT_LEAST)
    }
}

impl IndexTable {
    /// Makes a table of shards that use at most `max` bytes of memory together, and that make a checkpoint after
    /// `checkpoint_least` bytes of records or more.
    pub(super) fn new(max: usize, checkpoint_least: u64) -> Self {
        IndexTable { inner: Mutex::default(), max, checkpoint_least }
    }

    pub(super) fn checkpoint_least(&self) -> u64 {
        self.checkpoint_least
    }

    /// Returns the shard of a file, which may not be loaded yet.
    pub(super) fn shard(&self, file: FileId) -> Arc<IndexShard> {
        let mut inner = lock(&self.inner);
        inner.touch(file);
        inner.slots[&file].shard.clone()
    }

    /// Records the memory that a shard uses after a request, and drops other shards if all use too much.
    pub(super) fn used(&self, store: &Store, file: FileId, memory: usize) {
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        if let Some(slot) = inner.slots.get_mut(&file) {
            let memory = memory + size_of::<Slot>();
            inner.memory = inner.memory - slot.memory + memory;
            slot.memory = memory;
        }
        let mut dropped = 0;
        if inner.memory > self.max {
            dropped = inner.shrink(self.max);
        }
        Counters::add(&store.counters().index_dropped, dropped);
    }

    /// Returns the number of shards in memory.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.inner).slots.len()
    }
}

impl Inner {
    /// Makes the shard of a file the one that was used last. Adds the shard if it is missing.
    fn touch(&mut self, file: FileId) {
        self.time += 1;
        let slot = self.slots.entry(file).or_insert_with(|| Slot { shard: Arc::default(), used: 0, memory: 0 });
        self.order.remove(&slot.used);
        slot.used = self.time;
        self.order.insert(self.time, file);
    }

    /// Drops shards until all others use at most `max` bytes, or have pending registrations or running requests.
    /// Returns the number of dropped shards.
    fn shrink(&mut self, max: usize) -> u64 {
        let mut droppable = Vec::new();
        let mut memory = self.memory;
        for (used, file) in &self.order {
            if memory <= max {
                break;
            }
            let Some(slot) = self.slots.get(file) else { continue };
            // The reference count cannot grow here, because a request needs the lock of the table for a reference.
            let idle = Arc::strong_count(&slot.shard) == 1 && lock(&slot.shard.0).is_durable();
            if idle {
                memory -= slot.memory;
                droppable.push((*used, *file));
            }
        }
        self.memory = memory;
        for (used, file) in &droppable {
            self.order.remove(used);
            self.slots.remove(file);
        }
        droppable.len() as u64
    }
}
