//! The data log to which the client appends the bytes that it writes to a log file.

use super::log_file::verifier;
use super::registrations::LaneRegistrations;
use crate::Error;
use crate::drivers::{Attempt, NotDone};
use log_index::{LogNumber, Run, RunBuilder};
use std::sync::{Mutex, PoisonError};
use tokio::sync::Mutex as AsyncMutex;
use types::{ByteRange, Verifier};

/// The block size of the iods' local file systems. Two writes never share a block of the log. Otherwise a power cut
/// could keep a block with an older write and zeros for a newer one, and a reader would not notice that bytes are
/// missing.
const BLOCK: u64 = 4096;

/// A data log of this client.
pub(super) struct OwnLog {
    /// The number of the log.
    pub(super) log: LogNumber,
    /// The epoch of the file in which the client opened the log. All writes to the log return its verifier.
    pub(super) epoch: u64,
    /// Offset after the last byte of the log that the client gave to a write.
    end: Mutex<u64>,
    /// The objects of the log on the iods.
    objects: Vec<LogObject>,
    /// The registrations with the shards of the index.
    pub(super) lanes: Vec<LaneRegistrations>,
}

/// The object of a data log on one iod.
#[derive(Default)]
pub(super) struct LogObject {
    writes: Mutex<Writes>,
    /// Held while the client sends COMMIT for the object.
    pub(super) committing: AsyncMutex<()>,
}

/// Numbers of unstable writes to the object of a data log.
#[derive(Clone, Copy, Default)]
struct Writes {
    /// Number of writes that the iod acknowledged.
    acknowledged: u64,
    /// Number of writes, the first ones, that COMMITs cover.
    committed: u64,
}

impl OwnLog {
    /// Creates the state of an empty log over `count` iods.
    pub(super) fn new(log: LogNumber, epoch: u64, count: usize) -> Self {
        let objects = (0..count).map(|_| LogObject::default()).collect();
        let lanes = (0..count).map(|_| LaneRegistrations::default()).collect();
        OwnLog { log, epoch, end: Mutex::default(), objects, lanes }
    }

    /// Returns the verifier of all writes to the log.
    pub(super) fn verifier(&self) -> Verifier {
        verifier(self.epoch)
    }

    /// Takes bytes at the end of the log for these file ranges; returns their range in the log and their runs. The next
    /// range begins in another block of [`BLOCK`] bytes.
    ///
    /// # Errors
    /// The log or the file would exceed the largest size of a file.
    pub(super) fn take(&self, parts: &[ByteRange]) -> Attempt<(ByteRange, Vec<Run>)> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let mut builder = RunBuilder::new(self.log, *end);
        for part in parts {
            let bad = |error: log_index::BadRun| NotDone::NotAttempted(Error::usage(error.to_string()));
            builder.append(*part).map_err(bad)?;
        }
        let range = ByteRange { offset: *end, len: builder.position() - *end };
        *end = builder.position().next_multiple_of(BLOCK);
        Ok((range, builder.take()))
    }

    /// Returns the object of the log on the iod with this index.
    pub(super) fn object(&self, index: usize) -> Option<&LogObject> {
        self.objects.get(index)
    }

    /// Returns the indices of the iods that have bytes of the log which no COMMIT covers.
    pub(super) fn unsynced(&self) -> Vec<usize> {
        let indices = 0..self.objects.len();
        indices.filter(|index| self.objects[*index].acknowledged() > self.objects[*index].committed()).collect()
    }
}

impl OwnLog {
    /// Returns whether all bytes of the log that the client wrote are durable, and all their registrations too.
    pub(super) fn is_committed(&self) -> bool {
        self.unsynced().is_empty() && self.lanes.iter().all(LaneRegistrations::is_durable)
    }
}

impl LogObject {
    fn update<T>(&self, change: impl FnOnce(&mut Writes) -> T) -> T {
        change(&mut self.writes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that the iod acknowledged an unstable write.
    pub(super) fn written(&self) {
        self.update(|writes| writes.acknowledged += 1);
    }

    /// Returns the number of unstable writes that the iod acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.update(|writes| writes.acknowledged)
    }

    /// Returns the number of writes, the first ones, that COMMITs cover.
    pub(super) fn committed(&self) -> u64 {
        self.update(|writes| writes.committed)
    }

    /// Records that a COMMIT covers the first `count` writes.
    pub(super) fn covered(&self, count: u64) {
        self.update(|writes| writes.committed = count.max(writes.committed));
    }
}
