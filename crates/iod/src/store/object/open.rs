//! The open file of an object: its state in memory, and the reads, writes and syncs of the object.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use types::{Generation, ObjectId, Status};
use wire::native::{Failure, Piece, PieceKind, PullExtent, WriteExtent};

use crate::counters::Counters;
use crate::disks::{DiskFile, read_full, write_all};
use crate::lock::lock;
use crate::store::block_checksums::{BlockChecksums, CHANGED_MAX};
use crate::store::head::{HEAD_LEN, Head};
use crate::store::shards::Leaf;
use crate::store::{Store, failure};

/// The change number of an object whose file the iod has just opened: the existing content counts as one change. An
/// earlier run of the iod may have died before it synced this content. So the iod must sync the file once before it
/// reports anything about the object as durable.
const FOUND: u64 = 1;

/// An open object file. Only the iod changes the file, so the iod knows its size without a system call.
pub(crate) struct Open {
    id: ObjectId,
    pub(crate) file: Box<dyn DiskFile>,
    /// The block checksums of the object; `None` in stores without block checksums.
    pub(crate) sums: Option<BlockChecksums>,
    head: Head,
    pub(super) generation: AtomicU32,
    /// Size of the object in bytes. The size grows under the shared lock of the object, and shrinks under the exclusive
    /// lock.
    pub(super) size: AtomicU64,
    /// Length in bytes of the dense prefix of the object, which has no hole. May exceed `size` for a moment, while a
    /// request changes the size.
    pub(super) dense: AtomicU64,
    /// Number of finished changes of the object. Starts at [`FOUND`], because the content that an earlier run of the
    /// iod left may not be durable.
    written: AtomicU64,
    /// Number of changes of the object that are durable.
    durable: AtomicU64,
    /// The lock that a thread holds while it syncs the object. After the current sync, one more sync suffices for all
    /// threads that wait for this lock; the first of them makes it.
    syncing: Mutex<()>,
    /// Whether a sync of the object failed. If so, the iod reports nothing about this object as durable until the
    /// object is removed or the iod restarts.
    pub(super) failed: AtomicBool,
    /// Whether `sendfile` failed in the middle of a reply, where the iod cannot report an error. If so, later READs
    /// copy the bytes through memory.
    pub(crate) read_by_copy: AtomicBool,
    leaf: Arc<Leaf>,
    /// The number of the folder change that gave the file its name. The file survives a power cut once this change is
    /// durable.
    entry: u64,
}

/// The plan of the reply to a READ: its pieces (data, holes, ranges beyond the end of the object), and the byte ranges
/// of the object whose bytes the reply contains.
#[derive(Default)]
pub(crate) struct ReadPlan {
    pub(crate) size: u64,
    pub(crate) pieces: Vec<Piece>,
    /// Offset and length of each byte range of the object with data; adjacent ranges are joined.
    pub(crate) runs: Vec<(u64, u64)>,
    pub(crate) data_len: u64,
}

impl ReadPlan {
    pub(super) fn begin(&mut self, size: u64) {
        self.size = size;
        self.pieces.clear();
        self.runs.clear();
        self.data_len = 0;
    }

    pub(super) fn push(&mut self, kind: PieceKind, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        // The cast of `len` to `u32` cannot truncate: the piece is a part of one extent of the READ request, and an
        // extent is shorter than 4 GiB.
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

impl Open {
    /// Makes the state of an open object of `size` bytes. `leaf` is the folder of the object file, and `entry` is the
    /// number of the folder change that created the name of the file.
    pub(super) fn new(
        file: Box<dyn DiskFile>,
        sums: Option<BlockChecksums>,
        head: Head,
        (leaf, entry): (Arc<Leaf>, u64),
        size: u64,
    ) -> Self {
        Open {
            id: head.object,
            file,
            sums,
            head,
            generation: AtomicU32::new(head.generation.0),
            size: AtomicU64::new(size),
            dense: AtomicU64::new(0),
            written: AtomicU64::new(FOUND),
            durable: AtomicU64::new(0),
            syncing: Mutex::new(()),
            failed: AtomicBool::new(false),
            read_by_copy: AtomicBool::new(false),
            leaf,
            entry,
        }
    }

    /// Returns the header of the object file, with the current generation of the object.
    pub(super) fn head(&self) -> Head {
        Head { generation: self.generation(), ..self.head }
    }

    pub(in crate::store) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn dense(&self) -> u64 {
        self.dense.load(Ordering::Acquire)
    }

    pub(super) fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// Returns whether the object has changes, made since the iod opened it, that are not durable yet. Changes that a
    /// failed sync has lost do not count.
    pub(super) fn is_dirty(&self) -> bool {
        let durable = self.durable.load(Ordering::Acquire).max(FOUND);
        durable < self.written.load(Ordering::Acquire) && self.check_failed().is_ok()
    }

    /// Returns whether the file may still have content that an earlier run wrote and did not sync.
    pub(super) fn is_unproven(&self) -> bool {
        self.durable.load(Ordering::Acquire) < FOUND
    }

    /// Counts a finished change. The caller must have finished the change before this call, because the next sync
    /// counts the change as durable.
    pub(in crate::store) fn changed(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn check_failed(&self) -> Result<(), Failure> {
        if !self.failed.load(Ordering::Acquire) && !self.sums.as_ref().is_some_and(BlockChecksums::failed) {
            return Ok(());
        }
        Err(Failure { status: Status::Io, detail: Some("an earlier sync of this object failed".into()) })
    }

    /// Plans the reply to a READ of the range from `offset` to `end`: adds the data and the holes in the range to
    /// `plan` as pieces, up to a total of at most `spare` pieces. Neither offset may exceed the size of the object.
    pub(super) fn plan(
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
                // A write may have filled the object's first hole since the last check, so search for the first hole
                // again.
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
            // If the plan may have only one more piece for this range, plan the rest of the range as one data piece.
            // The iod then sends the holes in the rest as zeros.
            let full = plan.pieces.len() + 2 >= spare;
            let (kind, until) = if full { (PieceKind::Data, end) } else { (kind, until.min(end)) };
            if let Some(sums) = self.sums.as_ref().filter(|_| kind == PieceKind::Hole) {
                let checked = sums.check_hole(&*self.file, at, until);
                checked.map_err(|e| self.log_damage(e.failure(counters)))?;
            }
            plan.push(kind, at, until - at);
            at = until;
        }
        Ok(())
    }

    /// Returns the offset of the first hole at or after `offset`. The end of the file counts as a hole.
    pub(in crate::store) fn next_hole(&self, offset: u64, counters: &Counters) -> Result<u64, Failure> {
        Counters::add(&counters.seeks, 1);
        let hole = self.file.next_hole(HEAD_LEN + offset).map_err(|e| failure(&e, "look for holes"))?;
        Ok(hole.map_or(offset, |at| at.saturating_sub(HEAD_LEN)))
    }

    /// Returns the offset of the first data at or after `offset`; `None` if no data follow.
    pub(in crate::store) fn next_data(&self, offset: u64, counters: &Counters) -> Result<Option<u64>, Failure> {
        Counters::add(&counters.seeks, 1);
        let data = self.file.next_data(HEAD_LEN + offset).map_err(|e| failure(&e, "look for data"))?;
        Ok(data.map(|at| at.saturating_sub(HEAD_LEN)))
    }

    /// Reads the byte ranges of a plan into `buffer` and verifies their checksums. Bytes that were truncated after the
    /// plan was made read as zeros.
    pub(crate) fn read(&self, runs: &[(u64, u64)], mut buffer: &mut [u8], counters: &Counters) -> Result<(), Failure> {
        for (offset, len) in runs {
            let (now, rest) = buffer.split_at_mut(*len as usize);
            if let Some(sums) = &self.sums {
                sums.read(&*self.file, *offset, now).map_err(|e| self.log_damage(e.failure(counters)))?;
            } else {
                let done =
                    read_full(&*self.file, now, HEAD_LEN + offset).map_err(|e| failure(&e, "read the object"))?;
                now[done..].fill(0);
            }
            buffer = rest;
        }
        Ok(())
    }

    /// Logs damaged data, and returns the failure for the reply to the client.
    pub(super) fn log_damage(&self, failure: Failure) -> Failure {
        if failure.status == Status::Corrupt {
            let detail = failure.detail.as_deref().unwrap_or_default();
            tracing::error!(object = %self.id, detail, "damaged data");
        }
        failure
    }

    /// Checks that the disk has free space for a write, and counts the space as used. A write that only overwrites
    /// allocated space succeeds even when the disk has no more free space than the reserve.
    pub(super) fn take_room(&self, store: &Store, extents: &[WriteExtent]) -> Result<(), Failure> {
        let range = |extent: &WriteExtent| (extent.offset, u64::from(extent.len));
        store.take_room(self.growth(extents)).or_else(|refused| self.unless_stored(refused, extents.iter().map(range)))
    }

    /// Fails with `refused` unless the file system has already allocated space for every range in `ranges`.
    fn unless_stored(&self, refused: Failure, ranges: impl Iterator<Item = (u64, u64)>) -> Result<(), Failure> {
        for (offset, len) in ranges {
            let stored = self.file.is_stored(HEAD_LEN + offset, len);
            if !stored.map_err(|e| failure(&e, "find the allocated space of the object"))? {
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Allocates disk space for the object from `offset` up to `end`, and extends the object to `end`. No byte of the
    /// object changes, so its block checksums stay valid.
    pub(super) fn reserve(&self, store: &Store, offset: u64, end: u64) -> Result<(), Failure> {
        let more = end.saturating_sub(self.dense().min(self.size()).max(offset));
        let room = store.take_room(more);
        room.or_else(|refused| self.unless_stored(refused, std::iter::once((offset, end - offset))))?;
        let mut at = offset;
        // Allocate the range in steps, and check the free space before each step, because other stores may use the
        // same disk.
        while at < end {
            let len = store.piece().min(end - at);
            if at > offset {
                let room = store.take_room(len);
                room.or_else(|refused| self.unless_stored(refused, std::iter::once((at, len))))?;
            }
            self.reserve_piece(at, at + len)?;
            at += len;
        }
        Ok(())
    }

    fn reserve_piece(&self, offset: u64, end: u64) -> Result<(), Failure> {
        let reserved = self.file.reserve(HEAD_LEN + offset, end - offset);
        let reached = match &reserved {
            Ok(()) => end,
            Err(_) => self.file.measure().map_or(0, |measure| measure.len.saturating_sub(HEAD_LEN)),
        };
        self.size.fetch_max(reached, Ordering::AcqRel);
        self.changed();
        reserved.map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::OPNOTSUPP.raw_os_error() => Failure {
                status: Status::NotSupp,
                detail: Some("the file system of the store cannot reserve space".into()),
            },
            _ => failure(&error, "reserve space"),
        })
    }

    /// Returns the number of bytes in the extents for which the disk may need new space: the bytes after the dense
    /// prefix, which has no hole.
    pub(super) fn growth(&self, extents: &[WriteExtent]) -> u64 {
        let dense = self.dense().min(self.size());
        let end = |extent: &WriteExtent| extent.offset + u64::from(extent.len);
        extents.iter().map(|extent| end(extent).saturating_sub(dense.max(extent.offset))).sum()
    }

    pub(super) fn write(&self, extents: &[WriteExtent], data: [&[u8]; 2], counters: &Counters) -> Result<u64, Failure> {
        let [mut first, mut second] = data;
        for extent in extents {
            let len = extent.len as usize;
            let (a, rest) = first.split_at(len.min(first.len()));
            let (b, behind) = second.split_at(len - a.len());
            (first, second) = (rest, behind);
            let put = || {
                let written = write_all(&*self.file, a, b, HEAD_LEN + extent.offset);
                if written.is_ok() && len > 0 {
                    self.size.fetch_max(extent.offset + u64::from(extent.len), Ordering::AcqRel);
                }
                written
            };
            let written = match &self.sums {
                Some(sums) => {
                    sums.write(&*self.file, extent.offset, [a, b], counters, put).map_err(|e| self.log_damage(e))
                }
                None => put().map_err(|e| failure(&e, "write the object")),
            };
            self.changed();
            if let Err(failure) = written {
                if let Ok(measure) = self.file.measure() {
                    self.size.fetch_max(measure.len.saturating_sub(HEAD_LEN), Ordering::AcqRel);
                }
                return Err(failure);
            }
            if len > 0 && extent.offset <= self.dense() {
                self.dense.fetch_max(extent.offset + u64::from(extent.len), Ordering::AcqRel);
            }
            Counters::add(&counters.bytes_written, len as u64);
        }
        Ok(self.size())
    }

    /// Makes the file system copy bytes of another object into this object; returns whether the file system copied all
    /// bytes.
    pub(super) fn copy_from(&self, source: &Open, extent: &PullExtent) -> Result<bool, Failure> {
        let PullExtent { from, to, len } = *extent;
        let (mut done, len) = (0, u64::from(len));
        if self.sums.is_some() {
            return Ok(false);
        }
        let outcome = loop {
            if done == len {
                break Ok(true);
            }
            let left = len - done;
            match self.file.copy_from(&*source.file, HEAD_LEN + from + done, HEAD_LEN + to + done, left) {
                // The source object ends before the end of the range, because another request has truncated the source
                // object.
                Ok(0) => break Ok(false),
                Ok(n) => done += n,
                Err(error) => break Err(error),
            }
        };
        if done > 0 {
            self.size.fetch_max(to + done, Ordering::AcqRel);
            // Do not extend the dense prefix (the range before the first hole): the copy may have holes where the
            // source has holes.
            self.changed();
        }
        outcome.or_else(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV | Errno::INVAL | Errno::PERM) => Ok(false),
            _ => Err(failure(&error, "copy into the object")),
        })
    }

    pub(super) fn write_zeros(&self, offset: u64, end: u64) -> Result<(), Failure> {
        let zeros = vec![0; (end - offset).min(1 << 20) as usize];
        let mut at = offset;
        while at < end {
            let now = (end - at).min(zeros.len() as u64);
            let zeros = &zeros[..now as usize];
            write_all(&*self.file, zeros, &[], HEAD_LEN + at).map_err(|e| failure(&e, "clear a range"))?;
            at += now;
        }
        Ok(())
    }

    /// Makes all finished changes and the name of the file durable. One later sync suffices for all threads that wait
    /// while a sync of the object runs.
    pub(in crate::store) fn sync(&self, store: &Store) -> Result<(), Failure> {
        let counters = store.counters();
        let target = self.written.load(Ordering::Acquire);
        self.check_failed()?;
        if self.durable.load(Ordering::Acquire) < target {
            let _one = lock(&self.syncing);
            self.check_failed()?;
            if self.durable.load(Ordering::Acquire) < target {
                let covered = self.written.load(Ordering::Acquire);
                self.sync_file(store)?;
                self.durable.store(covered, Ordering::Release);
            } else {
                Counters::add(&counters.syncs_shared, 1);
            }
        }
        store.sync_leaf(&self.leaf, self.entry)
    }

    fn sync_file(&self, store: &Store) -> Result<(), Failure> {
        let counters = store.counters();
        if let Some(sums) = &self.sums {
            sums.begin_seal(&*self.file, || self.size())?;
        }
        Counters::add(&counters.syncs_object, 1);
        if let Err(error) = self.file.sync() {
            // Remember that this sync failed. After a failed sync, Linux marks the lost pages as clean, so a later sync
            // may succeed without writing them.
            self.failed.store(true, Ordering::Release);
            self.note_failed_sync(store);
            return Err(failure(&error, "sync the object"));
        }
        match &self.sums {
            Some(sums) => sums.finish_seal(counters).map_err(|error| {
                self.note_failed_sync(store);
                failure(&error, "store the checksums of the object")
            }),
            None => Ok(()),
        }
    }

    /// Records a failed sync in the store, so that the failure outlives this open file.
    pub(super) fn note_failed_sync(&self, store: &Store) {
        if self.check_failed().is_err() {
            store.note_failure(self.id);
            Counters::add(&store.counters().syncs_failed, 1);
            tracing::error!(object = %self.id, "sync failed; the iod accepts no more writes to the object");
        }
    }

    /// Returns whether so many regions (64 blocks each) have unsynced checksums that the iod should sync the object,
    /// although no client has requested a sync.
    pub(super) fn wants_sync(&self) -> bool {
        self.sums.as_ref().is_some_and(|sums| sums.changed() >= CHANGED_MAX)
    }
}
