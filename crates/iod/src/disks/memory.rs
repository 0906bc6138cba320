//! A simulated disk in memory that can lose unsynced data, return errors, fill up and die, for tests and simulated
//! clusters.
//!
//! A power cut loses the same changes that a real file system may lose. Each 512-byte sector that changed since the
//! last sync of its file keeps its newest content, or gets back an older content that it had at or after this sync. The
//! same holds for the length of the file. Of the names created and removed in a folder since its last sync, any subset
//! survives. The caller of [`Memory::power_cut`] chooses what survives, in a fixed order.
//!
//! After a failed sync the disk behaves as Linux does. The page cache still shows the pages that the sync should have
//! written, but later syncs do not write them unless they change again. Directory entries are in the log (journal) of
//! the simulated file system. If a write to this log fails, every operation fails until the file system is mounted
//! again. In this simulation, a power cut also mounts the file system again.

mod node;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::io::Errno;
use types::limits::OPEN_OBJECTS_MAX;

use super::{Disk, DiskFile, Measure};
use crate::lock::lock;
use node::{Node, PAGE};

/// An operation on a simulated disk. Fault injection can make the operation fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reading bytes of a file.
    Read,
    /// Opening a file.
    Open,
    /// Listing a folder.
    List,
    /// Writing bytes to a file.
    Write,
    /// Truncating or extending a file.
    SetLen,
    /// Punching a hole into a file.
    Punch,
    /// Allocating storage for a range of a file.
    Reserve,
    /// Syncing a file.
    Sync,
    /// Creating a file.
    Create,
    /// Removing a file.
    Remove,
    /// Renaming a file.
    Rename,
    /// Creating a folder.
    MakeFolder,
    /// Syncing a folder.
    SyncFolder,
}

impl Operation {
    /// Returns whether the operation changes the content of the disk, or changes which data survive a power cut (a
    /// sync).
    pub fn is_change(self) -> bool {
        !matches!(self, Operation::Read | Operation::Open | Operation::List)
    }
}

/// Fault injection: decides whether an operation on a path fails, and with which error.
pub type Fault = dyn FnMut(Operation, &str) -> Option<io::Error> + Send;

/// A simulated disk in memory. A clone refers to the same disk.
#[derive(Clone)]
pub struct Memory {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    Folder,
    File(u64),
}

/// A creation or removal of a name that the disk may lose at a power cut, because its folder was not synced.
#[derive(Clone)]
struct Pending {
    folder: String,
    change: Change,
}

#[derive(Clone)]
enum Change {
    Set(String, Entry),
    Remove(String),
    Rename(String, String),
}

struct State {
    /// Number of power cuts and kills so far. Handles that were opened before the last power cut or kill return
    /// errors.
    life: u64,
    capacity: u64,
    /// Number of pages that all files with a name or an open handle use.
    pages: u64,
    now: BTreeMap<String, Entry>,
    durable: BTreeMap<String, Entry>,
    pending: Vec<Pending>,
    nodes: BTreeMap<u64, Node>,
    next: u64,
    fault: Option<Box<Fault>>,
    changes: u64,
    dies_at: Option<u64>,
    dead: bool,
    /// Copies of the disk, one from before each change; `None` until [`Memory::keep_copies`] is called.
    copies: Option<Vec<State>>,
}

impl State {
    /// Returns a copy of this disk. The copy has no injected fault and no scheduled death.
    fn copy(&self) -> State {
        State {
            now: self.now.clone(),
            durable: self.durable.clone(),
            pending: self.pending.clone(),
            nodes: self.nodes.clone(),
            fault: None,
            dies_at: None,
            copies: None,
            ..*self
        }
    }
}

impl Memory {
    /// Makes an empty disk of `capacity` bytes, whose name in messages is `name`.
    pub fn new(name: impl Into<PathBuf>, capacity: u64) -> Self {
        let state = State {
            life: 0,
            capacity,
            pages: 0,
            now: BTreeMap::new(),
            durable: BTreeMap::new(),
            pending: Vec::new(),
            nodes: BTreeMap::new(),
            next: 1,
            fault: None,
            changes: 0,
            dies_at: None,
            dead: false,
            copies: None,
        };
        Memory { path: name.into(), state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the number of changes that callers have requested so far, including failed changes.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Schedules the death of the disk: the next `more` changes succeed. After these changes, every operation returns
    /// `EIO` until a power cut.
    pub fn die_after(&self, more: u64) {
        let mut state = self.state();
        state.dies_at = Some(state.changes + more);
    }

    /// Returns whether the disk returns `EIO` for every operation, because it has died or its file system has failed.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// From now on, keeps a copy of the disk from before every change. [`Memory::copies`] returns these copies.
    pub fn keep_copies(&self) {
        self.state().copies.get_or_insert_default();
    }

    /// Returns a copy of this disk, as if the disk had died now. Call [`Memory::power_cut`] on the copy before use.
    pub fn copy(&self) -> Memory {
        Memory { path: self.path.clone(), state: Arc::new(Mutex::new(self.state().copy())) }
    }

    /// Returns copies of the whole disk, one from before each change of the disk since the last call of this function.
    /// Call [`Memory::power_cut`] on each copy before use.
    pub fn copies(&self) -> Vec<Memory> {
        let copies = self.state().copies.as_mut().map(std::mem::take).unwrap_or_default();
        let disk = |state| Memory { path: self.path.clone(), state: Arc::new(Mutex::new(state)) };
        copies.into_iter().map(disk).collect()
    }

    /// Calls `fault` before every operation from now on. An error that `fault` returns becomes the result of the
    /// operation.
    pub fn inject(&self, fault: impl FnMut(Operation, &str) -> Option<io::Error> + Send + 'static) {
        self.state().fault = Some(Box::new(fault));
    }

    /// Stops fault injection. Data lost by an earlier failed sync is not restored.
    pub fn heal(&self) {
        self.state().fault = None;
    }

    /// Sets the capacity of the disk to `capacity` bytes.
    pub fn set_capacity(&self, capacity: u64) {
        self.state().capacity = capacity;
    }

    /// Cuts the power and turns it on again. Synced data survive. For each change that is not synced, the disk calls
    /// `choose` with a bound. `choose` returns a number below the bound, which determines what survives. Handles that
    /// were open return `EIO` from now on, and their locks are released. Fault injection stays active.
    pub fn power_cut(&self, choose: &mut dyn FnMut(u64) -> u64) {
        let mut state = self.state();
        let state = &mut *state;
        let mut tree = std::mem::take(&mut state.durable);
        for pending in std::mem::take(&mut state.pending) {
            if choose(2) == 1 {
                apply(&mut tree, pending.change);
            }
        }
        let whole = tree.clone();
        tree.retain(|path, _| ancestors(path).all(|folder| whole.get(folder) == Some(&Entry::Folder)));
        state.nodes.retain(|id, _| tree.values().any(|entry| *entry == Entry::File(*id)));
        for node in state.nodes.values_mut() {
            node.power_cut(choose);
            (node.open, node.linked, node.locked) = (0, true, false);
        }
        state.pages = state.nodes.values().map(Node::pages).sum();
        (state.now, state.durable) = (tree.clone(), tree);
        state.life += 1;
        (state.dies_at, state.dead) = (None, false);
    }

    /// Ends the process that uses the disk, as `kill -9` does: all changes survive, synced or not. Handles that were
    /// open return `EIO` from now on, and their locks are released.
    pub fn kill(&self) {
        let mut state = self.state();
        let state = &mut *state;
        state.life += 1;
        state.nodes.values_mut().for_each(|node| (node.open, node.locked) = (0, false));
        state.sweep();
        state.pages = state.nodes.values().filter(|node| node.linked).map(Node::pages).sum();
    }

    /// Corrupts one byte of a file durably and without an error, as a failing disk may do. Returns whether the file has
    /// a byte at this offset.
    pub fn spoil(&self, path: &str, offset: u64, xor: u8) -> bool {
        let mut state = self.state();
        let Some(Entry::File(id)) = state.now.get(path).copied() else { return false };
        state.nodes.get_mut(&id).is_some_and(|node| node.spoil(offset, xor))
    }

    /// Returns the paths of all files, sorted.
    pub fn files(&self) -> Vec<String> {
        let state = self.state();
        state.now.iter().filter(|(_, entry)| **entry != Entry::Folder).map(|(path, _)| path.clone()).collect()
    }
}

/// Returns the parent folders of a path, from the outermost to the innermost, without the root directory of the store.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

fn folder_of(path: &str) -> &str {
    path.rfind('/').map_or("", |at| &path[..at])
}

fn apply(tree: &mut BTreeMap<String, Entry>, change: Change) {
    match change {
        Change::Set(path, entry) => drop(tree.insert(path, entry)),
        Change::Remove(path) => drop(tree.remove(&path)),
        Change::Rename(from, to) => {
            if let Some(entry) = tree.remove(&from) {
                tree.insert(to, entry);
            }
        }
    }
}

impl State {
    /// Counts an operation. Returns an error if the injected fault makes the operation fail, or if the disk has died.
    fn step(&mut self, operation: Operation, path: &str) -> io::Result<()> {
        if operation.is_change() {
            self.dead |= self.dies_at.is_some_and(|at| self.changes >= at);
            self.changes += u64::from(!self.dead);
            if self.copies.is_some() && !self.dead {
                let copy = self.copy();
                self.copies.get_or_insert_default().push(copy);
            }
        }
        if self.dead {
            return Err(Errno::IO.into());
        }
        match self.fault.as_mut().and_then(|fault| fault(operation, path)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn find(&self, path: &str) -> Option<Entry> {
        if path.is_empty() { Some(Entry::Folder) } else { self.now.get(path).copied() }
    }

    fn need_folder(&self, path: &str) -> io::Result<()> {
        match self.find(path) {
            Some(Entry::Folder) => Ok(()),
            Some(Entry::File(_)) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn file(&self, path: &str) -> io::Result<u64> {
        match self.find(path) {
            Some(Entry::File(id)) => Ok(id),
            Some(Entry::Folder) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn note(&mut self, folder: &str, change: Change) {
        self.pending.push(Pending { folder: folder.to_owned(), change });
    }

    /// Marks a file as unlinked (without a name). Frees the pages of the file if no handle of the file is open.
    fn unlink(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.linked = false;
        if node.open == 0 {
            self.pages -= node.pages();
        }
    }

    /// Removes from the disk every file that has no name and no open handle, unless a power cut could restore a name of
    /// the file.
    fn sweep(&mut self) {
        let (durable, pending) = (&self.durable, &self.pending);
        let named = |id: u64| {
            let entry = Entry::File(id);
            let set = |p: &Pending| matches!(&p.change, Change::Set(_, e) if *e == entry);
            durable.values().any(|e| *e == entry) || pending.iter().any(set)
        };
        self.nodes.retain(|id, node| node.linked || node.open > 0 || named(*id));
    }

    fn sync_folder(&mut self, path: &str) {
        let mut removed = false;
        for pending in std::mem::take(&mut self.pending) {
            if pending.folder != path {
                self.pending.push(pending);
            } else {
                removed |= !matches!(pending.change, Change::Set(..));
                apply(&mut self.durable, pending.change);
            }
        }
        if removed {
            self.sweep();
        }
    }

    fn open(&mut self, id: u64) -> io::Result<u64> {
        let node = self.nodes.get_mut(&id).ok_or(Errno::NOENT)?;
        node.open += 1;
        Ok(self.life)
    }

    fn make_folder(&mut self, path: &str) -> io::Result<()> {
        for folder in ancestors(path).chain([path]).filter(|p| !p.is_empty()) {
            match self.find(folder) {
                Some(Entry::Folder) => {}
                Some(Entry::File(_)) => return Err(Errno::NOTDIR.into()),
                None => {
                    self.now.insert(folder.to_owned(), Entry::Folder);
                    self.note(folder_of(folder), Change::Set(folder.to_owned(), Entry::Folder));
                }
            }
        }
        Ok(())
    }
}

impl Disk for Memory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn prepare(&self) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.step(Operation::Open, path)?;
        let id = state.file(path)?;
        let life = state.open(id)?;
        Ok(Box::new(MemoryFile { state: self.state.clone(), id, life, path: path.to_owned() }))
    }

    fn create_new(&self, path: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.step(Operation::Create, path)?;
        state.need_folder(folder_of(path))?;
        if state.find(path).is_some() {
            return Err(Errno::EXIST.into());
        }
        let id = state.next;
        state.next += 1;
        state.nodes.insert(id, Node::new());
        state.now.insert(path.to_owned(), Entry::File(id));
        state.note(folder_of(path), Change::Set(path.to_owned(), Entry::File(id)));
        let life = state.open(id)?;
        Ok(Box::new(MemoryFile { state: self.state.clone(), id, life, path: path.to_owned() }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::Remove, path)?;
        let id = state.file(path)?;
        state.now.remove(path);
        state.note(folder_of(path), Change::Remove(path.to_owned()));
        state.unlink(id);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::Rename, from)?;
        let id = state.file(from)?;
        if folder_of(from) != folder_of(to) {
            return Err(Errno::XDEV.into());
        }
        match state.find(to) {
            Some(Entry::Folder) => return Err(Errno::ISDIR.into()),
            Some(Entry::File(old)) if old != id => state.unlink(old),
            _ => {}
        }
        state.now.remove(from);
        state.now.insert(to.to_owned(), Entry::File(id));
        state.note(folder_of(from), Change::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn make_folder(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::MakeFolder, path)?;
        state.make_folder(path)
    }

    fn is_folder(&self, path: &str) -> bool {
        self.state().find(path) == Some(Entry::Folder)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.step(Operation::List, path)?;
        state.need_folder(path)?;
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let below =
            state.now.range(prefix.clone()..).map(|(name, _)| name).take_while(|name| name.starts_with(&prefix));
        Ok(below.map(|name| &name[prefix.len()..]).filter(|name| !name.contains('/')).map(str::to_owned).collect())
    }

    fn sync_folder(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        if let Err(error) = state.step(Operation::SyncFolder, path) {
            state.dead = true;
            return Err(error);
        }
        state.need_folder(path)?;
        state.sync_folder(path);
        Ok(())
    }

    fn capacity(&self) -> io::Result<(u64, u64)> {
        let state = self.state();
        Ok((state.capacity, state.capacity.saturating_sub(state.pages * PAGE)))
    }

    fn device(&self) -> Option<u64> {
        None
    }

    fn open_files(&self) -> usize {
        OPEN_OBJECTS_MAX
    }
}

struct MemoryFile {
    state: Arc<Mutex<State>>,
    id: u64,
    life: u64,
    path: String,
}

impl MemoryFile {
    /// Counts an operation on the open file, and executes the operation unless fault injection makes it fail.
    fn with<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&mut Node, &mut Budget) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        if state.life != self.life {
            return Err(Errno::IO.into());
        }
        let stepped = state.step(operation, &self.path);
        let node = state.nodes.get_mut(&self.id).ok_or(Errno::IO)?;
        if let Err(error) = stepped {
            if operation == Operation::Sync {
                node.lose();
            }
            return Err(error);
        }
        let mut budget = Budget { pages: state.pages, most: state.capacity / PAGE };
        let before = node.pages();
        let result = act(node, &mut budget);
        state.pages = state.pages + node.pages() - before;
        result
    }
}

/// The number of pages in use, and the capacity of the disk in pages.
struct Budget {
    pages: u64,
    most: u64,
}

impl Budget {
    fn take(&mut self) -> bool {
        let fits = self.pages < self.most;
        self.pages += u64::from(fits);
        fits
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(Operation::Read, |node, _| Ok(node.read(buffer, offset)))
    }

    fn write_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<usize> {
        self.with(Operation::Write, |node, budget| {
            let mut take = || budget.take();
            let mut done = node.write(first, offset, &mut take);
            if done == first.len() {
                done += node.write(second, offset + done as u64, &mut take);
            }
            if done == 0 && !(first.is_empty() && second.is_empty()) { Err(Errno::NOSPC.into()) } else { Ok(done) }
        })
    }

    fn copy_from(&self, _: &dyn DiskFile, _: u64, _: u64, _: u64) -> io::Result<u64> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn measure(&self) -> io::Result<Measure> {
        self.with(Operation::Open, |node, _| Ok(Measure { len: node.len(), allocated: node.pages() * PAGE }))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(Operation::SetLen, |node, _| {
            node.set_len(len);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(Operation::Sync, |node, _| {
            node.sync();
            Ok(())
        })
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.with(Operation::Read, |node, _| Ok(node.next_data(offset)))
    }

    fn next_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.with(Operation::Read, |node, _| Ok(node.next_hole(offset)))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.with(Operation::Punch, |node, _| {
            node.punch(offset, len);
            Ok(())
        })
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.with(Operation::Reserve, |node, budget| {
            if node.reserve(offset, len, &mut || budget.take()) { Ok(()) } else { Err(Errno::NOSPC.into()) }
        })
    }

    fn is_stored(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.with(Operation::Read, |node, _| Ok(node.is_stored(offset, len)))
    }

    fn forget(&self, _: u64, _: u64) {}

    fn lock(&self) -> io::Result<bool> {
        self.with(Operation::Open, |node, _| Ok(!std::mem::replace(&mut node.locked, true)))
    }

    fn as_file(&self) -> Option<&std::fs::File> {
        None
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let Some(node) = state.nodes.get_mut(&self.id).filter(|_| state.life == self.life) else { return };
        node.open -= 1;
        if node.open == 0 {
            // Release the file's lock only when its last handle is dropped. A real file system releases the lock when
            // the handle that took the lock is closed. Both rules have the same effect here, because the iod opens each
            // file that it locks only once.
            node.locked = false;
            if !node.linked {
                state.pages -= node.pages();
            }
        }
    }
}
