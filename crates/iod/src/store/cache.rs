//! The cache of objects in memory: a bounded hash table with CLOCK (second-chance) eviction.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use types::ObjectId;

use super::object::Object;
use crate::lock::lock;

const SHARDS: usize = 16;

/// The cached objects of a store. There is never more than one [`Object`] in memory for an object id.
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// Maximum number of objects in each shard of the cache.
    room: usize,
}

#[derive(Default)]
struct Shard {
    slots: HashMap<ObjectId, Slot>,
    /// The ids of all cached objects, in the order in which eviction examines the objects.
    clock: VecDeque<ObjectId>,
}

struct Slot {
    object: Arc<Object>,
    /// Whether a lookup has returned the object after eviction last considered it.
    used: bool,
}

/// The result of a lookup in the cache.
pub(crate) enum Lookup {
    /// The object, and whether the cache evicted another object to add this object.
    Found(Arc<Object>, bool),
    /// The cache is full and can evict only this object, after a sync. The caller must sync the object and repeat the
    /// lookup.
    SyncFirst(Arc<Object>),
}

impl Cache {
    /// Makes a cache for about `capacity` objects.
    pub(crate) fn new(capacity: usize) -> Self {
        Cache { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), room: capacity.div_ceil(SHARDS).max(1) }
    }

    /// Returns the object with this id. If the object is not cached, adds it without opening its file. If `beyond` is
    /// true, adds the object even if the cache is full. A caller passes true if it could not sync the object that the
    /// cache must evict.
    pub(crate) fn get(&self, id: ObjectId, beyond: bool) -> Lookup {
        let mut shard = lock(&self.shards[id.file.0 as usize % SHARDS]);
        if let Some(slot) = shard.slots.get_mut(&id) {
            slot.used = true;
            return Lookup::Found(slot.object.clone(), false);
        }
        let mut dropped = false;
        if shard.slots.len() >= self.room && !beyond {
            match shard.make_room() {
                FreeSpace::Made => dropped = true,
                FreeSpace::SyncFirst(object) => return Lookup::SyncFirst(object),
                // Requests use all cached objects, so let the cache exceed its capacity: by at most one object for each
                // connection.
                FreeSpace::AllBusy => {}
            }
        }
        let object = Arc::new(Object::new(id));
        shard.slots.insert(id, Slot { object: object.clone(), used: false });
        shard.clock.push_back(id);
        Lookup::Found(object, dropped)
    }

    /// Returns the number of objects in the cache.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| lock(s).slots.len()).sum()
    }
}

enum FreeSpace {
    Made,
    SyncFirst(Arc<Object>),
    AllBusy,
}

impl Shard {
    /// Evicts one object that no request uses and that has no unsynced changes. Prefers objects that no lookup has
    /// returned recently.
    fn make_room(&mut self) -> FreeSpace {
        let mut dirty = None;
        for _ in 0..2 * self.clock.len() {
            let Some(id) = self.clock.pop_front() else { break };
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            // The reference count of the object cannot grow here: a thread needs the lock of the cache shard to get
            // another reference.
            let busy = Arc::strong_count(&slot.object) > 1;
            if busy || std::mem::take(&mut slot.used) {
                self.clock.push_back(id);
            } else if slot.object.is_dirty() {
                dirty.get_or_insert(id);
                self.clock.push_back(id);
            } else {
                self.slots.remove(&id);
                return FreeSpace::Made;
            }
        }
        match dirty.and_then(|id| self.slots.get(&id)) {
            Some(slot) => FreeSpace::SyncFirst(slot.object.clone()),
            None => FreeSpace::AllBusy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::FileId;

    fn get(cache: &Cache, id: u64) -> Arc<Object> {
        match cache.get(ObjectId::stream_0(FileId(id)), false) {
            Lookup::Found(object, _) => object,
            Lookup::SyncFirst(_) => panic!("nothing here is dirty"),
        }
    }

    #[test]
    fn the_cache_is_bounded_and_has_one_object_for_each_id() {
        let cache = Cache::new(64);
        let held = get(&cache, 5);
        for id in 0..10_000 {
            get(&cache, id);
        }
        assert_eq!(cache.len(), 64);
        assert!(Arc::ptr_eq(&held, &get(&cache, 5)), "an object in use was evicted");
    }

    #[test]
    fn objects_in_use_may_exceed_the_bound_until_they_are_released() {
        let cache = Cache::new(16);
        let held: Vec<_> = (0..100).map(|id| get(&cache, id)).collect();
        assert_eq!(cache.len(), 100);
        drop(held);
        for id in 0..1000 {
            get(&cache, id);
        }
        assert!(cache.len() <= 100);
    }

    #[test]
    fn recently_used_objects_stay_cached() {
        let cache = Cache::new(SHARDS * 4);
        let favourite = Arc::downgrade(&get(&cache, 0));
        for id in 1..100 {
            get(&cache, id * SHARDS as u64);
            get(&cache, 0);
        }
        assert!(favourite.upgrade().is_some());
    }
}
