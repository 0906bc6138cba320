//! Loading of a shard from its object.

use log_index::{Index, Record};
use types::Status;
use wire::native::{Extent, Failure, PieceKind};

use super::Target;
use super::log::{HEADER, RecordLog, checksum};
use super::superblock::{SUPERBLOCKS, Superblock};
use crate::store::ReadPlan;

/// Number of bytes that one read of the object requests, unless a record is longer.
const WINDOW: u64 = 1 << 20;

/// Reads a shard from the disk. An object that does not exist is an empty shard.
///
/// # Errors
/// `Corrupt` if the disk has lost or changed a durable record; the errors of READ.
pub(super) fn load(target: Target) -> Result<(Index, RecordLog), Failure> {
    let size = target.object.size(target.store, target.generation)?.0;
    let mut reader = Reader { target, size, at: 0, bytes: Vec::new() };
    let superblocks = reader.get(0, SUPERBLOCKS.min(size))?.unwrap_or_default();
    let superblock = Superblock::newest(superblocks);
    let mut records = Records {
        reader,
        at: superblock.start,
        superblock,
        checkpoint_len: 0,
        in_checkpoint: superblock != Superblock::NONE,
    };
    let mut ended = Ok(());
    let index = Index::restored(std::iter::from_fn(|| {
        records.next().unwrap_or_else(|failure| {
            ended = Err(failure);
            None
        })
    }));
    ended?;
    let Records { at: end, checkpoint_len, .. } = records;
    let log = RecordLog::found(superblock, end, size > end, checkpoint_len);
    Ok((index, log))
}

/// The records of a shard, in their order.
struct Records<'a> {
    reader: Reader<'a>,
    /// Offset of the next record.
    at: u64,
    superblock: Superblock,
    /// Length of the checkpoint at the beginning of the records.
    checkpoint_len: u64,
    /// Whether all records so far are of this checkpoint.
    in_checkpoint: bool,
}

impl Records<'_> {
    /// Returns the next record in force; `None` at the end of the valid records.
    fn next(&mut self) -> Result<Option<Record>, Failure> {
        let target = self.reader.target;
        loop {
            let Some(found) = self.reader.frame(self.at)? else {
                self.check_end()?;
                return Ok(None);
            };
            let first = self.at == self.superblock.start;
            let len = HEADER + found.payload.len() as u64;
            let record = Record::decode(found.payload).map_err(|error| damaged(target, self.at, &error.to_string()))?;
            let is_checkpoint = matches!(record, Record::Checkpoint { .. });
            if first && self.in_checkpoint && !is_checkpoint {
                return Err(damaged(target, self.at, "there is no checkpoint"));
            }
            self.at += len;
            // The records of a checkpoint after the first one are of log 0 and have the sequence number 0.
            let of_checkpoint = matches!(&record, Record::Runs { log, sequence: 0, .. } if log.0 == 0);
            self.in_checkpoint &= first || of_checkpoint;
            if self.in_checkpoint {
                self.checkpoint_len += len;
            }
            // No superblock refers to a checkpoint in the middle. It may be incomplete, so the records before it must
            // stay in force.
            if is_checkpoint && !first {
                continue;
            }
            return Ok(Some(record));
        }
    }

    /// Checks that no durable record is missing at the end of the valid records.
    fn check_end(&mut self) -> Result<(), Failure> {
        let (from, size, target) = (self.at, self.reader.size, self.reader.target);
        if self.superblock != Superblock::NONE && from == self.superblock.start {
            return Err(damaged(target, from, "the checkpoint is missing"));
        }
        for at in from + 1..size {
            if self.reader.frame(at)?.is_some_and(|found| found.synced > from) {
                let why = format!("there is a valid record at byte {at}, and the bytes before it were durable");
                return Err(damaged(target, from, &why));
            }
        }
        Ok(())
    }
}

fn damaged(target: Target, at: u64, why: &str) -> Failure {
    let file = target.file.0;
    let detail = format!(
        "the index of file {file} on this iod is damaged at byte {at}; {why}; the iod does not use the index any more, so restore the file"
    );
    Failure { status: Status::Corrupt, detail: Some(detail) }
}

/// A valid frame: the encoded record, and the offset up to which all bytes were durable when the iod wrote it.
struct Frame<'a> {
    payload: &'a [u8],
    synced: u64,
}

/// Reads the bytes of a shard's object through a window in memory.
struct Reader<'a> {
    target: Target<'a>,
    size: u64,
    /// Offset of the window in the object.
    at: u64,
    bytes: Vec<u8>,
}

impl Reader<'_> {
    /// Returns the frame at an offset of the object; `None` if there is no valid frame.
    fn frame(&mut self, at: u64) -> Result<Option<Frame<'_>>, Failure> {
        let Some(header) = self.get(at, HEADER)? else { return Ok(None) };
        let (Some(len), Some(sum), Some(synced)) =
            (header.first_chunk(), header[4..].first_chunk(), header[8..].first_chunk())
        else {
            return Ok(None);
        };
        let (len, sum, synced) = (u32::from_be_bytes(*len), u32::from_be_bytes(*sum), u64::from_be_bytes(*synced));
        if len == 0 || synced > at {
            return Ok(None);
        }
        let Some(whole) = self.get(at, HEADER + u64::from(len))? else { return Ok(None) };
        let payload = &whole[HEADER as usize..];
        Ok((checksum(at, synced, payload) == sum).then_some(Frame { payload, synced }))
    }

    /// Returns a range of bytes of the object; `None` if the object ends before the end of the range.
    fn get(&mut self, at: u64, len: u64) -> Result<Option<&[u8]>, Failure> {
        if at.checked_add(len).is_none_or(|end| end > self.size) {
            return Ok(None);
        }
        if at < self.at || at + len > self.at + self.bytes.len() as u64 {
            self.bytes.clear();
            self.bytes = self.read(at, len.max(WINDOW).min(self.size - at))?;
            self.at = at;
        }
        let from = (at - self.at) as usize;
        Ok(Some(&self.bytes[from..from + len as usize]))
    }

    fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, Failure> {
        let Target { store, object, generation, .. } = self.target;
        let mut plan = ReadPlan::default();
        // No record is longer than 4 GiB, because a header has 32 bits for its length.
        let extents = [Extent { offset: at, len: u32::try_from(len).unwrap_or(u32::MAX) }];
        let open = object.plan_read(store, generation, &extents, &mut plan)?;
        let mut data = vec![0; plan.data_len as usize];
        if let Some(open) = open {
            open.read(&plan.runs, &mut data, store.counters()).map_err(|failure| match failure.status {
                Status::Corrupt => damaged(self.target, at, failure.detail.as_deref().unwrap_or("a checksum is wrong")),
                _ => failure,
            })?;
        }
        let (mut bytes, mut rest) = (Vec::with_capacity(len as usize), &data[..]);
        for piece in &plan.pieces {
            match piece.kind {
                PieceKind::Data => {
                    let (here, behind) = rest.split_at(piece.len as usize);
                    bytes.extend_from_slice(here);
                    rest = behind;
                }
                PieceKind::Hole | PieceKind::Beyond => bytes.resize(bytes.len() + piece.len as usize, 0),
            }
        }
        bytes.resize(len as usize, 0);
        Ok(bytes)
    }
}
