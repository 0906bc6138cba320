//! The object store of an iod: objects as files of a local directory (`docs/FORMATS.md`, "Object store").

mod block_checksums;
mod cache;
mod claim;
mod format;
mod free_space;
mod head;
mod list;
mod object;
mod scrub;
mod shards;
mod tombstones;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use net::clock::unix_now;
use rustix::io::Errno;
use types::limits::OPEN_OBJECTS_MAX;
use types::{Fsid, IodId, ObjectId, Status, Verifier};
use wire::native::{Counter, Failure};

pub(crate) use claim::STORE;
pub use format::StoreError;
pub(crate) use format::{FORMAT, OBJECTS};
pub(crate) use head::HEAD_LEN;
pub(crate) use object::{Lent, Object, Open, ReadPlan};

use crate::counters::Counters;
use crate::disks::{Disk, DiskFile, Local, write_all};
use crate::lock::lock;
use block_checksums::BlockChecksums;
use cache::{Cache, Lookup};
use claim::Claimed;
use format::Format;
use free_space::FreeSpace;
use head::Head;
use shards::{Leaf, Shards};
use tombstones::Tombstones;

/// Maximum number of objects whose failed sync is remembered individually; beyond it the whole store counts as failed.
const FAILED_MAX: usize = 1024;

/// Features of a store, chosen when it is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Whether blocks of objects have checksums, which reads and scrubs verify.
    pub block_checksums: bool,
}

/// An open store, locked against every other process.
pub struct Store {
    disk: Arc<dyn Disk>,
    fsid: Fsid,
    iod: IodId,
    /// Whether new objects have block checksums.
    sums: bool,
    verifier: Verifier,
    counters: Counters,
    shards: Shards,
    cache: Cache,
    room: FreeSpace,
    gone: Tombstones,
    claimed: Mutex<Claimed>,
    /// See [`Store::check_confirmed`].
    confirmed: AtomicBool,
    /// Objects whose sync failed. They stay failed when their file is closed and opened again.
    failed: Mutex<HashSet<ObjectId>>,
    all_failed: AtomicBool,
    /// What the format file says, and the file: holding it open keeps the lock.
    format: Mutex<(Format, Box<dyn DiskFile>)>,
    /// Whether the format file says, durably, that there may be objects of other streams than 0.
    streams: AtomicBool,
}

impl Store {
    /// Formats a store for file system `fsid` in an empty or missing directory; returns its new identity.
    ///
    /// # Errors
    /// When the directory is not empty, for instance because it already holds a store, or cannot be written.
    pub fn format(dir: &Path, fsid: Fsid) -> Result<IodId, StoreError> {
        Self::format_on(&Local::new(dir), fsid)
    }

    /// Formats a store as [`Store::format`] does, on any disk.
    ///
    /// # Errors
    /// The errors of [`Store::format`].
    pub fn format_on(disk: &dyn Disk, fsid: Fsid) -> Result<IodId, StoreError> {
        Self::format_with(disk, fsid, Features::default())
    }

    /// Formats a store as [`Store::format`] does, on any disk, with features that stay for the life of the store.
    ///
    /// # Errors
    /// The errors of [`Store::format`].
    pub fn format_with(disk: &dyn Disk, fsid: Fsid, features: Features) -> Result<IodId, StoreError> {
        let iod = IodId(*uuid::Uuid::new_v4().as_bytes());
        Self::format_as(disk, fsid, features, iod)?;
        Ok(iod)
    }

    /// Formats a store as [`Store::format_with`] does, under the identity of an iod whose disk is lost. The mgr treats
    /// the store as that iod with all data lost.
    ///
    /// # Errors
    /// The errors of [`Store::format`].
    pub fn format_as(disk: &dyn Disk, fsid: Fsid, features: Features, iod: IodId) -> Result<(), StoreError> {
        let Features { block_checksums: sums } = features;
        format::format(disk, &Format { fsid, iod, created: unix_now(), sums, streams: false })
    }

    /// Opens and locks the store in a directory, and restricts the directory to its owner. Each open has a new write
    /// verifier.
    ///
    /// # Errors
    /// When there is no store, or it is in use, damaged, of a newer version, or cannot be written.
    pub fn open(dir: &Path) -> Result<Store, StoreError> {
        let store = Self::open_on(Arc::new(Local::new(dir)))?;
        // Change modes only after the directory is known to be a store: it could be any directory.
        Local::new(dir).narrow();
        Ok(store)
    }

    /// Opens a store as [`Store::open`] does, on any disk.
    ///
    /// # Errors
    /// The errors of [`Store::open`].
    pub fn open_on(disk: Arc<dyn Disk>) -> Result<Store, StoreError> {
        let objects = OPEN_OBJECTS_MAX.min(disk.open_files());
        Self::open_with(disk, objects)
    }

    /// Opens the store with a cache of `capacity` open objects.
    fn open_with(disk: Arc<dyn Disk>, capacity: usize) -> Result<Store, StoreError> {
        let (format, file) = format::open(&*disk)?;
        let claimed = Claimed::read(&*disk)?;
        let confirmed = AtomicBool::new(claimed.is_empty());
        let mut verifier = [0; 8];
        getrandom::fill(&mut verifier).map_err(|e| StoreError::Io {
            path: disk.path().to_owned(),
            doing: "get random bytes",
            source: io::Error::other(e),
        })?;
        tracing::info!(iod = %format.iod, dir = %disk.path().display(), created = format.created, "store opened");
        Ok(Store {
            disk,
            fsid: format.fsid,
            iod: format.iod,
            sums: format.sums,
            verifier: Verifier(verifier),
            counters: Counters::default(),
            shards: Shards::default(),
            cache: Cache::new(capacity),
            room: FreeSpace::default(),
            gone: Tombstones::default(),
            claimed: Mutex::new(claimed),
            confirmed,
            failed: Mutex::default(),
            all_failed: AtomicBool::new(false),
            streams: AtomicBool::new(false),
            format: Mutex::new((format, file)),
        })
    }

    /// Returns the file system that the store belongs to.
    pub fn fsid(&self) -> Fsid {
        self.fsid
    }

    /// Returns the identity of the iod.
    pub fn iod(&self) -> IodId {
        self.iod
    }

    /// Returns the write verifier of this run.
    pub fn verifier(&self) -> Verifier {
        self.verifier
    }

    /// Returns the directory of the store.
    pub fn dir(&self) -> &Path {
        self.disk.path()
    }

    fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Returns the counters of the store.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns all counters, the number of cached objects, and the device number of the disk. Stores of one host with
    /// the same device number share its capacity.
    pub fn snapshot(&self) -> Vec<Counter> {
        let mut all = self.counters.snapshot();
        all.push(Counter { name: "objects.known".into(), value: self.cache.len() as u64 });
        all.extend(self.disk.device().map(|value| Counter { name: "store.device".into(), value }));
        all
    }

    /// Returns the bytes of the underlying file system: total, and free for the iod without its reserve.
    ///
    /// # Errors
    /// When the system cannot report the capacity.
    pub fn capacity(&self) -> io::Result<(u64, u64)> {
        let (total, free) = self.disk.capacity()?;
        Ok((total, free_space::spare((total, free))))
    }

    /// Claims free space for `len` new bytes; fails with `NoSpc` if the disk would be left with less than its reserve.
    fn take_room(&self, len: u64) -> Result<(), Failure> {
        self.room.take(len, || self.disk.capacity()).map_err(|e| failure(&e, "write the object"))
    }

    /// Returns how many bytes may be reserved before the free space must be checked again.
    fn piece(&self) -> u64 {
        free_space::piece(self.capacity().map_or(0, |(_, spare)| spare))
    }

    /// Returns the object with this id, existing or not.
    pub(crate) fn object(&self, id: ObjectId) -> Arc<Object> {
        let mut beyond = false;
        loop {
            match self.cache.get(id, beyond) {
                Lookup::Found(object, dropped) => {
                    Counters::add(&self.counters.objects_evicted, u64::from(dropped));
                    return object;
                }
                // A failed sync is remembered by the id of the object, so evicting the object does not lose it. Another
                // failure may be temporary, so the object stays in the cache.
                Lookup::SyncFirst(victim) => beyond = victim.sync(self).is_err() && victim.is_dirty(),
            }
        }
    }

    fn now(&self) -> u64 {
        unix_now()
    }

    fn leaf(&self, id: ObjectId) -> Arc<Leaf> {
        self.shards.leaf(id)
    }

    fn open_object(&self, id: ObjectId) -> io::Result<Box<dyn DiskFile>> {
        self.disk.open(&Shards::path(id))
    }

    /// Creates an object file with its head. The name may only be taken by the remains of an object that was never
    /// committed.
    ///
    /// Before the first object of another stream than 0, the format file says so: builds that know no streams would
    /// miss the object, and must not open the store.
    ///
    /// A file without a head is no object, so the file may be visible before its head is written. The first COMMIT
    /// makes the head durable at the latest, with the same sync.
    fn create_object(&self, id: ObjectId, head: &Head) -> io::Result<(Box<dyn DiskFile>, Arc<Leaf>)> {
        if id.stream != 0 {
            self.announce_streams()?;
        }
        let leaf = self.leaf(id);
        let path = Shards::path(id);
        let mut attempt = self.disk.create_new(&path);
        match &attempt {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.disk.make_folder(leaf.path())?;
                attempt = self.disk.create_new(&path);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.disk.remove(&path)?;
                attempt = self.disk.create_new(&path);
            }
            _ => {}
        }
        let file = attempt?;
        if let Err(error) = write_all(&*file, &head.encode(), &[], 0) {
            drop(self.disk.remove(&path));
            return Err(error);
        }
        Ok((file, leaf))
    }

    fn announce_streams(&self) -> io::Result<()> {
        if self.streams.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut format = lock(&self.format);
        // Write it even if the file says so: an earlier run may have died before its sync.
        let with_streams = Format { streams: true, ..format.0 };
        with_streams.write(&*format.1)?;
        format.0 = with_streams;
        self.streams.store(true, Ordering::Release);
        Ok(())
    }

    /// Opens an object's file for a short-circuit reader; `None` if the disk cannot do that.
    fn open_to_lend(&self, id: ObjectId) -> io::Result<Option<File>> {
        self.disk.open_to_lend(&Shards::path(id))
    }

    /// Opens the checksums of the object that was created with this nonce; returns whether their file had to be
    /// created. A new object starts without checksums.
    fn open_sums(&self, id: ObjectId, nonce: u64, new: bool) -> io::Result<(BlockChecksums, bool)> {
        let path = Shards::sums_path(id);
        let (file, made) = match self.disk.open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => (self.disk.create_new(&path)?, true),
            found => (found?, false),
        };
        if new && !made {
            file.set_len(0)?;
        }
        Ok((BlockChecksums::open(file, nonce, new || made)?, made))
    }

    /// Returns a nonce for a new object, if the store has checksums.
    fn new_nonce(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; 8];
        if self.sums {
            getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        }
        Ok(self.sums.then(|| u64::from_be_bytes(bytes)))
    }

    /// Removes an object's files; returns whether the object file existed.
    fn remove_object(&self, id: ObjectId) -> io::Result<bool> {
        if self.sums {
            match self.disk.remove(&Shards::sums_path(id)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        match self.disk.remove(&Shards::path(id)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn sync_leaf(&self, leaf: &Leaf, change: u64) -> Result<(), Failure> {
        leaf.sync(change, self.disk(), &self.counters).map_err(|e| failure(&e, "sync the folder of the object"))
    }

    fn has_failed(&self, id: ObjectId) -> bool {
        self.all_failed.load(Ordering::Acquire) || lock(&self.failed).contains(&id)
    }

    fn note_failure(&self, id: ObjectId) {
        let mut failed = lock(&self.failed);
        if failed.len() < FAILED_MAX {
            failed.insert(id);
        } else {
            self.all_failed.store(true, Ordering::Release);
        }
    }

    fn forget_failure(&self, id: ObjectId) {
        lock(&self.failed).remove(&id);
    }
}

/// Converts an error of the system to a failure of the protocol.
fn failure(error: &io::Error, doing: &str) -> Failure {
    let status = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => Status::NoSpc,
        Some(Errno::DQUOT) => Status::DQuot,
        Some(Errno::FBIG) => Status::FBig,
        Some(Errno::ROFS) => Status::Rofs,
        Some(Errno::IO) => Status::Io,
        // Too many open files or no memory: a temporary condition, so the client retries.
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Status::Delay,
        Some(Errno::ACCESS | Errno::PERM) => Status::Access,
        _ => Status::Io,
    };
    Failure { status, detail: Some(format!("cannot {doing}: {error}")) }
}

#[cfg(test)]
mod tests;
