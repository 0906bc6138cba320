//! A simulated disk for the embedded store and its log. Tests can delay syncs, inject write errors, limit the space,
//! and cut the power.

use meta::{LogDisk, StorageBackend};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

/// A simulated disk with two files: the store's database and its log. Clones share the disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<(Mutex<Inner>, Condvar)>);

/// The log file of a simulated disk. The second field is the maximum size in bytes of the ring of blocks in the log.
#[derive(Clone, Debug)]
pub struct LogFile(Disk, u64);

/// Sector size in bytes: a power cut keeps or loses unsynced data in units of one sector.
const SECTOR: usize = 512;
/// Block size in bytes: a file allocates space in units of one block.
const BLOCK: usize = 4096;
const STORE: usize = 0;
const LOG: usize = 1;

#[derive(Debug, Default)]
struct Inner {
    files: [Image; 2],
    syncs_held: bool,
    waiting: usize,
    /// Number of writes and syncs that still succeed before the disk fails; `None` if the disk does not fail.
    budget: Option<usize>,
    operations: usize,
    syncs: [usize; 2],
    /// Capacity of the disk in bytes; `None` is unlimited.
    capacity: Option<u64>,
    taken: BTreeSet<(usize, usize)>,
    history: Option<Vec<(usize, Operation)>>,
}

/// A file: its current content, its content at the last sync, and the operations since the last sync.
#[derive(Clone, Debug, Default)]
struct Image {
    now: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Operation>,
}

/// An operation on a file: a change of the length, a write at an offset, or a sync.
#[derive(Clone, Debug)]
pub enum Operation {
    Len(usize),
    Write(usize, Vec<u8>),
    Sync,
}

impl Operation {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Operation::Len(len) => set_len(to, *len),
            Operation::Write(offset, data) => {
                let end = offset + data.len();
                if to.len() < end {
                    set_len(to, end);
                }
                to[*offset..end].copy_from_slice(data);
            }
            Operation::Sync => {}
        }
    }
}

/// Truncates `data` or extends it with zeros. `Vec::resize` is too slow in unoptimized builds, because it writes byte
/// by byte.
fn set_len(data: &mut Vec<u8>, len: usize) {
    data.truncate(len);
    data.extend_from_slice(&vec![0; len - data.len()]);
}

impl Image {
    fn take(&mut self, operation: Operation) {
        match operation {
            Operation::Sync => {
                let Image { synced, unsynced, .. } = self;
                unsynced.drain(..).for_each(|operation| operation.apply(synced));
            }
            operation => {
                operation.apply(&mut self.now);
                self.unsynced.push(operation);
            }
        }
    }

    /// Returns the content of the file after a power cut. Of each unsynced write of a sector with `length` bytes, the
    /// first `kept(length)` bytes survive. A change of the file's length survives if `kept(1)` returns 1.
    fn after_power_cut(&self, kept: &mut dyn FnMut(usize) -> usize) -> Vec<u8> {
        let mut data = self.synced.clone();
        for operation in &self.unsynced {
            match operation {
                Operation::Len(len) if kept(1) == 1 => set_len(&mut data, *len),
                Operation::Write(offset, bytes) => {
                    let mut at = 0;
                    while at < bytes.len() {
                        let len = (SECTOR - (offset + at) % SECTOR).min(bytes.len() - at);
                        let part = &bytes[at..at + kept(len).min(len)];
                        if !part.is_empty() {
                            Operation::Write(offset + at, part.to_vec()).apply(&mut data);
                        }
                        at += len;
                    }
                }
                Operation::Len(_) | Operation::Sync => {}
            }
        }
        data
    }
}

impl Inner {
    fn take(&mut self, file: usize, operation: Operation) -> io::Result<()> {
        self.operations += 1;
        match &mut self.budget {
            Some(0) => return Err(io::Error::other("the disk is broken")),
            Some(left) => *left -= 1,
            None => {}
        }
        self.take_room(file, &operation)?;
        if let Some(history) = &mut self.history {
            history.push((file, operation.clone()));
        }
        self.syncs[file] += usize::from(matches!(operation, Operation::Sync));
        self.files[file].take(operation);
        Ok(())
    }
}

impl Inner {
    fn free(&self) -> u64 {
        let taken = (self.taken.len() * BLOCK) as u64;
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(taken))
    }

    /// Allocates the blocks that a write needs. Like a sparse file, a file has no blocks in ranges that were never
    /// written.
    fn take_room(&mut self, file: usize, operation: &Operation) -> io::Result<()> {
        if self.capacity.is_none() {
            return Ok(());
        }
        match operation {
            Operation::Len(len) => self.taken.retain(|(of, block)| *of != file || block * BLOCK < *len),
            Operation::Write(offset, data) => {
                for block in offset / BLOCK..(offset + data.len()).div_ceil(BLOCK) {
                    if !self.taken.contains(&(file, block)) && self.free() < BLOCK as u64 {
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                    self.taken.insert((file, block));
                }
            }
            Operation::Sync => {}
        }
        Ok(())
    }
}

#[allow(dead_code)] // each test binary uses only some of the functions
impl Disk {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.0.lock().expect("disk")
    }

    fn with(files: [Vec<u8>; 2]) -> Disk {
        let files = files.map(|data| Image { now: data.clone(), synced: data, unsynced: Vec::new() });
        Disk(Arc::new((Mutex::new(Inner { files, ..Inner::default() }), Condvar::new())))
    }

    /// Returns the log file of this disk. The ring of blocks in the log may have at most `room` bytes.
    pub fn log(&self, room: u64) -> LogFile {
        LogFile(self.clone(), room)
    }

    /// Makes every sync from now on block until [`Self::release_syncs`] is called.
    pub fn hold_syncs(&self) {
        self.inner().syncs_held = true;
    }

    /// Blocks the calling thread until another thread waits in a sync that [`Self::hold_syncs`] blocks.
    pub fn wait_for_sync(&self) {
        let mut inner = self.inner();
        while inner.waiting == 0 {
            inner = self.0.1.wait(inner).expect("disk");
        }
    }

    /// Lets the syncs that [`Self::hold_syncs`] blocks continue.
    pub fn release_syncs(&self) {
        self.inner().syncs_held = false;
        self.0.1.notify_all();
    }

    /// Makes every write and sync fail after the next `operations` writes and syncs.
    pub fn break_after(&self, operations: usize) {
        self.inner().budget = Some(operations);
    }

    /// Sets the capacity of the disk in bytes. Set the first capacity while the disk is empty, because a disk without
    /// a capacity does not count allocated blocks.
    pub fn limit(&self, capacity: u64) {
        self.inner().capacity = Some(capacity);
    }

    /// Returns the free space of the disk in bytes.
    pub fn free(&self) -> u64 {
        self.inner().free()
    }

    /// Returns how many writes, syncs and length changes the disk has executed.
    pub fn operations(&self) -> usize {
        self.inner().operations
    }

    /// Returns how many syncs of the database file and how many syncs of the log file the disk has executed.
    pub fn syncs(&self) -> (usize, usize) {
        let [store, log] = self.inner().syncs;
        (store, log)
    }

    /// Starts to record all operations on the disk.
    pub fn record(&self) {
        self.inner().history = Some(Vec::new());
    }

    /// Returns the operations since the call of [`Self::record`], each with the number of the file that it changed.
    pub fn history(&self) -> Vec<(usize, Operation)> {
        self.inner().history.clone().expect("recorded")
    }

    /// Applies an operation that was recorded on another disk to this disk.
    pub fn repeat(&self, (file, operation): (usize, Operation)) {
        self.inner().files[file].take(operation);
    }

    /// Returns the current contents of the database file and of the log file.
    pub fn contents(&self) -> [Vec<u8>; 2] {
        self.inner().files.clone().map(|image| image.now)
    }

    /// Returns a disk whose database file and log file have these contents, with no unsynced data.
    pub fn of(files: [Vec<u8>; 2]) -> Disk {
        Disk::with(files)
    }

    /// Returns the disk after a power cut. Synced data survive. Of each unsynced write of a sector with `length` bytes,
    /// the first `kept(length)` bytes survive.
    pub fn after_power_cut(&self, mut kept: impl FnMut(usize) -> usize) -> Disk {
        let inner = self.inner();
        Disk::with([&inner.files[STORE], &inner.files[LOG]].map(|image| image.after_power_cut(&mut kept)))
    }

    fn len_of(&self, file: usize) -> io::Result<u64> {
        Ok(self.inner().files[file].now.len() as u64)
    }

    fn read_from(&self, file: usize, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.inner();
        let from = offset as usize;
        let data = inner.files[file].now.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(data);
        Ok(())
    }

    fn sync_file(&self, file: usize) -> io::Result<()> {
        let mut inner = self.inner();
        inner.waiting += 1;
        self.0.1.notify_all();
        while inner.syncs_held {
            inner = self.0.1.wait(inner).expect("disk");
        }
        inner.waiting -= 1;
        inner.take(file, Operation::Sync)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.len_of(STORE)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_from(STORE, offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner().take(STORE, Operation::Len(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync_file(STORE)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner().take(STORE, Operation::Write(offset as usize, data.to_vec()))
    }
}

impl LogDisk for LogFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len_of(LOG)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_from(LOG, offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.inner().take(LOG, Operation::Write(offset as usize, data.to_vec()))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_file(LOG)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.inner().take(LOG, Operation::Len(len as usize))
    }

    fn room(&self) -> u64 {
        self.1
    }
}
