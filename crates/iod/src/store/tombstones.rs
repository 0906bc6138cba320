//! Tombstones of removed objects, by which the iod refuses late writes that would create an object again.
//!
//! Tombstones are a best effort: their number is bounded, and the iod loses them when it ends. A late write may still
//! create a removed object again; the mgr finds and removes this object.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use types::ObjectId;
use types::limits::IOD_GONE_MAX;

use crate::lock::lock;

/// The ids of the objects that the iod removed most recently.
#[derive(Default)]
pub(super) struct Tombstones(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    ids: HashSet<ObjectId>,
    /// The ids in `ids`, in the order in which the iod removed the objects.
    order: VecDeque<ObjectId>,
}

impl Tombstones {
    /// Adds a tombstone for an object; removes the oldest tombstone if there are too many.
    pub(super) fn remember(&self, id: ObjectId) {
        let mut inner = lock(&self.0);
        if !inner.ids.insert(id) {
            return;
        }
        inner.order.push_back(id);
        if inner.order.len() > IOD_GONE_MAX
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.ids.remove(&oldest);
        }
    }

    /// Returns whether an object has a tombstone.
    pub(super) fn is(&self, id: ObjectId) -> bool {
        lock(&self.0).ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::FileId;

    fn object_id(file: u64) -> ObjectId {
        ObjectId::stream_0(FileId(file))
    }

    #[test]
    fn tombstones_are_bounded_and_the_oldest_are_dropped_first() {
        let gone = Tombstones::default();
        for id in 0..IOD_GONE_MAX as u64 + 10 {
            gone.remember(object_id(id));
            gone.remember(object_id(id));
        }
        assert!(!gone.is(object_id(9)) && gone.is(object_id(10)) && gone.is(object_id(IOD_GONE_MAX as u64 + 9)));
        let inner = lock(&gone.0);
        assert_eq!((inner.ids.len(), inner.order.len()), (IOD_GONE_MAX, IOD_GONE_MAX));
    }
}
