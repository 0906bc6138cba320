//! The files that the kernel writes through its page cache, and the number of opens that write each file.

use crate::coherence::page_twins::PageTwins;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files that the kernel writes through its page cache, by file number.
#[derive(Default)]
pub(super) struct Writers(Mutex<HashMap<u64, Cached>>);

/// A file that the kernel writes through its page cache.
#[derive(Default)]
pub(super) struct Cached {
    /// Number of opens that write the file through the page cache.
    opens: usize,
    /// Whether other clients also use the file.
    pub(super) shared: bool,
    /// Whether the mount refuses the kernel's dirty pages of the file.
    pub(super) given_up: bool,
    /// The page twins of the file, which the mount makes only while other clients use the file.
    pub(super) twins: PageTwins,
}

/// Guard of an open that writes a file through the page cache. Dropping the guard removes the open from the table of
/// writers.
pub(crate) struct Writing {
    writers: Arc<Writers>,
    number: u64,
}

impl Writers {
    /// Locks and returns the table of files that the kernel writes.
    pub(super) fn table(&self) -> MutexGuard<'_, HashMap<u64, Cached>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writing {
    /// Records an open that writes a file through the page cache.
    pub(super) fn begin(writers: &Arc<Writers>, number: u64) -> Writing {
        writers.table().entry(number).or_default().opens += 1;
        Writing { writers: writers.clone(), number }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut table = self.writers.table();
        if let Some(cached) = table.get_mut(&self.number) {
            cached.opens -= 1;
            if cached.opens == 0 {
                table.remove(&self.number);
            }
        }
    }
}
