//! The files that the kernel writes to its page cache, and the opens that do so.

use crate::coherence::page_twins::PageTwins;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files that are written to the page cache.
#[derive(Default)]
pub(super) struct Writers(Mutex<HashMap<u64, Cached>>);

/// A file that is written to the page cache.
#[derive(Default)]
pub(super) struct Cached {
    /// Number of opens that write the file to the page cache.
    opens: usize,
    /// Whether other clients also have the file open.
    pub(super) shared: bool,
    /// Whether the mount refuses the kernel's dirty pages of the file.
    pub(super) given_up: bool,
    /// Pages as the kernel got them, while the file is shared.
    pub(super) twins: PageTwins,
}

/// Counts an open that writes a file to the page cache, until this value is dropped.
pub(crate) struct Writing {
    writers: Arc<Writers>,
    number: u64,
}

impl Writers {
    /// Locks the table.
    pub(super) fn table(&self) -> MutexGuard<'_, HashMap<u64, Cached>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writing {
    /// Records an open that writes a file to the page cache.
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
