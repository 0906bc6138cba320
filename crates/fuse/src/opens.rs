//! The table of open files and directories, by the handle (`fh`) that the kernel received.

use crate::Errno;
use crate::coherence::{Mark, PageUse};
use crate::lock_owners::LockOwners;
use crate::unsynced::{Unsynced, Write};
use client::{Entry, File, ReadDir};
use rustix::fs::OFlags;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::OnceCell;
use types::ByteRange;

const EBADF: Errno = Errno(9);

/// An open of a regular file.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// How the open uses the page cache.
    pub(crate) pages: PageUse,
    /// Writes through this open that are not durable yet. The creation of the file counts as a write.
    unsynced: Unsynced,
    /// Whether the program opened the file with `O_DSYNC` or `O_SYNC`, so that a write is durable when write(2)
    /// returns.
    synchronous: bool,
    /// Whether the mount knows that the setuid and setgid bits of the file are clear.
    pub(crate) plain: AtomicBool,
    /// The lock owners that requested locks through this open.
    lock_owners: Mutex<Vec<u64>>,
    /// A second open of the file, for flock(2) locks that the access mode of this open does not allow.
    pub(crate) for_locks: OnceCell<File>,
}

/// The writes that a sync or close has to make durable: writes through an open file itself, and write-backs of pages.
#[derive(Clone, Copy)]
pub(crate) struct Due(Option<u64>, Option<u64>);

/// An open directory.
#[derive(Default)]
pub(crate) struct OpenDir {
    pub(crate) reading: tokio::sync::Mutex<Reading>,
}

/// The reading position of an open directory, with the entries fetched ahead of this position.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) pages: Option<ReadDir>,
    /// Directory entries that the mgr has sent and the kernel has not received yet.
    pub(crate) ahead: VecDeque<Entry>,
    /// The directory offset directly before the first entry that was fetched ahead.
    pub(crate) at: u64,
    /// The moment before the mount requested the entries in `ahead` from the mgr.
    pub(crate) asked: Option<Mark>,
    /// Whether OPENDIR has fetched the first page of entries, and the kernel has not requested this page yet.
    pub(crate) unasked: bool,
}

/// All open files and directories.
#[derive(Default)]
pub(crate) struct Opens {
    next: AtomicU64,
    files: RwLock<HashMap<u64, Arc<OpenFile>>>,
    dirs: RwLock<HashMap<u64, Arc<OpenDir>>>,
    lockers: LockOwners,
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFile {
    /// Begins a write through this open: a write-back of dirty pages (`of_pages`), or a write(2) of a program.
    pub(crate) fn begin_write(&self, of_pages: bool) -> Write<'_> {
        if of_pages { self.pages.begin_write_back() } else { self.unsynced.begin() }
    }

    /// Returns whether the program opened the file with `O_DSYNC` or `O_SYNC`.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.synchronous
    }

    fn lock_owners(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.lock_owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the writes that a close or sync of this open must make durable, or `None` if everything is durable.
    pub(crate) fn due(&self) -> Option<Due> {
        let (own, pages) = (self.unsynced.due(), self.pages.due());
        (own.is_some() || pages.is_some()).then_some(Due(own, pages))
    }

    /// Records that the writes that [`OpenFile::due`] returned are durable.
    pub(crate) fn made_durable(&self, Due(own, pages): Due) {
        own.inspect(|due| self.unsynced.made_durable(*due));
        pages.inspect(|due| self.pages.made_durable(*due));
    }

    /// Closes the file and its second open for locks; see [`File::leave`].
    pub(crate) async fn leave(self) -> Result<(), Errno> {
        if let Some(file) = self.for_locks.into_inner() {
            Box::pin(file.leave()).await?;
        }
        Ok(self.file.leave().await?)
    }
}

impl Opens {
    /// Adds an open file with the given flags of open(2) and the given use of the page cache. Returns its handle.
    pub(crate) fn add_file(&self, file: File, flags: u32, pages: PageUse) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        let open = OpenFile {
            pages,
            unsynced: Unsynced::new(file.is_unsynced()),
            synchronous: OFlags::from_bits_retain(flags).contains(OFlags::DSYNC),
            plain: AtomicBool::new(file.attrs().mode & 0o6000 == 0),
            lock_owners: Mutex::default(),
            for_locks: OnceCell::new(),
            file,
        };
        write(&self.files).insert(handle, Arc::new(open));
        handle
    }

    /// Returns the open file with this handle.
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        read(&self.files).get(&handle).cloned().ok_or(EBADF)
    }

    /// Returns the table of lock owners.
    pub(crate) fn lockers(&self) -> &LockOwners {
        &self.lockers
    }

    /// Records that `owner` requests a lock of the file through this open. `by` has the process id, the handle of the
    /// open, and whether the lock is a flock(2) lock.
    pub(crate) async fn asks_lock(&self, open: &OpenFile, owner: u64, by: (u32, u64, bool)) {
        {
            let mut owners = open.lock_owners();
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        self.lockers.asks(open.file.node().id.0, owner, by).await;
    }

    /// Releases all locks of `owner` on the file.
    pub(crate) async fn unlock_all(&self, file: &File, owner: u64) -> Result<(), Errno> {
        if self.lockers.take(file.node().id.0, owner) {
            // Boxed, so that a close by an owner without locks reserves no memory for this future.
            Box::pin(file.unlock(owner, ByteRange::ALL)).await?;
        }
        Ok(())
    }

    /// Records that a process closed a descriptor of this open.
    pub(crate) fn flushed(&self, handle: u64, open: &OpenFile, pid: u32) {
        let owners = open.lock_owners();
        if !owners.is_empty() {
            self.lockers.flushed(open.file.node().id.0, &owners, handle, pid);
        }
    }

    /// Releases the locks that owners got through this open, after the last descriptor of this open is closed.
    pub(crate) async fn unlock_open(&self, handle: u64, open: &OpenFile) -> Result<(), Errno> {
        let (number, owners) = (open.file.node().id.0, std::mem::take(&mut *open.lock_owners()));
        if owners.is_empty() {
            return Ok(());
        }
        let owners = self.lockers.released(number, &owners, handle);
        let mut outcome = Ok(());
        for owner in &owners {
            outcome = outcome.and(Box::pin(open.file.unlock(*owner, ByteRange::ALL)).await);
        }
        self.lockers.ended(number, &owners);
        Ok(outcome?)
    }

    /// Records that the file `number` may have setuid and setgid bits from now on.
    pub(crate) fn doubt_bits(&self, number: u64) {
        for open in read(&self.files).values().filter(|open| open.file.node().id.0 == number) {
            open.plain.store(false, Relaxed);
        }
    }

    /// Returns an open through which the kernel writes the file `number` to its page cache, if there is such an open.
    pub(crate) fn writing(&self, number: u64) -> Option<Arc<OpenFile>> {
        let fits = |open: &&Arc<OpenFile>| open.pages.is_writing() && open.file.node().id.0 == number;
        read(&self.files).values().find(fits).cloned()
    }

    /// Removes an open file from the table, and returns it.
    pub(crate) fn take_file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        write(&self.files).remove(&handle).inspect(|open| open.pages.end()).ok_or(EBADF)
    }

    /// Removes all open files from the table, and returns them.
    pub(crate) fn take_files(&self) -> Vec<Arc<OpenFile>> {
        let taken = write(&self.files).drain().map(|(_, open)| open).collect::<Vec<_>>();
        taken.iter().for_each(|open| open.pages.end());
        taken
    }

    /// Returns whether any file is open.
    pub(crate) fn are_there(&self) -> bool {
        !read(&self.files).is_empty()
    }

    /// Returns whether any directory is open.
    pub(crate) fn are_there_dirs(&self) -> bool {
        !read(&self.dirs).is_empty()
    }

    /// Adds an open directory with this reading position, and returns its handle.
    pub(crate) fn add_dir(&self, reading: Reading) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        write(&self.dirs).insert(handle, Arc::new(OpenDir { reading: tokio::sync::Mutex::new(reading) }));
        handle
    }

    /// Returns the open directory with this handle.
    pub(crate) fn dir(&self, handle: u64) -> Result<Arc<OpenDir>, Errno> {
        read(&self.dirs).get(&handle).cloned().ok_or(EBADF)
    }

    /// Removes an open directory from the table.
    pub(crate) fn take_dir(&self, handle: u64) {
        write(&self.dirs).remove(&handle);
    }
}
