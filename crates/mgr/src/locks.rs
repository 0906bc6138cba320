//! Locks of files: one shared or exclusive lock per file, so that a truncation excludes writes and size updates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use types::FileId;

/// The locks of all files; an unused lock takes no memory.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    files: Mutex<HashMap<FileId, Arc<RwLock<()>>>>,
}

enum Hold {
    Shared(#[allow(dead_code)] OwnedRwLockReadGuard<()>),
    Alone(#[allow(dead_code)] OwnedRwLockWriteGuard<()>),
}

/// Holds a file's lock until dropped.
pub(crate) struct FileGuard<'a> {
    locks: &'a FileLocks,
    file: FileId,
    hold: Option<Hold>,
}

impl FileLocks {
    /// Locks the file shared.
    pub(crate) async fn shared(&self, file: FileId) -> FileGuard<'_> {
        let mut guard = FileGuard { locks: self, file, hold: None };
        guard.hold = Some(Hold::Shared(self.lock_of(file).read_owned().await));
        guard
    }

    /// Locks the file exclusively.
    pub(crate) async fn alone(&self, file: FileId) -> FileGuard<'_> {
        let mut guard = FileGuard { locks: self, file, hold: None };
        guard.hold = Some(Hold::Alone(self.lock_of(file).write_owned().await));
        guard
    }

    fn lock_of(&self, file: FileId) -> Arc<RwLock<()>> {
        self.map().entry(file).or_default().clone()
    }

    fn map(&self) -> MutexGuard<'_, HashMap<FileId, Arc<RwLock<()>>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FileGuard<'_> {
    fn drop(&mut self) {
        self.hold = None;
        let mut map = self.locks.map();
        // Every waiter and every holder has a clone.
        if map.get(&self.file).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            map.remove(&self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn an_exclusive_lock_excludes_shared_and_exclusive_ones() {
        let locks = FileLocks::default();
        let (one, other) = (FileId(1), FileId(2));
        let first = locks.shared(one).await;
        let second = locks.shared(one).await;
        assert!(locks.alone(one).now_or_never().is_none());
        let unrelated = locks.alone(other).await;
        drop((first, second));
        let alone = locks.alone(one).await;
        assert!(locks.shared(one).now_or_never().is_none());
        drop((alone, unrelated));
        assert!(locks.map().is_empty(), "unused locks remain in the table");
    }
}
