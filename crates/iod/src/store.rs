//! A store: byte objects as files of a local directory (`docs/FORMATS.md`, "Object store").

mod cache;
mod format;
mod head;
mod list;
mod object;
mod room;
mod shards;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use types::limits::OPEN_OBJECTS_MAX;
use types::{FileId, Fsid, IodId, Status, Verifier};
use wire::native::{Counter, Failure};

pub use format::StoreError;
pub(crate) use head::HEAD_LEN;
pub(crate) use object::{Object, Open, ReadPlan};

use crate::counters::Counters;
use crate::lock::lock;
use cache::{Cache, Lookup};
use head::Head;
use room::Room;
use shards::{Leaf, Shards, SyncFn, Target};

/// Most objects whose failed sync is remembered one by one; beyond it the whole store counts as failed.
const FAILED_MAX: usize = 1024;

/// An open store, locked against every other process.
pub struct Store {
    dir: PathBuf,
    fsid: Fsid,
    iod: IodId,
    verifier: Verifier,
    counters: Counters,
    shards: Shards,
    cache: Cache,
    room: Room,
    sync: Box<SyncFn>,
    /// Objects whose sync failed: they stay failed when their file is closed and opened again.
    failed: Mutex<HashSet<FileId>>,
    all_failed: AtomicBool,
    /// Keeps the lock.
    _format: File,
}

impl Store {
    /// Makes a store for file system `fsid` in an empty or missing directory; answers its new identity.
    ///
    /// # Errors
    /// When the directory holds anything, a store included, or cannot be written.
    pub fn format(dir: &Path, fsid: Fsid) -> Result<IodId, StoreError> {
        let iod = IodId(*uuid::Uuid::new_v4().as_bytes());
        format::format(dir, &format::Format { fsid, iod, created: unix_now() })?;
        Ok(iod)
    }

    /// Opens and locks a store. Its write verifier is new each time.
    ///
    /// # Errors
    /// When there is no store, it is in use, damaged, of a newer version, or cannot be written.
    pub fn open(dir: &Path) -> Result<Store, StoreError> {
        Self::open_with(dir, OPEN_OBJECTS_MAX, Box::new(shards::sync_file))
    }

    fn open_with(dir: &Path, capacity: usize, sync: Box<SyncFn>) -> Result<Store, StoreError> {
        let (format, file) = format::open(dir)?;
        let mut verifier = [0; 8];
        getrandom::fill(&mut verifier).map_err(|e| StoreError::Io {
            path: dir.to_owned(),
            doing: "get random bytes",
            source: io::Error::other(e),
        })?;
        tracing::info!(iod = %format.iod, dir = %dir.display(), created = format.created, "store opened");
        Ok(Store {
            dir: dir.to_owned(),
            fsid: format.fsid,
            iod: format.iod,
            verifier: Verifier(verifier),
            counters: Counters::default(),
            shards: Shards::new(dir.join(format::OBJECTS)),
            cache: Cache::new(capacity.min(open_files_allowed())),
            room: Room::default(),
            sync,
            failed: Mutex::default(),
            all_failed: AtomicBool::new(false),
            _format: file,
        })
    }

    /// The file system that it belongs to.
    pub fn fsid(&self) -> Fsid {
        self.fsid
    }

    /// Its identity.
    pub fn iod(&self) -> IodId {
        self.iod
    }

    /// The write verifier of this run.
    pub fn verifier(&self) -> Verifier {
        self.verifier
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All counters, how many objects are in memory, and the number of the disk below the store: stores of one host
    /// with the same number share its capacity.
    pub fn snapshot(&self) -> Vec<Counter> {
        let mut all = self.counters.snapshot();
        all.push(Counter { name: "objects.known".into(), value: self.cache.len() as u64 });
        all.extend(fs::metadata(&self.dir).map(|m| Counter { name: "store.device".into(), value: m.dev() }));
        all
    }

    /// Bytes of the file system that holds it: all, and those still free for the iod.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn capacity(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        Ok((stat.f_blocks.saturating_mul(stat.f_frsize), stat.f_bavail.saturating_mul(stat.f_frsize)))
    }

    /// Takes room for `len` new bytes; `NoSpc` when the disk would be left with less than its reserve.
    fn take_room(&self, len: u64) -> Result<(), Failure> {
        self.room.take(len, || self.capacity()).map_err(|e| failure(&e, "write the object"))
    }

    /// The object with this id, existing or not.
    pub(crate) fn object(&self, id: FileId) -> Arc<Object> {
        loop {
            match self.cache.get(id) {
                Lookup::Found(object, dropped) => {
                    Counters::add(&self.counters.objects_evicted, u64::from(dropped));
                    return object;
                }
                // A failure is remembered by the object's id, so it is not lost with the object.
                Lookup::SyncFirst(victim) => drop(victim.sync(self)),
            }
        }
    }

    fn now(&self) -> u64 {
        unix_now()
    }

    fn leaf(&self, id: FileId) -> Arc<Leaf> {
        self.shards.leaf(id)
    }

    fn open_object(&self, id: FileId) -> io::Result<File> {
        open_options().open(self.shards.path(id))
    }

    /// Makes an object file with its head. Only the trace of one that was never committed may be in its place.
    ///
    /// A file without a head is no object, so it may be seen before the head is in it; the head reaches the disk no
    /// later than the first COMMIT, with the same sync.
    fn create_object(&self, id: FileId, head: &Head) -> io::Result<(File, Arc<Leaf>)> {
        let leaf = self.leaf(id);
        let path = self.shards.path(id);
        let mut options = open_options();
        options.create_new(true);
        let mut attempt = options.open(&path);
        match &attempt {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.shards.make(&leaf)?;
                attempt = options.open(&path);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&path)?;
                attempt = options.open(&path);
            }
            _ => {}
        }
        let file = attempt?;
        if let Err(error) = file.write_all_at(&head.encode(), 0) {
            drop(fs::remove_file(&path));
            return Err(error);
        }
        Ok((file, leaf))
    }

    /// Removes an object's file; answers whether there was one.
    fn remove_object(&self, id: FileId) -> io::Result<bool> {
        match fs::remove_file(self.shards.path(id)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn sync_now(&self, file: &File, target: Target) -> io::Result<()> {
        (self.sync)(file, target)
    }

    fn sync_leaf(&self, leaf: &Leaf, change: u64) -> Result<(), Failure> {
        leaf.sync(change, &*self.sync, &self.counters).map_err(|e| failure(&e, "sync the folder of the object"))
    }

    fn has_failed(&self, id: FileId) -> bool {
        self.all_failed.load(Ordering::Acquire) || lock(&self.failed).contains(&id)
    }

    fn note_failure(&self, id: FileId) {
        let mut failed = lock(&self.failed);
        if failed.len() < FAILED_MAX {
            failed.insert(id);
        } else {
            self.all_failed.store(true, Ordering::Release);
        }
    }

    fn forget_failure(&self, id: FileId) {
        lock(&self.failed).remove(&id);
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options
}

/// A part of the files that the process may have open: the rest is for connections and other stores.
fn open_files_allowed() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(OPEN_OBJECTS_MAX, |limit| usize::try_from(limit / 8).unwrap_or(usize::MAX))
}

/// An error of the system in the words of the protocol.
fn failure(error: &io::Error, doing: &str) -> Failure {
    let status = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => Status::NoSpc,
        Some(Errno::DQUOT) => Status::DQuot,
        Some(Errno::FBIG) => Status::FBig,
        Some(Errno::ROFS) => Status::Rofs,
        Some(Errno::IO) => Status::Io,
        // Too many files open, or no memory: passes when others are done.
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Status::Delay,
        Some(Errno::ACCESS | Errno::PERM) => Status::Access,
        _ => Status::Io,
    };
    Failure { status, detail: Some(format!("cannot {doing}: {error}")) }
}

#[cfg(test)]
mod tests;
