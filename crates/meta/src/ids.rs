//! Inode numbers in hand: taken from the store in durable blocks, so that creates never meet at a counter.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use types::FileId;

/// Numbers taken at a time.
pub(crate) const BLOCK: u64 = 4096;

/// Numbers that the store has given out to this process and no file has yet.
#[derive(Debug, Default)]
pub(crate) struct Ids(Mutex<Vec<Range<u64>>>);

impl Ids {
    /// A number that nobody else gets.
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

    /// Forgets what is in hand: nobody gets these numbers any more.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Numbers to give out; one that was taken may only come back if no file can have it.
    pub(crate) fn add(&self, block: Range<u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }
}
