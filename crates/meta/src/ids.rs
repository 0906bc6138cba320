//! The cache of free inode numbers. It durably allocates blocks of numbers from the store's counter, so that concurrent
//! creates do not conflict when they change the counter.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use types::FileId;

/// Number of inode numbers that one request to the store allocates for the cache.
pub(crate) const BLOCK: u64 = 4096;

/// Inode numbers that the store has allocated to this process and that no file uses yet.
#[derive(Debug, Default)]
pub(crate) struct Ids(Mutex<Vec<Range<u64>>>);

impl Ids {
    /// Removes a number from the cache; `None` if the cache is empty.
    pub(crate) fn take(&self) -> Option<FileId> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let block = blocks.last_mut()?;
            match block.next() {
                Some(id) => return Some(FileId(id)),
                None => blocks.pop(),
            };
        }
    }

    /// Discards all numbers in the cache. No file will get these numbers.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Adds free inode numbers to the cache. A caller may return an unused number only if no file can have this
    /// number.
    pub(crate) fn add(&self, block: Range<u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }
}
