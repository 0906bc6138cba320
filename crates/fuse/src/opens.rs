//! Files and directories that the kernel has open, by the handles it was given.

use crate::Errno;
use client::{Entry, File, ReadDir};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use types::ByteRange;

const EBADF: Errno = Errno(9);

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// Whether something was written through it since it was last made durable.
    pub(crate) written: AtomicBool,
    /// Whether the setuid and setgid bits were seen to be gone.
    pub(crate) plain: AtomicBool,
    /// Owners of locks that were asked through it.
    pub(crate) lockers: Mutex<HashSet<u64>>,
}

/// An open directory.
#[derive(Default)]
pub(crate) struct OpenDir {
    pub(crate) reading: tokio::sync::Mutex<Reading>,
}

/// How far a directory was read.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) pages: Option<ReadDir>,
    /// Entries that were got and not told yet.
    pub(crate) ahead: VecDeque<Entry>,
    /// The offset that the first of them follows.
    pub(crate) at: u64,
}

/// Everything that is open.
#[derive(Default)]
pub(crate) struct Opens {
    next: AtomicU64,
    files: RwLock<HashMap<u64, Arc<OpenFile>>>,
    dirs: RwLock<HashMap<u64, Arc<OpenDir>>>,
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFile {
    /// Owners of locks that were asked through it.
    pub(crate) fn lockers(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.lockers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back everything that `owner` locked through it.
    pub(crate) async fn unlock_all(&self, owner: u64) -> Result<(), Errno> {
        let had = self.lockers().remove(&owner);
        if had {
            self.file.unlock(owner, ByteRange::ALL).await?;
        }
        Ok(())
    }
}

impl Opens {
    /// Adds a file and gives its handle.
    pub(crate) fn add_file(&self, file: File) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        let plain = AtomicBool::new(file.attrs().mode & 0o6000 == 0);
        let open = OpenFile { file, written: AtomicBool::new(false), plain, lockers: Mutex::default() };
        write(&self.files).insert(handle, Arc::new(open));
        handle
    }

    /// The file with this handle.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        read(&self.files).get(&handle).cloned().ok_or(EBADF)
    }

    /// Takes a file off the list.
    pub(crate) fn take_file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        write(&self.files).remove(&handle).ok_or(EBADF)
    }

    /// Takes all files off the list.
    pub(crate) fn take_files(&self) -> Vec<Arc<OpenFile>> {
        write(&self.files).drain().map(|(_, open)| open).collect()
    }

    /// Whether any file is open.
    pub(crate) fn are_there(&self) -> bool {
        !read(&self.files).is_empty()
    }

    /// Adds a directory and gives its handle.
    pub(crate) fn add_dir(&self) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        write(&self.dirs).insert(handle, Arc::default());
        handle
    }

    /// The directory with this handle.
    pub(crate) fn dir(&self, handle: u64) -> Result<Arc<OpenDir>, Errno> {
        read(&self.dirs).get(&handle).cloned().ok_or(EBADF)
    }

    /// Takes a directory off the list.
    pub(crate) fn take_dir(&self, handle: u64) {
        write(&self.dirs).remove(&handle);
    }
}
