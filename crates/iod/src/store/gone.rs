//! Files that are gone: a write that comes late must not bring an object back.
//!
//! It is a help and no promise: the memory is bounded and ends with the iod. What slips through is collected by the mgr.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use types::FileId;
use types::limits::IOD_GONE_MAX;

use crate::lock::lock;

/// The last files that were removed for good.
#[derive(Default)]
pub(super) struct Gone(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    ids: HashSet<FileId>,
    /// The same, the oldest first.
    order: VecDeque<FileId>,
}

impl Gone {
    /// Remembers a file, and forgets the one that is gone for the longest if there are too many.
    pub(super) fn remember(&self, id: FileId) {
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

    /// Whether a file is known to be gone.
    pub(super) fn is(&self, id: FileId) -> bool {
        lock(&self.0).ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_the_oldest_go_first() {
        let gone = Gone::default();
        for id in 0..IOD_GONE_MAX as u64 + 10 {
            gone.remember(FileId(id));
            gone.remember(FileId(id));
        }
        assert!(!gone.is(FileId(9)) && gone.is(FileId(10)) && gone.is(FileId(IOD_GONE_MAX as u64 + 9)));
        let inner = lock(&gone.0);
        assert_eq!((inner.ids.len(), inner.order.len()), (IOD_GONE_MAX, IOD_GONE_MAX));
    }
}
