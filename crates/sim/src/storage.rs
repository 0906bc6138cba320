//! The simulated disk of the mgr: two files in memory. A power loss reverts a random part of the unsynced sectors to
//! their last synced content.

use crate::random::Rng;
use crate::trace;
use meta::{LogDisk, StorageBackend};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Size of a sector in bytes. A write of a sector is atomic.
const SECTOR: usize = 512;
/// Size in bytes of a page, the unit in which this module allocates memory.
const PAGE: usize = 4096;

/// One of the two files on the simulated disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The file with the database.
    Store = 0,
    /// The file with the batch log.
    Log = 1,
}

/// The simulated disk of the mgr. Clones share the same disk.
#[derive(Clone, Debug)]
pub struct MetaDisk(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: Rng,
    files: [File; 2],
    capacity: u64,
    /// Number of deaths of the process that uses the disk. Operations on a file fail if the file was opened before the
    /// last death.
    life: u64,
    /// Number of writes and syncs that still succeed before the disk fails; `None` if no failure is planned.
    dies_after: Option<u64>,
    /// Percentage of writes and syncs that fail.
    failing_percent: u64,
    changes: u64,
    /// Number of power losses of the disk's host.
    boots: u64,
}

/// A page of a file; `None` if all bytes are zero.
type Page = Option<Arc<[u8; PAGE]>>;

/// The contents of the database file and the log file, which another disk can load.
#[derive(Clone, Debug)]
pub struct Image([(Vec<Page>, usize); 2]);

#[derive(Clone, Debug, Default)]
struct File {
    pages: Vec<Page>,
    len: usize,
    /// For each page that was changed after the last sync: its content at that sync.
    before: BTreeMap<usize, Page>,
    durable_len: usize,
}

fn bytes(page: &Page) -> &[u8; PAGE] {
    page.as_deref().unwrap_or(&[0; PAGE])
}

impl File {
    /// Returns a page for the caller to change. First saves the page's content at the last sync.
    fn page(&mut self, index: usize) -> &mut [u8; PAGE] {
        let page = &mut self.pages[index];
        self.before.entry(index).or_insert_with(|| page.clone());
        Arc::make_mut(page.get_or_insert_with(|| Arc::new([0; PAGE])))
    }

    /// Splits a range of a file at page borders. Returns for each part the page index, the range within the page, and
    /// the range relative to `offset`.
    fn pieces(
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, std::ops::Range<usize>, std::ops::Range<usize>)> {
        (offset / PAGE..(offset + len).div_ceil(PAGE)).map(move |index| {
            let (from, to) = (offset.max(index * PAGE), (offset + len).min((index + 1) * PAGE));
            (index, from - index * PAGE..to - index * PAGE, from - offset..to - offset)
        })
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        for (index, place, part) in Self::pieces(offset, out.len()) {
            out[part].copy_from_slice(&bytes(&self.pages[index])[place]);
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        for (index, place, part) in Self::pieces(offset, data.len()) {
            self.page(index)[place].copy_from_slice(&data[part]);
        }
    }

    fn set_len(&mut self, len: usize) {
        let pages = len.div_ceil(PAGE);
        for index in pages..self.pages.len() {
            self.before.entry(index).or_insert_with(|| self.pages[index].clone());
        }
        self.pages.resize(pages, None);
        if len < self.len && !len.is_multiple_of(PAGE) {
            self.page(pages - 1)[len % PAGE..].fill(0);
        }
        self.len = len;
    }

    fn sync(&mut self) {
        self.before.clear();
        self.durable_len = self.len;
    }

    /// Reverts a random part of the unsynced sectors to the last sync. In half of the cases, also reverts the length of
    /// the file.
    fn forget(&mut self, rng: &mut Rng) {
        let len = if rng.percent(50) { self.durable_len } else { self.len };
        let before = std::mem::take(&mut self.before);
        let long = self.len.max(self.durable_len).div_ceil(PAGE);
        self.pages.resize(long, None);
        for (index, old) in before.into_iter().filter(|(index, _)| *index < long) {
            let mut page = *bytes(&self.pages[index]);
            for sector in (0..PAGE).step_by(SECTOR).filter(|_| rng.percent(50)) {
                page[sector..sector + SECTOR].copy_from_slice(&bytes(&old)[sector..sector + SECTOR]);
            }
            self.pages[index] = Some(Arc::new(page));
        }
        self.len = self.len.max(self.durable_len);
        self.set_len(len);
        self.sync();
    }
}

impl State {
    /// Counts a write or sync. Returns an error if the disk has failed, or if this operation is one of the random
    /// operations that fail.
    fn spend(&mut self) -> io::Result<()> {
        self.changes += 1;
        let broken = || Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        match &mut self.dies_after {
            Some(0) => return broken(),
            Some(left) => *left -= 1,
            None => {}
        }
        if self.failing_percent > 0 && self.rng.percent(self.failing_percent) { broken() } else { Ok(()) }
    }
}

impl MetaDisk {
    /// Returns an empty disk with a capacity of `capacity` bytes.
    pub fn new(rng: Rng, capacity: u64) -> Self {
        let state = State {
            rng,
            files: Default::default(),
            capacity,
            life: 0,
            dies_after: None,
            failing_percent: 0,
            changes: 0,
            boots: 0,
        };
        MetaDisk(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the contents of the database file and the log file.
    pub fn image(&self) -> Image {
        Image(self.state().files.clone().map(|file| (file.pages, file.len)))
    }

    /// Replaces the contents of the database file and the log file. The new contents are durable.
    pub fn load(&self, image: &Image) {
        let file = |(pages, len): &(Vec<Page>, usize)| {
            let (pages, len) = (pages.clone(), *len);
            File { pages, len, before: BTreeMap::new(), durable_len: len }
        };
        self.state().files = image.0.each_ref().map(file);
    }

    /// Opens a file for the process that uses the disk now. Operations on the opened file fail after the death of this
    /// process.
    pub fn open(&self, part: Part) -> Handle {
        Handle { disk: self.clone(), part, life: self.state().life }
    }

    /// Handles the death of the process that uses the disk. The files keep everything that the process wrote.
    pub fn process_died(&self) {
        let mut state = self.state();
        state.life += 1;
        state.dies_after = None;
    }

    /// Handles a power loss, which loses a random part of the unsynced data.
    pub fn power_off(&self) {
        self.process_died();
        let state = &mut *self.state();
        state.boots += 1;
        state.files.iter_mut().for_each(|file| file.forget(&mut state.rng));
    }

    /// Returns the number of power losses of the disk's host.
    pub fn boots(&self) -> u64 {
        self.state().boots
    }

    /// Lets `changes` more writes and syncs succeed. All later writes and syncs fail until the process that uses the
    /// disk has died.
    pub fn die_after(&self, changes: u64) {
        self.state().dies_after = Some(changes);
    }

    /// Returns whether the disk has failed, or will fail after a planned number of writes and syncs.
    pub fn is_dying(&self) -> bool {
        self.state().dies_after.is_some()
    }

    /// Sets the percentage of writes and syncs that fail from now on.
    pub fn fail(&self, percent: u64) {
        self.state().failing_percent = percent;
    }

    /// Sets the capacity of the disk from now on, in bytes.
    pub fn set_capacity(&self, capacity: u64) {
        self.state().capacity = capacity;
    }

    /// Returns the number of free bytes.
    pub fn free(&self) -> u64 {
        let state = self.state();
        state.capacity.saturating_sub(state.files.iter().map(|file| file.len as u64).sum())
    }
}

/// An open file of the disk, valid until the death of the process that opened it.
#[derive(Debug)]
pub struct Handle {
    disk: MetaDisk,
    part: Part,
    life: u64,
}

impl Handle {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state();
        if state.life != self.life {
            return Err(io::Error::other("the process is gone"));
        }
        act(&mut state)
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state| Ok(state.files[self.part as usize].len as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|state| {
            let (file, from) = (&state.files[self.part as usize], offset as usize);
            if from + out.len() > file.len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            file.read(from, out);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|state| {
            state.spend()?;
            let others: u64 = state.files.iter().map(|file| file.len as u64).sum();
            let file = &mut state.files[self.part as usize];
            let grows = len.saturating_sub(file.len as u64);
            if grows > 0 && others + grows > state.capacity {
                return Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()));
            }
            file.set_len(len as usize);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state| {
            let spent = state.spend();
            let file = &mut state.files[self.part as usize];
            trace::event(&[20, self.part as u64, file.before.len() as u64, u64::from(spent.is_ok())], || {
                format!("mgr syncs {:?}, {} pages: {spent:?}", self.part, file.before.len())
            });
            if spent.is_ok() {
                file.sync();
            }
            spent
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|state| {
            let spent = state.spend();
            let file = &mut state.files[self.part as usize];
            let from = offset as usize;
            // A write that fails stores a random prefix of its data, as a real disk may do.
            let len = if spent.is_ok() { data.len() } else { state.rng.below(data.len() as u64 + 1) as usize };
            if from + len > file.len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            file.write(from, &data[..len]);
            spent
        })
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        self.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(offset, data)
    }
}

impl LogDisk for Handle {
    fn len(&self) -> io::Result<u64> {
        self.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read(offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    /// Returns the size of the batch log in bytes. The size is small, so that the log fills up and wraps around even
    /// in a short run.
    fn room(&self) -> u64 {
        64 << 10
    }
}
