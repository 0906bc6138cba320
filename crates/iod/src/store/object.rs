//! One object: its file, what is known about it in memory, and the operations on it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{FallocateFlags, SeekFrom};
use types::limits::FILE_SIZE_MAX;
use types::{FileId, Generation, Status};
use wire::native::{Extent, Failure, PIECES_MAX, Piece, PieceKind, SeekWhat, WriteExtent};

use super::head::{HEAD_LEN, Head, SECTOR};
use super::shards::{Leaf, Target};
use super::{Store, failure};
use crate::counters::Counters;
use crate::lock::{lock, read, write};

/// An object that exists or not. Reads, writes and syncs share it; what changes its identity has it alone.
pub(crate) struct Object {
    id: FileId,
    state: RwLock<State>,
}

enum State {
    /// Nobody looked yet.
    Unopened,
    /// There is no such object.
    Absent,
    /// Its file is open.
    Open(Arc<Open>),
    /// There is a file, but not one to be touched.
    Damaged(String),
}

/// An open object file. The iod is the only one that changes it, so size and dense prefix are known without asking.
pub(crate) struct Open {
    pub(crate) file: File,
    generation: AtomicU32,
    created: u64,
    /// Bytes of the object. Grows under the shared lock, shrinks under the exclusive one.
    size: AtomicU64,
    /// No hole lies before this offset. Grows and shrinks like `size`; may be larger than it for a moment.
    dense: AtomicU64,
    /// Changes finished so far.
    written: AtomicU64,
    /// How many of them are durable.
    durable: AtomicU64,
    /// Held while syncing, so that waiting syncs share the next one.
    syncing: Mutex<()>,
    /// A sync failed: nothing may be reported as durable any more.
    failed: AtomicBool,
    /// `sendfile` met an error, which it cannot report to the peer: read through memory instead.
    pub(crate) read_by_copy: AtomicBool,
    leaf: Arc<Leaf>,
    /// The folder change that must be durable for this file to be found.
    entry: u64,
}

/// What READ found: where the bytes of the data pieces are.
#[derive(Default)]
pub(crate) struct ReadPlan {
    pub(crate) size: u64,
    pub(crate) pieces: Vec<Piece>,
    /// Object offset and length of runs of data, neighbouring pieces joined.
    pub(crate) runs: Vec<(u64, u64)>,
    pub(crate) data_len: u64,
}

impl ReadPlan {
    fn begin(&mut self, size: u64) {
        self.size = size;
        self.pieces.clear();
        self.runs.clear();
        self.data_len = 0;
    }

    fn push(&mut self, kind: PieceKind, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        // Extents, and so pieces, are shorter than 4 GiB.
        self.pieces.push(Piece { kind, len: len as u32, crc32c: 0 });
        if kind == PieceKind::Data {
            self.data_len += len;
            match self.runs.last_mut() {
                Some((start, run)) if *start + *run == offset => *run += len,
                _ => self.runs.push((offset, len)),
            }
        }
    }
}

impl Object {
    /// An object that nobody looked at yet.
    pub(crate) fn new(id: FileId) -> Self {
        Object { id, state: RwLock::new(State::Unopened) }
    }

    /// Whether it has changes that are neither durable nor given up.
    pub(crate) fn is_dirty(&self) -> bool {
        match &*read(&self.state) {
            State::Open(open) => open.is_dirty(),
            _ => false,
        }
    }

    /// Locks it for sharing, after looking for its file.
    fn shared(&self, store: &Store) -> Result<RwLockReadGuard<'_, State>, Failure> {
        loop {
            let state = read(&self.state);
            if !matches!(*state, State::Unopened) {
                return Ok(state);
            }
            drop(state);
            drop(self.exclusive(store)?);
        }
    }

    /// Locks it for one alone, after looking for its file.
    fn exclusive(&self, store: &Store) -> Result<RwLockWriteGuard<'_, State>, Failure> {
        let mut state = write(&self.state);
        if matches!(*state, State::Unopened) {
            *state = self.look(store)?;
        }
        Ok(state)
    }

    fn look(&self, store: &Store) -> Result<State, Failure> {
        let file = match store.open_object(self.id) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Absent),
            Err(error) => return Err(failure(&error, "open the object")),
        };
        let len = file.metadata().map_err(|e| failure(&e, "look at the object"))?.len();
        let mut bytes = vec![0; len.min(HEAD_LEN) as usize];
        file.read_exact_at(&mut bytes, 0).map_err(|e| failure(&e, "read the head of the object"))?;
        match Head::decode(&bytes, store.fsid(), self.id) {
            Ok(None) => Ok(State::Absent),
            Ok(Some(head)) => {
                Counters::add(&store.counters().objects_opened, 1);
                let open = Open::new(file, head, store.leaf(self.id), Leaf::FOUND, len - HEAD_LEN);
                open.failed.store(store.has_failed(self.id), Ordering::Release);
                Ok(State::Open(Arc::new(open)))
            }
            Err(reason) => {
                tracing::error!(object = self.id.0, reason, "object is damaged; it will not be touched");
                Ok(State::Damaged(reason))
            }
        }
    }

    /// Makes the file of an absent object.
    fn create(&self, store: &Store, generation: Generation) -> Result<Arc<Open>, Failure> {
        let head = Head { fsid: store.fsid(), object: self.id, generation, created: store.now() };
        let (file, leaf) = store.create_object(self.id, &head).map_err(|e| failure(&e, "create the object"))?;
        let entry = leaf.changed();
        let open = Open::new(file, head, leaf, entry, 0);
        open.changed();
        open.failed.store(store.has_failed(self.id), Ordering::Release);
        Counters::add(&store.counters().objects_created, 1);
        Ok(Arc::new(open))
    }

    /// Finds what lies at `extents` and puts it into `plan`; answers the file when there are data to read.
    pub(crate) fn plan_read(
        &self,
        store: &Store,
        generation: Generation,
        extents: &[Extent],
        plan: &mut ReadPlan,
    ) -> Result<Option<Arc<Open>>, Failure> {
        let state = self.shared(store)?;
        let open = state.checked(generation)?;
        plan.begin(open.map_or(0, |o| o.size()));
        for (index, extent) in extents.iter().enumerate() {
            let end = extent.offset.checked_add(u64::from(extent.len)).ok_or(Status::Inval)?;
            let inside = end.min(plan.size).max(extent.offset);
            if let Some(open) = open {
                // Each extent behind this one needs two pieces at least.
                let spare = PIECES_MAX - 2 * (extents.len() - index - 1);
                open.plan(plan, extent.offset, inside, spare, store.counters())?;
            }
            plan.push(PieceKind::Beyond, inside, end - inside);
        }
        Ok(open.filter(|_| plan.data_len > 0).cloned())
    }

    /// Writes the extents, whose bytes are the slices of `data` back to back; answers the size afterwards.
    ///
    /// Overlapping extents are written in their order. After an error any part may have been written.
    pub(crate) fn write(
        &self,
        store: &Store,
        generation: Generation,
        extents: &[WriteExtent],
        data: [&[u8]; 2],
    ) -> Result<u64, Failure> {
        if extents.iter().any(|e| e.offset.checked_add(u64::from(e.len)).is_none_or(|end| end > FILE_SIZE_MAX)) {
            return Err(Status::FBig.into());
        }
        loop {
            let state = self.shared(store)?;
            if let Some(open) = state.checked(generation)? {
                open.check_failed()?;
                store.take_room(open.growth(extents))?;
                return open.write(extents, data, store.counters());
            }
            drop(state);
            if extents.iter().all(|e| e.len == 0) {
                return Ok(0);
            }
            let mut state = self.exclusive(store)?;
            if state.checked(generation)?.is_none() {
                store.take_room(HEAD_LEN)?;
                *state = State::Open(self.create(store, generation)?);
            }
        }
    }

    /// Makes everything that was written durable; answers the size.
    pub(crate) fn commit(&self, store: &Store, generation: Generation) -> Result<u64, Failure> {
        let open = self.shared(store)?.checked(generation)?.cloned();
        let Some(open) = open else { return Ok(0) };
        open.sync(store, self.id)?;
        Ok(open.size())
    }

    /// As [`Object::commit`], on behalf of the iod itself.
    pub(crate) fn sync(&self, store: &Store) -> Result<(), Failure> {
        let open = match &*self.shared(store)? {
            State::Open(open) => open.clone(),
            _ => return Ok(()),
        };
        open.sync(store, self.id)
    }

    /// Size and bytes on disk.
    pub(crate) fn size(&self, store: &Store, generation: Generation) -> Result<(u64, u64), Failure> {
        let state = self.shared(store)?;
        let Some(open) = state.checked(generation)? else { return Ok((0, 0)) };
        let stat = rustix::fs::fstat(&open.file).map_err(|e| failure(&e.into(), "look at the object"))?;
        Ok((open.size(), stat.st_blocks as u64 * 512))
    }

    /// Cuts or extends it, durably.
    pub(crate) fn truncate(&self, store: &Store, generation: Generation, size: u64) -> Result<(), Failure> {
        if size > FILE_SIZE_MAX {
            return Err(Status::FBig.into());
        }
        let mut state = self.exclusive(store)?;
        let open = match state.checked(generation)? {
            Some(open) => open.clone(),
            None if size == 0 => return Ok(()),
            None => self.create(store, generation)?,
        };
        *state = State::Open(open.clone());
        open.check_failed()?;
        if open.size() != size {
            open.file.set_len(HEAD_LEN + size).map_err(|e| failure(&e, "change the size of the object"))?;
            open.size.store(size, Ordering::Release);
            open.dense.fetch_min(size, Ordering::AcqRel);
            open.changed();
        }
        drop(state);
        open.sync(store, self.id)
    }

    /// Deletes it, durably, damaged or not.
    pub(crate) fn remove(&self, store: &Store, generation: Generation) -> Result<(), Failure> {
        let mut state = self.exclusive(store)?;
        if !matches!(*state, State::Damaged(_)) {
            state.checked(generation)?;
        }
        let removed = store.remove_object(self.id).map_err(|e| failure(&e, "remove the object"))?;
        *state = State::Absent;
        drop(state);
        store.forget_failure(self.id);
        let leaf = store.leaf(self.id);
        if removed {
            Counters::add(&store.counters().objects_removed, 1);
            store.sync_leaf(&leaf, leaf.changed())
        } else if leaf.exists() {
            // An earlier attempt may have removed it and stopped before its sync.
            store.sync_leaf(&leaf, Leaf::FOUND)
        } else {
            Ok(())
        }
    }

    /// Makes a hole, durably; the size stays.
    pub(crate) fn punch(&self, store: &Store, generation: Generation, offset: u64, len: u64) -> Result<(), Failure> {
        let end = offset.checked_add(len).ok_or(Status::Inval)?;
        let state = self.exclusive(store)?;
        let Some(open) = state.checked(generation)?.cloned() else { return Ok(()) };
        open.check_failed()?;
        let end = end.min(open.size());
        if offset < end {
            open.dense.fetch_min(offset, Ordering::AcqRel);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = rustix::fs::fallocate(&open.file, flags, HEAD_LEN + offset, end - offset);
            open.changed();
            match punched {
                Ok(()) => {}
                Err(rustix::io::Errno::OPNOTSUPP) => open.write_zeros(offset, end)?,
                Err(error) => return Err(failure(&error.into(), "punch a hole")),
            }
        }
        drop(state);
        open.sync(store, self.id)
    }

    /// Finds the next data or hole.
    pub(crate) fn seek(
        &self,
        store: &Store,
        generation: Generation,
        offset: u64,
        what: SeekWhat,
    ) -> Result<Option<u64>, Failure> {
        let state = self.shared(store)?;
        let Some(open) = state.checked(generation)? else { return Ok(None) };
        let size = open.size();
        if offset >= size {
            return Ok(None);
        }
        let dense = open.dense().min(size);
        match what {
            SeekWhat::Data if offset < dense => Ok(Some(offset)),
            SeekWhat::Data => Ok(open.next_data(offset, store.counters())?.filter(|at| *at < size)),
            SeekWhat::Hole => Ok(Some(open.next_hole(offset.max(dense), store.counters())?.min(size))),
        }
    }

    /// Refuses capabilities older than `fence` from now on, durably.
    pub(crate) fn fence(&self, store: &Store, generation: Generation, fence: Generation) -> Result<(), Failure> {
        let mut state = self.exclusive(store)?;
        let open = match state.checked(generation)? {
            Some(open) => open.clone(),
            None => self.create(store, fence)?,
        };
        *state = State::Open(open.clone());
        open.check_failed()?;
        if open.generation() < fence {
            let head = Head { fsid: store.fsid(), object: self.id, generation: fence, created: open.created };
            let bytes = head.encode();
            open.file.write_all_at(&bytes[..SECTOR], 0).map_err(|e| failure(&e, "write the head of the object"))?;
            open.generation.store(fence.0, Ordering::Release);
            open.changed();
        }
        drop(state);
        open.sync(store, self.id)
    }
}

impl State {
    /// The open object, `None` when there is none; refuses damaged ones and capabilities of an older generation.
    fn checked(&self, generation: Generation) -> Result<Option<&Arc<Open>>, Failure> {
        match self {
            State::Open(open) if generation < open.generation() => Err(Status::Fenced.into()),
            State::Open(open) => Ok(Some(open)),
            State::Absent | State::Unopened => Ok(None),
            State::Damaged(reason) => Err(Failure { status: Status::Corrupt, detail: Some(reason.clone()) }),
        }
    }
}

impl Open {
    fn new(file: File, head: Head, leaf: Arc<Leaf>, entry: u64, size: u64) -> Self {
        Open {
            file,
            generation: AtomicU32::new(head.generation.0),
            created: head.created,
            size: AtomicU64::new(size),
            dense: AtomicU64::new(0),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            syncing: Mutex::new(()),
            failed: AtomicBool::new(false),
            read_by_copy: AtomicBool::new(false),
            leaf,
            entry,
        }
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn dense(&self) -> u64 {
        self.dense.load(Ordering::Acquire)
    }

    fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    fn is_dirty(&self) -> bool {
        self.durable.load(Ordering::Acquire) < self.written.load(Ordering::Acquire)
            && !self.failed.load(Ordering::Acquire)
    }

    /// Notes a finished change: only then may a sync count it as covered.
    fn changed(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    fn check_failed(&self) -> Result<(), Failure> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Failure { status: Status::Io, detail: Some("an earlier sync of this object failed".into()) })
    }

    /// Says what lies between `offset` and `end`, both within the size, with at most `spare` pieces in all.
    fn plan(
        &self,
        plan: &mut ReadPlan,
        offset: u64,
        end: u64,
        spare: usize,
        counters: &Counters,
    ) -> Result<(), Failure> {
        let mut at = offset;
        while at < end {
            let mut dense = self.dense();
            if at >= dense {
                // What was a hole at the edge of the dense prefix may have been filled from behind.
                dense = self.next_hole(dense, counters)?;
                self.dense.fetch_max(dense, Ordering::AcqRel);
            }
            let (kind, until) = if at < dense {
                (PieceKind::Data, dense)
            } else {
                match self.next_data(at, counters)? {
                    Some(data) if data == at => (PieceKind::Data, self.next_hole(at, counters)?),
                    Some(data) => (PieceKind::Hole, data),
                    None => (PieceKind::Hole, end),
                }
            };
            // Out of pieces: the rest goes as data, which for holes are zeros.
            let full = plan.pieces.len() + 2 >= spare;
            let (kind, until) = if full { (PieceKind::Data, end) } else { (kind, until.min(end)) };
            plan.push(kind, at, until - at);
            at = until;
        }
        Ok(())
    }

    /// The first hole at or behind `offset`, which may be the end.
    fn next_hole(&self, offset: u64, counters: &Counters) -> Result<u64, Failure> {
        Counters::add(&counters.seeks, 1);
        match rustix::fs::seek(&self.file, SeekFrom::Hole(HEAD_LEN + offset)) {
            Ok(at) => Ok(at.saturating_sub(HEAD_LEN)),
            Err(rustix::io::Errno::NXIO) => Ok(offset),
            Err(error) => Err(failure(&error.into(), "look for holes")),
        }
    }

    /// The first data at or behind `offset`.
    fn next_data(&self, offset: u64, counters: &Counters) -> Result<Option<u64>, Failure> {
        Counters::add(&counters.seeks, 1);
        match rustix::fs::seek(&self.file, SeekFrom::Data(HEAD_LEN + offset)) {
            Ok(at) => Ok(Some(at.saturating_sub(HEAD_LEN))),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(error) => Err(failure(&error.into(), "look for data")),
        }
    }

    /// Reads the runs of a plan into `buffer`. Bytes cut off since the plan was made read as zeros.
    pub(crate) fn read(&self, runs: &[(u64, u64)], mut buffer: &mut [u8]) -> Result<(), Failure> {
        for (offset, len) in runs {
            let (now, rest) = buffer.split_at_mut(*len as usize);
            let mut done = 0;
            while done < now.len() {
                match self.file.read_at(&mut now[done..], HEAD_LEN + offset + done as u64) {
                    Ok(0) => {
                        now[done..].fill(0);
                        break;
                    }
                    Ok(n) => done += n,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(failure(&error, "read the object")),
                }
            }
            buffer = rest;
        }
        Ok(())
    }

    /// Bytes of the extents that may need new disk space: those not known to have some.
    fn growth(&self, extents: &[WriteExtent]) -> u64 {
        let dense = self.dense().min(self.size());
        let end = |extent: &WriteExtent| extent.offset + u64::from(extent.len);
        extents.iter().map(|extent| end(extent).saturating_sub(dense.max(extent.offset))).sum()
    }

    fn write(&self, extents: &[WriteExtent], data: [&[u8]; 2], counters: &Counters) -> Result<u64, Failure> {
        let [mut first, mut second] = data;
        for extent in extents {
            let len = extent.len as usize;
            let (a, rest) = first.split_at(len.min(first.len()));
            let (b, behind) = second.split_at(len - a.len());
            (first, second) = (rest, behind);
            let written = self.write_at(extent.offset, a, b);
            self.changed();
            if let Err(error) = written {
                if let Ok(meta) = self.file.metadata() {
                    self.size.fetch_max(meta.len().saturating_sub(HEAD_LEN), Ordering::AcqRel);
                }
                return Err(failure(&error, "write the object"));
            }
            let end = extent.offset + u64::from(extent.len);
            if len > 0 {
                self.size.fetch_max(end, Ordering::AcqRel);
                if extent.offset <= self.dense() {
                    self.dense.fetch_max(end, Ordering::AcqRel);
                }
            }
            Counters::add(&counters.bytes_written, len as u64);
        }
        Ok(self.size())
    }

    /// Writes `a` and behind it `b`.
    fn write_at(&self, offset: u64, mut a: &[u8], mut b: &[u8]) -> io::Result<()> {
        let mut at = HEAD_LEN + offset;
        while !a.is_empty() || !b.is_empty() {
            let result = match (a.is_empty(), b.is_empty()) {
                (false, false) => rustix::io::pwritev(&self.file, &[io::IoSlice::new(a), io::IoSlice::new(b)], at),
                (false, true) => rustix::io::pwrite(&self.file, a, at),
                _ => rustix::io::pwrite(&self.file, b, at),
            };
            let n = match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => n,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            at += n as u64;
            let from_a = n.min(a.len());
            a = &a[from_a..];
            b = &b[n - from_a..];
        }
        Ok(())
    }

    fn write_zeros(&self, offset: u64, end: u64) -> Result<(), Failure> {
        let zeros = vec![0; (end - offset).min(1 << 20) as usize];
        let mut at = offset;
        while at < end {
            let now = (end - at).min(zeros.len() as u64);
            self.write_at(at, &zeros[..now as usize], &[]).map_err(|e| failure(&e, "clear a range"))?;
            at += now;
        }
        Ok(())
    }

    /// Makes all finished changes and the way to the file durable. Syncs that wait for one share the next.
    fn sync(&self, store: &Store, id: FileId) -> Result<(), Failure> {
        let counters = store.counters();
        let target = self.written.load(Ordering::Acquire);
        self.check_failed()?;
        if self.durable.load(Ordering::Acquire) < target {
            let _one = lock(&self.syncing);
            self.check_failed()?;
            if self.durable.load(Ordering::Acquire) < target {
                let covered = self.written.load(Ordering::Acquire);
                Counters::add(&counters.syncs_object, 1);
                if let Err(error) = store.sync_now(&self.file, Target::Object) {
                    // The kernel drops what it could not write: a later success would prove nothing.
                    self.failed.store(true, Ordering::Release);
                    store.note_failure(id);
                    Counters::add(&counters.syncs_failed, 1);
                    tracing::error!(object = id.0, %error, "sync failed; the object takes no more writes");
                    return Err(failure(&error, "sync the object"));
                }
                self.durable.store(covered, Ordering::Release);
            } else {
                Counters::add(&counters.syncs_shared, 1);
            }
        }
        store.sync_leaf(&self.leaf, self.entry)
    }
}
