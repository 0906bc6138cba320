//! The shards of the indexes of log files: `log_index::Index` in memory, and a log of records in an object on disk.
//!
//! The shard of a file is in the object [`ObjectId::index`]. So LIST, SCRUB, FENCE, REMOVE, block checksums and
//! tombstones work for it as for every object. [`log`] describes the bytes of the object. Each shard has a lock of its
//! own, so that a slow disk delays only requests about the same file. A request holds this lock while it changes the
//! shard, and waits for the sync of the disk without it, so that concurrent requests share one sync.

mod log;
mod read;
mod superblock;
mod table;

use std::sync::{Arc, Mutex};

use log_index::{Index, LogNumber, Refused, Run};
use types::{ByteRange, FileId, Generation, ObjectId, Status};
use wire::native::{Failure, RUNS_BYTES_MAX};

use super::Store;
use super::object::Object;
use crate::counters::Counters;
use crate::lock::lock;
use log::RecordLog;
pub(super) use table::IndexTable;

/// Largest number of runs in the reply to a LOOKUP.
const LOOKUP_RUNS_MAX: usize = 2048;

/// A registration of a writer, decoded from a REGISTER request.
pub(crate) struct Registration {
    /// The data log of the writer; 0 for the mgr.
    pub(crate) log: LogNumber,
    pub(crate) sequence: u64,
    /// The sequence number up to which the writer's registrations become durable; 0 if none does.
    pub(crate) durable: u64,
    pub(crate) runs: Vec<Run>,
}

/// The result of a lookup in a shard.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// Number of bytes, from the beginning of the requested range, that the runs describe.
    pub(crate) covered: u64,
    /// Offset after the last byte of the file that is in a data log.
    pub(crate) end: u64,
    /// The encoded runs.
    pub(crate) runs: Vec<u8>,
}

/// The shard of one file's index.
#[derive(Default)]
struct IndexShard(Mutex<State>);

#[derive(Default)]
enum State {
    /// No request has read the object of the shard yet, or the object was removed.
    #[default]
    Unloaded,
    /// The shard is in memory.
    Loaded(Box<Loaded>),
    /// The object is damaged. Requests fail with `Corrupt` and this detail, until the object is removed.
    Damaged(String),
}

/// A shard in memory.
struct Loaded {
    index: Index,
    log: RecordLog,
}

impl State {
    /// Returns the number of bytes of memory of the shard.
    fn memory(&self) -> usize {
        match self {
            State::Loaded(loaded) => loaded.index.memory() + loaded.log.memory(),
            State::Unloaded | State::Damaged(_) => 0,
        }
    }

    /// Returns whether the shard can be dropped from memory without a loss of registrations.
    fn is_durable(&self) -> bool {
        match self {
            State::Loaded(loaded) => loaded.index.is_durable(),
            State::Unloaded | State::Damaged(_) => true,
        }
    }
}

/// The object of a shard, and the generation of the capability of the current request.
#[derive(Clone, Copy)]
struct Target<'a> {
    store: &'a Store,
    object: &'a Object,
    file: FileId,
    generation: Generation,
}

/// What must be durable before the iod replies: the records up to an offset of the object.
struct Unsynced {
    end: u64,
    synced: log::Synced,
}

impl Target<'_> {
    /// Makes records durable.
    fn sync(&self, unsynced: &Unsynced) -> Result<(), Failure> {
        let size = self.object.commit(self.store, self.generation)?;
        if size < unsynced.end {
            // Another request has removed the object, so the file or its log layout is gone.
            return Err(Status::Fenced.into());
        }
        unsynced.synced.advance(unsynced.end);
        Ok(())
    }
}

impl Loaded {
    /// Returns what is on the disk, but perhaps not durably. Returns an offset of 0 if the object has no records, and
    /// may not exist.
    fn unsynced(&self) -> Unsynced {
        Unsynced { end: self.log.end(), synced: self.log.synced() }
    }

    /// Adds a registration, and writes the record that makes it durable if the writer has asked for that.
    fn register(&mut self, target: Target, registration: Registration) -> Result<(), Failure> {
        let Registration { log, sequence, durable, runs } = registration;
        match self.index.register(log, sequence, runs.clone()) {
            // The writer syncs, so its earlier runs are not pending any more after this request. Make them durable
            // first, so that the new runs fit.
            Err(Refused::Pending) if durable != 0 => {
                self.confirm(target, log, sequence.saturating_sub(1).min(durable))?;
                self.index.register(log, sequence, runs).map_err(refused)?;
            }
            done => done.map_err(refused)?,
        }
        if durable != 0 { self.confirm(target, log, durable) } else { Ok(()) }
    }

    /// Writes the record that makes pending registrations of a writer durable, up to a sequence number. The record is
    /// not synced yet.
    fn confirm(&mut self, target: Target, log: LogNumber, sequence: u64) -> Result<(), Failure> {
        let Some(record) = self.index.confirmation(log, sequence) else { return Ok(()) };
        self.log.append(target, &record)?;
        self.index.apply(record);
        self.log.checkpoint_if_due(target, &self.index);
        Ok(())
    }

    /// Returns a new log number. The caller must sync the object before a writer gets the number.
    fn open_log(&mut self, target: Target) -> Result<LogNumber, Failure> {
        loop {
            match self.index.next_log().map_err(refused)? {
                Ok(number) => return Ok(number),
                Err(reservation) => {
                    self.log.append(target, &reservation)?;
                    self.index.apply(reservation);
                }
            }
        }
    }

    fn lookup(&self, range: ByteRange, only_durable: bool) -> Lookup {
        let end = self.index.end();
        if range.is_empty() {
            return Lookup { covered: 0, end, runs: Vec::new() };
        }
        let mut max = LOOKUP_RUNS_MAX;
        loop {
            let (covered, runs) = self.index.lookup(range, only_durable, max);
            let runs = log_index::encode(runs);
            if runs.len() <= RUNS_BYTES_MAX || max == 1 {
                return Lookup { covered: covered.len, end, runs };
            }
            max /= 2;
        }
    }
}

/// Converts a refusal of the index to a [`Failure`].
fn refused(refused: Refused) -> Failure {
    let status = match refused {
        Refused::Full | Refused::Logs => Status::NoSpc,
        Refused::Pending => Status::Delay,
    };
    Failure { status, detail: Some(refused.to_string()) }
}

impl Store {
    /// Returns the number of a new data log of a file. The reservation of the number is durable.
    pub(crate) fn open_log(&self, file: FileId, generation: Generation) -> Result<LogNumber, Failure> {
        let object = self.object(ObjectId::index(file));
        let target = Target { store: self, object: &object, file, generation };
        let (number, unsynced) = self.with_shard(target, |loaded| {
            let number = loaded.open_log(target)?;
            Ok((number, loaded.unsynced()))
        })?;
        // Sync even if an earlier request wrote the reservation, because that request may not have synced it yet.
        target.sync(&unsynced)?;
        Ok(number)
    }

    /// Adds a registration to the shard of a file, and makes registrations durable as the writer has asked. Returns the
    /// number of runs of all writers that are not durable.
    ///
    /// If the disk is full, the registration stays pending, and the writer can repeat the request.
    pub(crate) fn register(
        &self,
        file: FileId,
        generation: Generation,
        registration: Registration,
    ) -> Result<usize, Failure> {
        let object = self.object(ObjectId::index(file));
        let target = Target { store: self, object: &object, file, generation };
        let durable = registration.durable != 0;
        let (pending, unsynced) = self.with_shard(target, |loaded| {
            loaded.register(target, registration)?;
            Ok((loaded.index.pending_runs(), loaded.unsynced()))
        })?;
        Counters::add(&self.counters().index_registrations, 1);
        if durable {
            target.sync(&unsynced)?;
        }
        Ok(pending)
    }

    /// Returns the runs of a range of a file, or of a shorter range that begins at the same offset.
    pub(crate) fn lookup(
        &self,
        file: FileId,
        generation: Generation,
        range: ByteRange,
        only_durable: bool,
    ) -> Result<Lookup, Failure> {
        let object = self.object(ObjectId::index(file));
        let target = Target { store: self, object: &object, file, generation };
        self.with_shard(target, |loaded| Ok(loaded.lookup(range, only_durable)))
    }

    /// Executes FENCE. A fence of an index also waits for the running registrations of the file. So no registration of
    /// an older generation changes the shard after the reply.
    pub(crate) fn fence(&self, id: ObjectId, generation: Generation, fence: Generation) -> Result<(), Failure> {
        let object = self.object(id);
        if id != ObjectId::index(id.file) {
            return object.fence(self, generation, fence);
        }
        let shard = self.indexes.shard(id.file);
        let _changing = lock(&shard.0);
        object.fence(self, generation, fence)
    }

    /// Executes REMOVE. The removal of an index also removes its shard from memory.
    pub(crate) fn remove(&self, id: ObjectId, generation: Generation) -> Result<(), Failure> {
        let object = self.object(id);
        if id != ObjectId::index(id.file) {
            return object.remove(self, generation);
        }
        let shard = self.indexes.shard(id.file);
        let mut state = lock(&shard.0);
        object.remove(self, generation)?;
        *state = State::Unloaded;
        drop(state);
        self.indexes.used(self, id.file, 0);
        Ok(())
    }

    /// Executes REMOVE_LOGS: removes the index and all data logs of a file durably.
    pub(crate) fn remove_logs(&self, file: FileId, generation: Generation) -> Result<(), Failure> {
        // Remove the index first. Its tombstone then refuses late writes that would create a data log again.
        self.remove(ObjectId::index(file), generation)?;
        // Wait for the requests that checked the tombstone before it existed. The list below has their data logs.
        drop(crate::lock::write(&self.creating_logs));
        for id in self.objects_of(file)? {
            if id.is_of_logs() {
                self.remove(id, generation)?;
            }
        }
        Ok(())
    }

    /// Calls `run` with the shard of a file, after it has checked the generation of the capability.
    fn with_shard<T>(&self, target: Target, run: impl FnOnce(&mut Loaded) -> Result<T, Failure>) -> Result<T, Failure> {
        let shard: Arc<IndexShard> = self.indexes.shard(target.file);
        let mut state = lock(&shard.0);
        let result =
            target.object.check(self, target.generation).and_then(|()| loaded(&mut state, target)).and_then(run);
        let memory = state.memory();
        drop(state);
        self.indexes.used(self, target.file, memory);
        result
    }
}

/// Returns a shard, after it has read the shard from the disk if necessary.
fn loaded<'a>(state: &'a mut State, target: Target) -> Result<&'a mut Loaded, Failure> {
    if let State::Unloaded = state {
        match read::load(target) {
            Ok((index, log)) => *state = State::Loaded(Box::new(Loaded { index, log })),
            Err(Failure { status: Status::Corrupt, detail }) => {
                let detail = detail.unwrap_or_default();
                tracing::error!(file = target.file.0, detail, "the index of a file is damaged");
                *state = State::Damaged(detail);
            }
            Err(failure) => return Err(failure),
        }
        Counters::add(&target.store.counters().index_loads, 1);
    }
    match state {
        State::Loaded(loaded) => Ok(loaded),
        State::Damaged(detail) => Err(Failure { status: Status::Corrupt, detail: Some(detail.clone()) }),
        // This cannot happen: the shard was loaded above.
        State::Unloaded => Err(Status::ServerFault.into()),
    }
}

#[cfg(test)]
mod tests;
