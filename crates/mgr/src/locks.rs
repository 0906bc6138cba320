//! File locks inside the mgr: one shared or exclusive lock for each file. A truncation takes the exclusive lock, which
//! excludes writes and size updates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use types::FileId;

/// The locks of all files. A lock that no task holds or waits for takes no memory.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    files: Mutex<HashMap<FileId, Arc<RwLock<()>>>>,
}

enum Hold {
    Shared(#[allow(dead_code)] OwnedRwLockReadGuard<()>),
    Alone(#[allow(dead_code)] OwnedRwLockWriteGuard<()>),
}

/// Guard that holds a file's lock until the guard is dropped.
pub(crate) struct FileGuard<'a> {
    locks: &'a FileLocks,
    file: FileId,
    hold: Option<Hold>,
}

impl FileLocks {
    /// Waits for the shared lock of a file, and returns its guard.
    pub(crate) async fn shared(&self, file: FileId) -> FileGuard<'_> {
        let mut guard = FileGuard { locks: self, file, hold: None };
        guard.hold = Some(Hold::Shared(self.lock_of(file).read_owned().await));
        guard
    }

    /// Waits for the exclusive lock of a file, and returns its guard.
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
        // Every task that holds or waits for the lock has a clone of the `Arc`. If the reference count is 1, only the
        // table refers to the lock, so remove it.
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
