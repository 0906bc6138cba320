//! Files and directories that the kernel has open, by the handles it was given.

use crate::write_back::Writing;
use crate::{Errno, abi};
use client::{Entry, File, ReadDir};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
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
    /// What was written through it and is not durable yet; that the file was made counts as well.
    pub(crate) written: Written,
    /// Whether the setuid and setgid bits were seen to be gone.
    pub(crate) plain: AtomicBool,
    /// Who asked for locks by this open.
    lock_owners: Mutex<Vec<u64>>,
    /// The file opened once more, for locks of flock(2) that its own open does not allow.
    pub(crate) for_locks: OnceCell<File>,
}

/// Whether everything that was written through an open file is durable. Processes that inherited a descriptor write, sync and close it
/// at the same time: what one of them is still making durable is due for the others too.
pub(crate) struct Written {
    /// How many writes there were.
    made: AtomicU64,
    /// How many of them are durable for sure.
    durable: AtomicU64,
}

/// A write, which counts when it ends however it ends: whoever began to sync before that need not have seen all of it.
pub(crate) struct Write<'a>(&'a Written);

impl Written {
    fn new(unsynced: bool) -> Self {
        Written { made: AtomicU64::new(unsynced.into()), durable: AtomicU64::new(0) }
    }

    /// A write begins.
    pub(crate) fn begin(&self) -> Write<'_> {
        Write(self)
    }

    /// What is to be made durable; nothing if everything is.
    pub(crate) fn due(&self) -> Option<u64> {
        let made = self.made.load(SeqCst);
        (made > self.durable.load(SeqCst)).then_some(made)
    }

    /// What was due once is durable.
    pub(crate) fn made_durable(&self, due: u64) {
        self.durable.fetch_max(due, SeqCst);
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        self.0.made.fetch_add(1, SeqCst);
    }
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
    /// Who asked for locks of which file. By whichever of its opens: a process that closes one of them loses what it locked by another
    /// (fcntl(2)), and may give it back by that as well.
    lockers: Mutex<HashMap<(u64, u64), Locker>>,
}

/// Who asked for locks of a file.
#[derive(Clone, Copy)]
struct Locker {
    /// The process.
    pid: u32,
    /// By which open it asked last. Locks that belong to an open (`F_OFD_SETLK`) end with that, of which the kernel says no more than that it
    /// is closed.
    handle: u64,
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
            written: Written::new(unsynced),
            plain,
            lock_owners: Mutex::default(),
            for_locks: OnceCell::new(),
        };
        write(&self.files).insert(handle, Arc::new(open));
        handle
    }

    /// The file with this handle.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        read(&self.files).get(&handle).cloned().ok_or(EBADF)
    }

    fn lockers(&self) -> std::sync::MutexGuard<'_, HashMap<(u64, u64), Locker>> {
        self.lockers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `owner` asks for a lock of the file by this open.
    pub(crate) fn asks_lock(&self, handle: u64, open: &OpenFile, owner: u64, pid: u32) {
        let mut owners = open.lock_owners.lock().unwrap_or_else(PoisonError::into_inner);
        if !owners.contains(&owner) {
            owners.push(owner);
        }
        self.lockers().insert((open.file.node().id.0, owner), Locker { pid, handle });
    }

    /// The process that asked for locks of the file as `owner`, if any did.
    pub(crate) fn locker(&self, file: &File, owner: u64) -> Option<u32> {
        self.lockers().get(&(file.node().id.0, owner)).map(|locker| locker.pid)
    }

    /// Gives back everything that `owner` locked of the file.
    pub(crate) async fn unlock_all(&self, file: &File, owner: u64) -> Result<(), Errno> {
        let had = self.lockers().remove(&(file.node().id.0, owner));
        if had.is_some() {
            file.unlock(owner, ByteRange::ALL).await?;
        }
        Ok(())
    }

    /// Gives back everything that was locked by this open alone, which is closed.
    pub(crate) async fn unlock_open(&self, handle: u64, open: &OpenFile) -> Result<(), Errno> {
        let owners = std::mem::take(&mut *open.lock_owners.lock().unwrap_or_else(PoisonError::into_inner));
        for owner in owners {
            let locker = self.lockers().get(&(open.file.node().id.0, owner)).copied();
            if locker.is_some_and(|locker| locker.handle == handle) {
                self.unlock_all(&open.file, owner).await?;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_due_until_it_is_durable() {
        let written = Written::new(true);
        let first = written.due().expect("the file was made");
        assert_eq!(written.due(), Some(first), "whoever else asks waits for the same");
        written.made_durable(first);
        assert_eq!(written.due(), None);
        assert_eq!(Written::new(false).due(), None);
    }

    #[test]
    fn a_write_is_due_when_it_ended_after_a_sync_began() {
        let written = Written::new(false);
        drop(written.begin());
        let (due, slow) = (written.due().unwrap(), written.begin());
        drop(slow);
        written.made_durable(due);
        let later = written.due().expect("the sync need not have seen the slow write");
        written.made_durable(later);
        // One that began earlier and ends last takes nothing back.
        written.made_durable(due);
        assert_eq!(written.due(), None);
    }
}
