//! The records of a shard in its object: how they are encoded, appended, and replaced by a checkpoint.
//!
//! The object begins with two superblocks ([`super::superblock`]). From byte 4096 on, or from the offset in the valid
//! superblock, there are records, one directly after the other. Each record has a header of 16 bytes, followed by an
//! encoded [`Record`]:
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | length of the encoded record in bytes, at least 1 |
//! | 4 | CRC-32C of the offset of the header in the object, the next field, and the encoded record |
//! | 8 | offset in the object up to which all bytes were durable when the iod wrote the record |
//!
//! Because the CRC covers the offset, old bytes at another offset are no valid record. The last field tells an unsynced
//! tail from damage: after a power cut, any subset of the unsynced records may be on the disk. If the record at an
//! offset is invalid and a later record says that the bytes at this offset were durable, the disk has lost a record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use log_index::{Index, Record};
use wire::native::{Crc32c, Failure, WriteExtent};

use super::Target;
use super::superblock::{RECORDS, Superblock};
use crate::counters::Counters;

/// Length of the header of a record in bytes.
pub(super) const HEADER: u64 = 16;
/// The iod makes a checkpoint when the records after the last checkpoint are this many times as long as it.
const CHECKPOINT_FACTOR: u64 = 2;
/// Alignment of the end of the range that the iod punches after a checkpoint.
const BLOCK: u64 = 4096;

/// The offset in a shard's object up to which all records are durable. Requests advance it after their syncs, without
/// the lock of the shard.
#[derive(Clone, Default)]
pub(super) struct Synced(Arc<AtomicU64>);

impl Synced {
    pub(super) fn advance(&self, end: u64) {
        self.0.fetch_max(end, Ordering::AcqRel);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The records of a loaded shard.
pub(super) struct RecordLog {
    superblock: Superblock,
    /// Offset after the last valid record.
    end: u64,
    /// Whether the object may have bytes after `end`: a part of a record whose write failed or was not synced.
    tail: bool,
    synced: Synced,
    /// Offset after the last checkpoint, from which the iod counts the bytes until the next one.
    checkpoint_end: u64,
    checkpoint_len: u64,
}

impl RecordLog {
    /// Makes the state of records that the iod has read from the disk. `checkpoint_len` is the length of the
    /// checkpoint at their beginning. `tail` says whether bytes follow the last valid record.
    pub(super) fn found(superblock: Superblock, end: u64, tail: bool, checkpoint_len: u64) -> Self {
        let checkpoint_end = superblock.start + checkpoint_len;
        RecordLog { superblock, end, tail, synced: Synced::default(), checkpoint_end, checkpoint_len }
    }

    /// Returns the offset after the last record, or 0 if there has never been a record.
    pub(super) fn end(&self) -> u64 {
        if self.end == RECORDS { 0 } else { self.end }
    }

    pub(super) fn synced(&self) -> Synced {
        self.synced.clone()
    }

    /// Returns the approximate number of bytes of memory.
    pub(super) fn memory(&self) -> usize {
        size_of::<RecordLog>()
    }

    /// Appends a record to the object, without a sync.
    ///
    /// # Errors
    /// The errors of a WRITE. The record then counts as not written, and the next append removes its bytes.
    pub(super) fn append(&mut self, target: Target, record: &Record) -> Result<(), Failure> {
        let Target { store, object, generation, .. } = target;
        if self.tail {
            // Without this, old bytes after a new, shorter record might be valid records.
            if object.size(store, generation)?.0 > self.end {
                object.truncate(store, generation, self.end)?;
            }
            self.tail = false;
        }
        let bytes = framed(self.end, self.synced.get(), record);
        let extent = WriteExtent { offset: self.end, len: bytes.len() as u32, crc32c: 0 };
        self.tail = true;
        object.write(store, generation, (&[extent], 0), [&bytes, &[]])?;
        self.tail = false;
        self.end += bytes.len() as u64;
        Counters::add(&store.counters().index_records, 1);
        Ok(())
    }

    /// Makes a checkpoint of the shard if many bytes of records follow the last one. Logs an error, because the records
    /// stay valid without the checkpoint.
    pub(super) fn checkpoint_if_due(&mut self, target: Target, index: &Index) {
        if self.end - self.checkpoint_end
            <= target.store.indexes.checkpoint_least().max(CHECKPOINT_FACTOR * self.checkpoint_len)
        {
            return;
        }
        if let Err(failure) = self.checkpoint(target, index) {
            tracing::warn!(file = target.file.0, %failure, "no checkpoint of the index of a file; the iod tries again later");
            self.checkpoint_end = self.end;
        }
    }

    /// Writes the state of the shard as new records, makes the superblock refer to them, and punches the older records.
    ///
    /// Until the superblock is durable, the older records and the checkpoint after them are in force together. A reader
    /// ignores the first record of such a checkpoint, and its other records change nothing.
    fn checkpoint(&mut self, target: Target, index: &Index) -> Result<(), Failure> {
        let Target { store, object, generation, .. } = target;
        let start = self.end;
        for record in index.checkpoint() {
            self.append(target, &record)?;
        }
        object.commit(store, generation)?;
        self.synced.advance(self.end);
        let superblock = Superblock { counter: self.superblock.counter + 1, start };
        let bytes = superblock.encode();
        let extent = WriteExtent { offset: superblock.offset(), len: bytes.len() as u32, crc32c: 0 };
        object.write(store, generation, (&[extent], 0), [&bytes, &[]])?;
        object.commit(store, generation)?;
        self.superblock = superblock;
        (self.checkpoint_end, self.checkpoint_len) = (self.end, self.end - start);
        Counters::add(&store.counters().index_checkpoints, 1);
        object.punch(store, generation, RECORDS, start / BLOCK * BLOCK - RECORDS)
    }
}

/// Returns a record with its header, for an offset of the object. All bytes before `synced` are durable.
fn framed(offset: u64, synced: u64, record: &Record) -> Vec<u8> {
    let payload = record.encode();
    let mut bytes = Vec::with_capacity(HEADER as usize + payload.len());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(checksum(offset, synced, &payload).to_be_bytes());
    bytes.extend(synced.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns the checksum of a record at an offset of the object.
pub(super) fn checksum(offset: u64, synced: u64, payload: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    sum.update(&offset.to_be_bytes());
    sum.update(&synced.to_be_bytes());
    sum.update(payload);
    sum.finish()
}
