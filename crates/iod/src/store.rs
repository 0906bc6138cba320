//! The object store of an iod: objects as files of a local directory (`docs/FORMATS.md`, "Object store").

mod block_checksums;
mod cache;
mod claim;
mod format;
mod free_space;
mod head;
mod index;
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
use std::sync::{Arc, Mutex, RwLock};

use net::clock::unix_now;
use rustix::io::Errno;
use types::limits::OPEN_OBJECTS_MAX;
use types::{Fsid, IodId, ObjectId, Status, Verifier};
use wire::native::{Counter, Failure};

pub(crate) use claim::STORE;
pub use format::StoreError;
pub(crate) use format::{FORMAT, OBJECTS};
pub(crate) use head::HEAD_LEN;
pub(crate) use index::Registration;
pub(crate) use object::{Object, Open, ReadPlan, ShortCircuitFile};

use crate::counters::Counters;
use crate::disks::{Disk, DiskFile, Local, write_all};
use crate::lock::lock;
use block_checksums::BlockChecksums;
use cache::{Cache, Lookup};
use claim::Claimed;
use format::Format;
use free_space::FreeSpace;
use head::Head;
use index::IndexTable;
use shards::{Leaf, Shards};
use tombstones::Tombstones;

/// Maximum number of objects whose failed sync the store remembers individually. With more failures, every object
/// counts as failed.
const FAILED_MAX: usize = 1024;

/// Optional features of a store, chosen when the store is formatted and never changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Whether the store keeps a checksum of each block of an object, which reads and scrubs verify.
    pub block_checksums: bool,
}

/// An open object store. It holds a lock that keeps every other process from opening the store.
pub struct Store {
    disk: Arc<dyn Disk>,
    fsid: Fsid,
    iod: IodId,
    /// Whether the store keeps block checksums for new objects.
    sums: bool,
    verifier: Verifier,
    counters: Counters,
    shards: Shards,
    cache: Cache,
    room: FreeSpace,
    gone: Tombstones,
    /// The shards of the indexes of log files.
    indexes: IndexTable,
    /// The lock that a request takes shared while it creates an object of a log file.
    creating_logs: RwLock<()>,
    claimed: Mutex<Claimed>,
    /// Whether the iod may serve clients: no metadata store has ever claimed the iod, or one has claimed the iod since
    /// the iod started.
    confirmed: AtomicBool,
    /// Objects whose sync failed. The store remembers the failure even after the cache has evicted the object.
    failed: Mutex<HashSet<ObjectId>>,
    all_failed: AtomicBool,
    /// The content of the `FORMAT` file, and the open `FORMAT` file itself, which holds the lock of the store.
    format: Mutex<(Format, Box<dyn DiskFile>)>,
    /// Whether a durable flag in the `FORMAT` file says that objects of streams other than 0 may exist.
    streams: AtomicBool,
}

impl Store {
    /// Formats a store for file system `fsid` in an empty or missing directory. Returns the id of the new iod.
    ///
    /// # Errors
    /// When the directory is not empty, for instance because it already holds a store, or when the process cannot write
    /// to it.
    pub fn format(dir: &Path, fsid: Fsid) -> Result<IodId, StoreError> {
        Self::format_on(&Local::new(dir), fsid)
    }

    /// Formats a store as [`Store::format`] does, on a local or simulated disk.
    ///
    /// # Errors
    /// The errors of [`Store::format`].
    pub fn format_on(disk: &dyn Disk, fsid: Fsid) -> Result<IodId, StoreError> {
        Self::format_with(disk, fsid, Features::default())
    }

    /// Formats a store as [`Store::format`] does, on a local or simulated disk, with these features. Features never
    /// change.
    ///
    /// # Errors
    /// The errors of [`Store::format`].
    pub fn format_with(disk: &dyn Disk, fsid: Fsid, features: Features) -> Result<IodId, StoreError> {
        let iod = IodId(*uuid::Uuid::new_v4().as_bytes());
        Self::format_as(disk, fsid, features, iod)?;
        Ok(iod)
    }

    /// Formats a store as [`Store::format_with`] does, under the id of an iod whose disk is lost. To the mgr, the new
    /// store is this iod without any of its objects.
    ///
    /// # Errors
    /// The errors of [`Store::format`].
    pub fn format_as(disk: &dyn Disk, fsid: Fsid, features: Features, iod: IodId) -> Result<(), StoreError> {
        let Features { block_checksums: sums } = features;
        format::format(disk, &Format { fsid, iod, created: unix_now(), sums, streams: false })
    }

    /// Opens and locks the store in a directory, and restricts access to the directory to its owner. The write verifier
    /// is different after each open.
    ///
    /// # Errors
    /// When the directory holds no store, or the store is locked by another process, damaged, of a newer version, or
    /// not writable.
    pub fn open(dir: &Path) -> Result<Store, StoreError> {
        let store = Self::open_on(Arc::new(Local::new(dir)))?;
        // Change the modes of the directory only after opening the store: a directory without a store may belong to
        // another program.
        Local::new(dir).narrow();
        Ok(store)
    }

    /// Opens a store as [`Store::open`] does, on a local or simulated disk.
    ///
    /// # Errors
    /// The errors of [`Store::open`].
    pub fn open_on(disk: Arc<dyn Disk>) -> Result<Store, StoreError> {
        let objects = OPEN_OBJECTS_MAX.min(disk.open_files());
        Self::open_with(disk, objects)
    }

    /// Opens the store with a cache for about `capacity` objects.
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
            indexes: IndexTable::default(),
            creating_logs: RwLock::default(),
            claimed: Mutex::new(claimed),
            confirmed,
            failed: Mutex::default(),
            all_failed: AtomicBool::new(false),
            streams: AtomicBool::new(false),
            format: Mutex::new((format, file)),
        })
    }

    /// Returns the id of the file system that the store belongs to.
    pub fn fsid(&self) -> Fsid {
        self.fsid
    }

    /// Returns the id of the iod, which the store got when it was formatted.
    pub fn iod(&self) -> IodId {
        self.iod
    }

    /// Returns the write verifier, which is different after each open of the store.
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

    /// Returns the counters that requests to this store increment.
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

    /// Returns the capacity of the underlying file system in bytes: the total, and the free bytes that the iod may
    /// use. The free bytes do not include the reserve of the iod.
    ///
    /// # Errors
    /// When the operating system cannot report the capacity.
    pub fn capacity(&self) -> io::Result<(u64, u64)> {
        let (total, free) = self.disk.capacity()?;
        Ok((total, free_space::spare((total, free))))
    }

    /// Checks that `len` new bytes fit on the disk without using the iod's reserve, and counts the bytes as used. Fails
    /// with `NoSpc` if the disk would have less free space than the reserve.
    fn take_room(&self, len: u64) -> Result<(), Failure> {
        self.room.take(len, || self.disk.capacity()).map_err(|e| failure(&e, "write the object"))
    }

    /// Returns the number of bytes that may be allocated before the iod must check the free space of the disk again.
    fn piece(&self) -> u64 {
        free_space::piece(self.capacity().map_or(0, |(_, spare)| spare))
    }

    /// Returns the object with this id from the cache, or adds it to the cache. The object need not exist on disk.
    pub(crate) fn object(&self, id: ObjectId) -> Arc<Object> {
        let mut beyond = false;
        loop {
            match self.cache.get(id, beyond) {
                Lookup::Found(object, dropped) => {
                    Counters::add(&self.counters.objects_evicted, u64::from(dropped));
                    return object;
                }
                // If the sync of an object has failed permanently, the store remembers the failure by object id, so the
                // cache can evict the object. After a temporary failure, the object still has unsynced data and stays
                // in the cache.
                Lookup::SyncFirst(victim) => beyond = victim.sync(self).is_err() && victim.is_dirty(),
            }
        }
    }

    /// Returns whether no request may create an object, because the object has a tombstone. A tombstone of an index is
    /// also valid for all data logs of the file.
    fn is_gone(&self, id: ObjectId) -> bool {
        self.gone.is(id) || id.is_of_logs() && self.gone.is(ObjectId::index(id.file))
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

    /// Creates an object file with its header. A file of this name may exist only as the remains of an object that was
    /// never committed.
    ///
    /// Before the store creates its first object of a stream other than 0, it sets a flag in the `FORMAT` file. Builds
    /// without support for streams would overlook the object, so this flag keeps them from opening the store.
    ///
    /// A file without a header is no object, so its name may become visible before its header is written. The sync of
    /// the first COMMIT makes the header durable.
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
        // Write the flag for streams even if the `FORMAT` file already has it: an earlier run may have written the flag
        // and died before it synced the file.
        let with_streams = Format { streams: true, ..format.0 };
        with_streams.write(&*format.1)?;
        format.0 = with_streams;
        self.streams.store(true, Ordering::Release);
        Ok(())
    }

    /// Opens an object's file for a short-circuit reader. Returns `None` if the disk is simulated and has no
    /// descriptors.
    fn open_to_lend(&self, id: ObjectId) -> io::Result<Option<File>> {
        self.disk.open_to_lend(&Shards::path(id))
    }

    /// Opens the checksum file of the object that was created with this nonce, or creates the checksum file if it is
    /// missing. Also returns whether the file was missing. If the object is `new`, removes the checksums of an earlier
    /// object with this id.
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

    /// Returns a random nonce for a new object; `None` if the store has no block checksums.
    fn new_nonce(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; 8];
        if self.sums {
            getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        }
        Ok(self.sums.then(|| u64::from_be_bytes(bytes)))
    }

    /// Removes the object file and the checksum file of an object; returns whether the object file existed.
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

/// Converts an error of the operating system to a [`Failure`] of the native data protocol.
fn failure(error: &io::Error, doing: &str) -> Failure {
    let status = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => Status::NoSpc,
        Some(Errno::DQUOT) => Status::DQuot,
        Some(Errno::FBIG) => Status::FBig,
        Some(Errno::ROFS) => Status::Rofs,
        Some(Errno::IO) => Status::Io,
        // The process has too many open files or too little memory. This is temporary, so return `Delay`, and the
        // client retries.
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Status::Delay,
        Some(Errno::ACCESS | Errno::PERM) => Status::Access,
        _ => Status::Io,
    };
    Failure { status, detail: Some(format!("cannot {doing}: {error}")) }
}

#[cfg(test)]
mod tests;
