//! The ring of log records on a disk: where records are written, and which records found there continue the store's
//! history.

use super::record::encode;
use super::{Anchor, BLOCK, Changes, Head, LogDisk, Stamp, blocks, crc32c};
use bytes::Bytes;
use std::io;
use types::limits;

const MAGIC: [u8; 8] = *b"WEIRLOG\0";
const VERSION: u32 = 1;
/// Bytes of the first block that have a meaning.
const HEAD: usize = 32;
/// Bytes written or read in one call when there are many.
const CHUNK: u64 = 1 << 20;

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's message says it
pub enum LogError {
    #[error("it is not a batch log of weir, or its header is damaged")]
    NoLog,
    #[error("it has format version {0}, this program reads version {VERSION}; use the version of weir that made it")]
    WrongVersion(u32),
    #[error("it belongs to another metadata store; put the log of this store back")]
    Foreign,
    #[error("it is truncated: it has {found} bytes instead of {wanted}")]
    Short { found: u64, wanted: u64 },
    #[error(
        "record {record} is damaged, and a later record is not, so no crash caused the damage: without the record, \
         durable changes would be lost; restore the store from a dump with `weir restore`"
    )]
    Damaged { record: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A log on its disk, with its current position.
pub struct Log {
    disk: Box<dyn LogDisk>,
    /// Anchor as of the last record written.
    now: Anchor,
    /// Bytes of records after the anchor that is on stable storage in the store.
    held: u64,
    /// Number of the last flushed record.
    flushed: u64,
    record: Vec<u8>,
    crc: u32,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Log { now, held, flushed, .. } = self;
        f.debug_struct("Log").field("now", now).field("held", held).field("flushed", flushed).finish_non_exhaustive()
    }
}

impl Log {
    /// Creates a new, empty log and overwrites the disk. The store must save [`Self::anchor`] before the log is
    /// used.
    pub fn format(disk: Box<dyn LogDisk>, store: [u8; 16]) -> io::Result<Self> {
        let size = disk.room().min(limits::META_LOG_BYTES) / BLOCK * BLOCK;
        let mut head = Vec::with_capacity(BLOCK as usize);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_be_bytes());
        head.extend_from_slice(&store);
        head.extend_from_slice(&crc32c(&head).to_be_bytes());
        head.resize(BLOCK as usize, 0);
        disk.set_len(0)?;
        disk.set_len(BLOCK + size)?;
        disk.write_at(0, &head)?;
        let log = Log::at(disk, Anchor::new(store, size));
        log.zero(0, size)?;
        log.disk.sync()?;
        Ok(log)
    }

    /// Opens the log that belongs to this anchor. The caller replays all records after the anchor ([`Self::read_on`])
    /// and calls [`Self::begin`]. Then the store must save the new [`Self::anchor`].
    pub fn open(disk: Box<dyn LogDisk>, anchor: Anchor) -> Result<Self, LogError> {
        let mut head = [0; HEAD];
        let (found, wanted) = (disk.len()?, BLOCK + anchor.size);
        if found < BLOCK {
            return Err(LogError::Short { found, wanted });
        }
        disk.read_at(0, &mut head)?;
        let (checked, crc) = head.split_at(HEAD - 4);
        if checked[..8] != MAGIC || crc32c(checked).to_be_bytes() != crc {
            return Err(LogError::NoLog);
        }
        let version = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        if version != VERSION {
            return Err(LogError::WrongVersion(version));
        }
        if head[12..HEAD - 4] != anchor.store {
            return Err(LogError::Foreign);
        }
        if found < wanted {
            return Err(LogError::Short { found, wanted });
        }
        Ok(Log::at(disk, anchor))
    }

    fn at(disk: Box<dyn LogDisk>, now: Anchor) -> Self {
        Log { disk, now, held: 0, flushed: now.index, record: Vec::new(), crc: 0 }
    }

    /// Returns the anchor, which the store has to keep together with the changes of the last record.
    pub fn anchor(&self) -> Anchor {
        self.now
    }

    /// Returns whether all written records are flushed.
    pub fn is_flushed(&self) -> bool {
        self.flushed == self.now.index
    }

    /// Returns the changes of the next record; `None` where the history ends, after the last whole record.
    pub fn read_on(&mut self) -> Result<Option<Changes>, LogError> {
        let Some((head, record)) = self.read(self.now.position, self.now.size - self.held)? else {
            return self.end().map(|()| None);
        };
        let Stamp { store, run, index, flushed: _, chain } = head.stamp;
        let Anchor { store: own, run: this, index: last, chain: before, .. } = self.now;
        if (store, run, chain) != (own, this, before) || Some(index) != last.checked_add(1) {
            return self.end().map(|()| None);
        }
        let changes = head.changes(&record).map_err(|_| LogError::Damaged { record: index })?;
        self.step(head.crc, u64::from(head.len));
        Ok(Some(changes))
    }

    /// Checks the end of the history: a flushed record may be missing only if no record was written after it.
    fn end(&self) -> Result<(), LogError> {
        let missing = self.now.index.saturating_add(1);
        let rest = self.now.size - self.held;
        let mut block = [0; Head::LEN];
        for offset in (BLOCK..rest).step_by(BLOCK as usize) {
            let position = (self.now.position + offset) % self.now.size;
            self.disk.read_at(BLOCK + position, &mut block)?;
            // Records of this run with a higher number are not left from earlier laps: they were written after the
            // missing one.
            let later = |head: &Head| {
                let Stamp { store, run, index, flushed, .. } = head.stamp;
                (store, run) == (self.now.store, self.now.run) && index > missing && flushed >= missing
            };
            if Head::read(&block).is_some_and(|head| later(&head)) && self.read(position, rest - offset)?.is_some() {
                return Err(LogError::Damaged { record: missing });
            }
        }
        Ok(())
    }

    /// Reads the record that begins at `position` and has at most `most` bytes; `None` if it is not whole.
    fn read(&self, position: u64, most: u64) -> io::Result<Option<(Head, Bytes)>> {
        if most < BLOCK {
            return Ok(None);
        }
        let mut record = vec![0; BLOCK as usize];
        self.disk.read_at(BLOCK + position, &mut record)?;
        let Some(head) = Head::read(&record) else { return Ok(None) };
        let len = u64::from(head.len);
        if len > most {
            return Ok(None);
        }
        record.resize(blocks(len) as usize, 0);
        let split = (self.now.size - position).min(blocks(len)) as usize;
        self.disk.read_at(BLOCK + position, &mut record[..split])?;
        self.disk.read_at(BLOCK, &mut record[split..])?;
        Ok(head.matches(&record).then(|| (head, record.into())))
    }

    fn step(&mut self, crc: u32, len: u64) {
        self.now.index += 1;
        self.now.chain = crc;
        self.now.position = (self.now.position + blocks(len)) % self.now.size;
        self.held += blocks(len);
    }

    /// Begins a new run, in which no record found after the last one counts any more.
    pub fn begin(&mut self) {
        self.now.run += 1;
        self.flushed = self.now.index;
    }

    /// Returns whether at most an eighth of the ring is free, or there is no ring.
    pub fn is_nearly_full(&self) -> bool {
        self.now.size.saturating_sub(self.held) <= self.now.size / 8
    }

    /// Prepares the record with these changes. Returns whether the ring has space for it.
    pub fn prepare(&mut self, changes: &Changes) -> bool {
        let Anchor { store, run, index, chain, size, .. } = self.now;
        if size == 0 {
            return false;
        }
        let stamp = Stamp { store, run, index: index + 1, flushed: self.flushed, chain };
        self.record.shrink_to(CHUNK as usize);
        let crc = encode(&stamp, changes, &mut self.record);
        self.crc = crc.unwrap_or_default();
        crc.is_some() && self.held + self.record.len() as u64 <= size
    }

    /// Writes the record that was prepared, without flushing it.
    pub fn append(&mut self) -> io::Result<()> {
        let position = self.now.position;
        let split = (self.now.size - position).min(self.record.len() as u64) as usize;
        let (first, rest) = self.record.split_at(split);
        self.disk.write_at(BLOCK + position, first)?;
        if !rest.is_empty() {
            self.disk.write_at(BLOCK, rest)?;
        }
        self.step(self.crc, self.record.len() as u64);
        Ok(())
    }

    /// Flushes the written records.
    pub fn flush(&mut self) -> io::Result<()> {
        self.disk.sync()?;
        self.flushed = self.now.index;
        Ok(())
    }

    /// Doubles the ring if the disk allows it and there is a ring. Returns whether it did. The store must save the new
    /// [`Self::anchor`] with its next flush. No record may be written before that flush.
    pub fn grow(&mut self) -> io::Result<bool> {
        let size = self.now.size;
        if size == 0 || size * 2 > self.disk.room() {
            return Ok(false);
        }
        let wanted = BLOCK + size * 2;
        if self.disk.len()? < wanted {
            self.disk.set_len(wanted)?;
        }
        self.zero(size, size * 2)?;
        self.disk.sync()?;
        self.flushed = self.now.index;
        self.now.size = size * 2;
        Ok(true)
    }

    /// Frees the ring, after the store has put everything up to [`Self::anchor`] on stable storage.
    pub fn applied(&mut self) {
        self.held = 0;
        self.flushed = self.now.index;
    }

    fn zero(&self, from: u64, to: u64) -> io::Result<()> {
        let zeros = vec![0; CHUNK as usize];
        for at in (from..to).step_by(CHUNK as usize) {
            self.disk.write_at(BLOCK + at, &zeros[..CHUNK.min(to - at) as usize])?;
        }
        Ok(())
    }
}
