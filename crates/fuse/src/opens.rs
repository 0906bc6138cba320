//! Files and directories that the kernel has open, by the handles it was given.

use crate::write_back::Writing;
use crate::{Errno, abi};
use client::{Entry, File, ReadDir};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::OnceCell;
use types::ByteRange;

const EBADF: Errno = Errno(9);

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// Whether the kernel reads it into its page cache.
    pub(crate) cached: bool,
    /// That the kernel writes it there, if it does.
    writing: Option<Writing>,
    /// Whether something was written through it since it was last made durable, or it was made and is not durable yet.
    pub(crate) written: AtomicBool,
    /// Whether the setuid and setgid bits were seen to be gone.
    pub(crate) plain: AtomicBool,
    /// The file opened once more, for locks of flock(2) that its own open does not allow.
    pub(crate) for_locks: OnceCell<File>,
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
    /// Who asked for locks of which file, and the process. By whichever of its opens: a process that closes one of them loses what it locked
    /// by another (fcntl(2)), and may give it back by that as well.
    lockers: Mutex<HashMap<(u64, u64), u32>>,
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFile {
    /// Closes what is open; see [`File::leave`].
    pub(crate) async fn leave(self) -> Result<(), Errno> {
        if let Some(file) = self.for_locks.into_inner() {
            file.leave().await?;
        }
        Ok(self.file.leave().await?)
    }
}

impl Opens {
    /// Adds a file that the kernel uses so ([`crate::abi::fopen`]) and gives its handle.
    pub(crate) fn add_file(&self, file: File, how: u32, writing: Option<Writing>) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        let plain = AtomicBool::new(file.attrs().mode & 0o6000 == 0);
        let unsynced = file.is_unsynced();
        let open = OpenFile {
            file,
            cached: how & abi::fopen::DIRECT_IO == 0,
            writing,
            written: AtomicBool::new(unsynced),
            plain,
            for_locks: OnceCell::new(),
        };
        write(&self.files).insert(handle, Arc::new(open));
        handle
    }

    /// The file with this handle.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        read(&self.files).get(&handle).cloned().ok_or(EBADF)
    }

    fn lockers(&self) -> std::sync::MutexGuard<'_, HashMap<(u64, u64), u32>> {
        self.lockers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `owner` asks for a lock of the file.
    pub(crate) fn asks_lock(&self, file: &File, owner: u64, pid: u32) {
        self.lockers().insert((file.node().id.0, owner), pid);
    }

    /// The process that asked for locks of the file as `owner`, if any did.
    pub(crate) fn locker(&self, file: &File, owner: u64) -> Option<u32> {
        self.lockers().get(&(file.node().id.0, owner)).copied()
    }

    /// Gives back everything that `owner` locked of the file.
    pub(crate) async fn unlock_all(&self, file: &File, owner: u64) -> Result<(), Errno> {
        let had = self.lockers().remove(&(file.node().id.0, owner));
        if had.is_some() {
            file.unlock(owner, ByteRange::ALL).await?;
        }
        Ok(())
    }

    /// The file with this number may have setuid and setgid bits from now on.
    pub(crate) fn doubt_bits(&self, number: u64) {
        for open in read(&self.files).values().filter(|open| open.file.node().id.0 == number) {
            open.plain.store(false, Relaxed);
        }
    }

    /// An open by which the file with this number is written to the page cache.
    pub(crate) fn writing(&self, number: u64) -> Option<Arc<OpenFile>> {
        let fits = |open: &&Arc<OpenFile>| open.writing.is_some() && open.file.node().id.0 == number;
        read(&self.files).values().find(fits).cloned()
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
