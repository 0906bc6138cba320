//! The cache of free inode numbers, taken from the store in durable blocks, so that concurrent creates do not conflict
//! on a counter.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use types::FileId;

/// Number of inode numbers taken at a time.
pub(crate) const BLOCK: u64 = 4096;

/// Numbers that the store has allocated to this process and that no file has yet.
#[derive(Debug, Default)]
pub(crate) struct Ids(Mutex<Vec<Range<u64>>>);

impl Ids {
    /// Takes a number that no other caller gets.
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

    /// Drops all cached numbers: no file gets them any more.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Adds free numbers; a number that was taken may return only if no file can have it.
    pub(crate) fn add(&self, block: Range<u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }
}
