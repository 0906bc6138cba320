//! One object of an iod: its open file, its state in memory, and the operations on it.

mod open;
mod short_circuit;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;
use types::limits::FILE_SIZE_MAX;
use types::{Generation, ObjectId, Status};
use wire::native::{
    Extent, Failure, GENERATION_GONE, HeadState, PIECES_MAX, PieceKind, PullExtent, SeekWhat, WriteExtent,
};

use super::head::{BadHead, HEAD_LEN, Head, SECTOR};
use super::shards::Leaf;
use super::{Store, failure};
use crate::counters::Counters;
use crate::disks::{DiskFile, read_full, write_all};
use crate::lock::{read, write};
pub(crate) use open::{Open, ReadPlan};
pub(crate) use short_circuit::ShortCircuitFile;

/// An object of the store, which may not exist on disk. Reads, writes and syncs take the lock of the object shared.
/// Requests that create or remove the object, or change its size or generation, take this lock exclusively.
pub(crate) struct Object {
    id: ObjectId,
    state: RwLock<State>,
}

enum State {
    /// No request has tried to open the file of the object yet.
    Unopened,
    /// The object has no file, so it does not exist.
    Absent,
    /// The object exists, and its file is open.
    Open(Arc<Open>),
    /// The object file is damaged, or has the header of another object. Requests fail with `Corrupt`.
    Damaged(BadHead),
}

/// Whether an object exists and its file is valid; a scrub checks this.
pub(crate) enum Presence {
    /// The object does not exist.
    Absent,
    /// The object exists, with its open file.
    Open(Arc<Open>),
    /// The object file exists but is damaged, or has the header of another object.
    Damaged,
}

impl Object {
    /// Returns the state in memory of an object whose object file the iod has not opened yet. The object file may not
    /// exist.
    pub(crate) fn new(id: ObjectId) -> Self {
        Object { id, state: RwLock::new(State::Unopened) }
    }

    /// Returns whether the object has changes that are not durable yet. Changes that a failed sync has lost do not
    /// count.
    pub(crate) fn is_dirty(&self) -> bool {
        match &*read(&self.state) {
            State::Open(open) => open.is_dirty(),
            _ => false,
        }
    }

    /// Opens the object file if no request has tried that yet, and takes the lock of the object shared.
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

    /// Takes the lock of the object exclusively, and opens the object file if no request has tried that yet.
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
        let len = file.measure().map_err(|e| failure(&e, "look at the object"))?.len;
        let mut bytes = vec![0; len.min(HEAD_LEN) as usize];
        let read = read_full(&*file, &mut bytes, 0).map_err(|e| failure(&e, "read the head of the object"))?;
        match Head::decode(&bytes[..read], store.fsid(), self.id) {
            Ok(None) => Ok(State::Absent),
            Ok(Some(head)) => self.found(store, file, head, len - HEAD_LEN),
            Err(bad) => {
                tracing::error!(object = %self.id, reason = bad.reason, "object is damaged; the iod does not change it");
                Ok(State::Damaged(bad))
            }
        }
    }

    /// Returns the state of an object whose file exists, with this header and with `size` bytes after the header.
    fn found(&self, store: &Store, file: Box<dyn DiskFile>, head: Head, size: u64) -> Result<State, Failure> {
        let leaf = store.leaf(self.id);
        let mut entry = Leaf::FOUND;
        let mut sums = None;
        if let Some(nonce) = head.nonce {
            let (opened, made) =
                store.open_sums(self.id, nonce, false).map_err(|e| failure(&e, "open the checksums"))?;
            if made {
                entry = leaf.changed();
            }
            // Bytes become durable before their checksum. So if a checksum covers bytes beyond the end of the file, the
            // object has lost bytes.
            let end = opened.end().map_err(|e| failure(&e, "read the checksums"))?;
            if let Some(end) = end.filter(|end| *end > size) {
                let reason = format!("the object has {size} bytes, but {end} bytes were committed");
                tracing::error!(object = %self.id, reason, "object is damaged; the iod does not change it");
                return Ok(State::Damaged(BadHead::damaged(reason)));
            }
            sums = Some(opened);
        }
        Counters::add(&store.counters().objects_opened, 1);
        let open = Open::new(file, sums, head, (leaf, entry), size);
        open.failed.store(store.has_failed(self.id), Ordering::Release);
        Ok(State::Open(Arc::new(open)))
    }

    /// Creates the file of an object that does not exist.
    fn create(&self, store: &Store, generation: Generation) -> Result<Arc<Open>, Failure> {
        // Hold this lock from the check of the tombstone until the file of a data log has its name, so that REMOVE_LOGS
        // finds the file.
        let _creating = self.id.is_of_logs().then(|| read(&store.creating_logs));
        if store.is_gone(self.id) {
            return Err(Status::Fenced.into());
        }
        let fail = |e: io::Error| failure(&e, "create the object");
        let nonce = store.new_nonce().map_err(fail)?;
        let head = Head { fsid: store.fsid(), object: self.id, generation, created: store.now(), nonce };
        let (file, leaf) = store.create_object(self.id, &head).map_err(fail)?;
        let sums = nonce.map(|nonce| store.open_sums(self.id, nonce, true)).transpose();
        let sums = sums.map_err(|error| {
            // Without a checksum file the object is incomplete, so remove the object file too.
            drop(store.remove_object(self.id));
            fail(error)
        })?;
        let entry = leaf.changed();
        let open = Open::new(file, sums.map(|(sums, _)| sums), head, (leaf, entry), 0);
        open.changed();
        open.failed.store(store.has_failed(self.id), Ordering::Release);
        Counters::add(&store.counters().objects_created, 1);
        Ok(Arc::new(open))
    }

    /// Refuses a reader of an absent object with a tombstone. The file may have moved to other objects, so the reader
    /// must not take the absent object for a hole.
    fn not_removed<'a>(&self, store: &Store, open: Option<&'a Arc<Open>>) -> Result<Option<&'a Arc<Open>>, Failure> {
        if open.is_none() && store.is_gone(self.id) { Err(Status::Fenced.into()) } else { Ok(open) }
    }

    /// Checks that the generation of a capability is valid for the object, without another operation on the object. The
    /// object need not exist.
    pub(crate) fn check(&self, store: &Store, generation: Generation) -> Result<(), Failure> {
        let state = self.shared(store)?;
        self.not_removed(store, state.checked(generation)?).map(drop)
    }

    /// Plans the reply to a READ of `extents`: adds the data, the holes and the ranges beyond the end of the object to
    /// `plan` as pieces. Returns the open file if the reply has data.
    pub(crate) fn plan_read(
        &self,
        store: &Store,
        generation: Generation,
        extents: &[Extent],
        plan: &mut ReadPlan,
    ) -> Result<Option<Arc<Open>>, Failure> {
        let state = self.shared(store)?;
        let open = self.not_removed(store, state.checked(generation)?)?;
        plan.begin(open.map_or(0, |o| o.size()));
        for (index, extent) in extents.iter().enumerate() {
            let end = extent.offset.checked_add(u64::from(extent.len)).ok_or(Status::Inval)?;
            let inside = end.min(plan.size).max(extent.offset);
            if let Some(open) = open {
                // A READ reply has at most `PIECES_MAX` pieces. Leave two of them for each remaining extent: one for
                // its bytes inside the object, one for its bytes past the end.
                let spare = PIECES_MAX - 2 * (extents.len() - index - 1);
                open.plan(plan, extent.offset, inside, spare, store.counters())?;
            }
            plan.push(PieceKind::Beyond, inside, end - inside);
        }
        Ok(open.filter(|_| plan.data_len > 0).cloned())
    }

    /// Writes the extents, whose bytes are the concatenated slices of `data`; returns the size of the object after the
    /// write.
    ///
    /// If extents overlap, the later extent overwrites the earlier one. After an error, any part of the extents may
    /// have been written.
    pub(crate) fn write(
        &self,
        store: &Store,
        generation: Generation,
        (extents, least): (&[WriteExtent], u64),
        data: [&[u8]; 2],
    ) -> Result<u64, Failure> {
        if extents.iter().any(|e| e.offset.checked_add(u64::from(e.len)).is_none_or(|end| end > FILE_SIZE_MAX)) {
            return Err(Status::FBig.into());
        }
        loop {
            let state = self.shared(store)?;
            if let Some(open) = state.checked(generation)? {
                open.check_failed()?;
                is_long_enough(open.size(), least)?;
                open.take_room(store, extents)?;
                let size = open.write(extents, data, store.counters()).inspect_err(|_| open.note_failed_sync(store))?;
                if open.wants_sync() {
                    open.sync(store)?;
                }
                return Ok(size);
            }
            drop(state);
            is_long_enough(0, least)?;
            if extents.iter().all(|e| e.len == 0) {
                return Ok(0);
            }
            self.make(store, generation)?;
        }
    }

    /// Creates the object, unless another thread has created it first.
    fn make(&self, store: &Store, generation: Generation) -> Result<(), Failure> {
        let mut state = self.exclusive(store)?;
        if state.checked(generation)?.is_none() {
            store.take_room(HEAD_LEN)?;
            *state = State::Open(self.create(store, generation)?);
        }
        Ok(())
    }

    /// Makes all earlier writes to the object durable. Returns the durable size of the object in bytes.
    pub(crate) fn commit(&self, store: &Store, generation: Generation) -> Result<u64, Failure> {
        let open = self.shared(store)?.checked(generation)?.cloned();
        let Some(open) = open else { return Ok(0) };
        // Read the size before the sync. The sync may not cover a concurrent write that extends the object, so a size
        // from after the sync may not be durable.
        let size = open.size();
        open.sync(store)?;
        Ok(size.min(open.size()))
    }

    /// Syncs the object as [`Object::commit`] does, but needs no capability, because the iod itself decides to sync.
    pub(crate) fn sync(&self, store: &Store) -> Result<(), Failure> {
        let open = match &*self.shared(store)? {
            State::Open(open) => open.clone(),
            _ => return Ok(()),
        };
        open.sync(store)
    }

    /// Returns whether the object exists and its file is undamaged.
    pub(crate) fn presence(&self, store: &Store) -> Result<Presence, Failure> {
        Ok(match &*self.shared(store)? {
            State::Unopened | State::Absent => Presence::Absent,
            State::Open(open) => Presence::Open(open.clone()),
            State::Damaged(_) => Presence::Damaged,
        })
    }

    /// Returns the size of the object and its allocated disk space, both in bytes.
    pub(crate) fn size(&self, store: &Store, generation: Generation) -> Result<(u64, u64), Failure> {
        let state = self.shared(store)?;
        let Some(open) = state.checked(generation)? else { return Ok((0, 0)) };
        let measure = open.file.measure().map_err(|e| failure(&e, "look at the object"))?;
        let sums = open.sums.as_ref().map_or(Ok(0), |sums| sums.allocated());
        Ok((open.size(), measure.allocated + sums.map_err(|e| failure(&e, "look at the checksums of the object"))?))
    }

    /// Truncates or extends the object to `size`, durably; returns the new size of the object.
    ///
    /// A shorter object is extended to `size`, so that lost bytes at its end can be detected later. But if the local
    /// file system does not support such a large file, a shorter object keeps its size, and the range up to `size`
    /// reads as a hole.
    pub(crate) fn truncate(&self, store: &Store, generation: Generation, size: u64) -> Result<u64, Failure> {
        if size > FILE_SIZE_MAX {
            return Err(Status::FBig.into());
        }
        let mut state = self.exclusive(store)?;
        let open = match state.checked(generation)? {
            Some(open) => open.clone(),
            None if size == 0 => return Ok(0),
            None => self.create(store, generation)?,
        };
        *state = State::Open(open.clone());
        open.check_failed()?;
        if open.size() != size {
            if let Some(sums) = open.sums.as_ref().filter(|_| size < open.size()) {
                open.changed();
                let cut = sums.cut(&*open.file, size, store.counters());
                cut.inspect_err(|_| open.note_failed_sync(store)).map_err(|e| open.log_damage(e))?;
            }
            match open.file.set_len(HEAD_LEN + size) {
                Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge && size > open.size() => {}
                done => {
                    done.map_err(|e| failure(&e, "change the size of the object"))?;
                    open.size.store(size, Ordering::Release);
                    open.dense.fetch_min(size, Ordering::AcqRel);
                    open.changed();
                }
            }
        }
        let size = open.size();
        drop(state);
        // Sync even if the object already has this size: an earlier request may have changed the size and then failed
        // to sync the file.
        open.sync(store)?;
        Ok(size)
    }

    /// Removes the object durably, even if it is damaged. Does not remove a file that has the header of another object,
    /// or a header of a newer version.
    pub(crate) fn remove(&self, store: &Store, generation: Generation) -> Result<(), Failure> {
        let mut state = self.exclusive(store)?;
        if !matches!(*state, State::Damaged(_)) {
            state.checked(generation)?;
        }
        if generation == GENERATION_GONE && !store.is_gone(self.id) {
            store.gone.remember(self.id);
        }
        if let State::Damaged(BadHead { state: HeadState::Foreign | HeadState::Newer, reason }) = &*state {
            // The header of the file names another object, or a newer build has written it. Keep the file; REMOVE
            // succeeds, because the requested object does not exist.
            Counters::add(&store.counters().objects_left, 1);
            tracing::error!(object = %self.id, reason, "not removed: the file has the head of another object or file system");
            return Ok(());
        }
        let removed = store.remove_object(self.id).map_err(|e| failure(&e, "remove the object"))?;
        *state = State::Absent;
        drop(state);
        store.forget_failure(self.id);
        let leaf = store.leaf(self.id);
        if removed {
            Counters::add(&store.counters().objects_removed, 1);
            store.sync_leaf(&leaf, leaf.changed())
        } else if store.disk().is_folder(leaf.path()) {
            // An earlier request may have removed the file and failed before it synced the folder, so sync the folder
            // now.
            store.sync_leaf(&leaf, Leaf::FOUND)
        } else {
            Ok(())
        }
    }

    /// Punches a hole into the object durably; the size of the object does not change.
    pub(crate) fn punch(&self, store: &Store, generation: Generation, offset: u64, len: u64) -> Result<(), Failure> {
        let end = offset.checked_add(len).ok_or(Status::Inval)?;
        let state = self.exclusive(store)?;
        let Some(open) = state.checked(generation)?.cloned() else { return Ok(()) };
        open.check_failed()?;
        let end = end.min(open.size());
        if offset < end {
            open.dense.fetch_min(offset, Ordering::AcqRel);
            if let Some(sums) = &open.sums {
                open.changed();
                let forgotten = sums.punch(&*open.file, offset, end, store.counters());
                forgotten.inspect_err(|_| open.note_failed_sync(store)).map_err(|e| open.log_damage(e))?;
            }
            let punched = open.file.punch(HEAD_LEN + offset, end - offset);
            open.changed();
            match punched {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                    open.write_zeros(offset, end)?;
                }
                Err(error) => return Err(failure(&error, "punch a hole")),
            }
        }
        drop(state);
        open.sync(store)
    }

    /// Allocates disk space for a range of the object durably, so that later writes to the range do not fail with
    /// `NoSpc`. Extends the object to the end of the range.
    ///
    /// After an error, a part of the space may be allocated, and the object may be longer.
    pub(crate) fn reserve(&self, store: &Store, generation: Generation, offset: u64, len: u64) -> Result<(), Failure> {
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Status::FBig)?;
        let open = loop {
            let state = self.shared(store)?;
            if let Some(open) = state.checked(generation)? {
                if len > 0 {
                    open.check_failed()?;
                    open.reserve(store, offset, end)?;
                }
                break open.clone();
            }
            drop(state);
            if len == 0 {
                return Ok(());
            }
            self.make(store, generation)?;
        };
        open.sync(store)
    }

    /// Makes the file system copy bytes of another object into this object; returns whether the file system copied all
    /// bytes. Returns false if one of the objects has block checksums, because the iod must then copy the bytes itself
    /// to verify and compute checksums.
    pub(crate) fn copy_from(
        &self,
        store: &Store,
        generation: Generation,
        source: &Open,
        extent: &PullExtent,
    ) -> Result<bool, Failure> {
        if source.sums.is_some() || extent.from + u64::from(extent.len) > source.size() {
            return Ok(false);
        }
        loop {
            let state = self.shared(store)?;
            if let Some(open) = state.checked(generation)? {
                open.check_failed()?;
                open.take_room(store, &[WriteExtent { offset: extent.to, len: extent.len, crc32c: 0 }])?;
                return open.copy_from(source, extent);
            }
            drop(state);
            self.make(store, generation)?;
        }
    }

    /// Returns the offset of the first data or hole at or after `offset`.
    pub(crate) fn seek(
        &self,
        store: &Store,
        generation: Generation,
        offset: u64,
        what: SeekWhat,
    ) -> Result<Option<u64>, Failure> {
        let state = self.shared(store)?;
        let Some(open) = self.not_removed(store, state.checked(generation)?)? else { return Ok(None) };
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

    /// Makes the object refuse, durably, all capabilities of a generation before `fence` from now on.
    pub(crate) fn fence(&self, store: &Store, generation: Generation, fence: Generation) -> Result<(), Failure> {
        let mut state = self.exclusive(store)?;
        let open = match state.checked(generation)? {
            Some(open) => open.clone(),
            // The object has a tombstone, so no request can create the object again, whatever its capability. A fence
            // is not necessary.
            None if store.is_gone(self.id) => return Ok(()),
            None => self.create(store, fence)?,
        };
        *state = State::Open(open.clone());
        open.check_failed()?;
        // Write the header again if an earlier run wrote it. A sync that failed before the restart may have lost the
        // header, and later syncs write only pages that have changed since then.
        if open.generation() < fence || open.is_unproven() {
            let fence = fence.max(open.generation());
            let bytes = Head { generation: fence, ..open.head() }.encode();
            write_all(&*open.file, &bytes[..SECTOR], &[], 0)
                .map_err(|e| failure(&e, "write the head of the object"))?;
            open.generation.store(fence.0, Ordering::Release);
            open.changed();
        }
        drop(state);
        open.sync(store)
    }
}

impl State {
    /// Returns the open object; `None` if the object does not exist. Refuses damaged objects, and capabilities of a
    /// generation before that of the object.
    fn checked(&self, generation: Generation) -> Result<Option<&Arc<Open>>, Failure> {
        match self {
            State::Open(open) if generation < open.generation() => Err(Status::Fenced.into()),
            State::Open(open) => Ok(Some(open)),
            State::Absent | State::Unopened => Ok(None),
            State::Damaged(bad) => Err(Failure { status: Status::Corrupt, detail: Some(bad.reason.clone()) }),
        }
    }
}

/// Refuses a write to an object that is shorter than its durable size, and so has lost bytes. After a write beyond the
/// lost bytes, the lost bytes would read as zeros without an error.
fn is_long_enough(size: u64, least: u64) -> Result<(), Failure> {
    if size >= least {
        return Ok(());
    }
    let detail = format!("the object has {size} bytes, but at least {least} bytes were durable");
    Err(Failure { status: Status::Lost, detail: Some(detail) })
}
