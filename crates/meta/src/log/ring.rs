//! The ring of log records on disk: where the store writes records, and which records a replay accepts as the history
//! of the store.

use super::record::encode;
use super::{Anchor, BLOCK, Changes, Head, LogDisk, Stamp, blocks, crc32c};
use bytes::Bytes;
use std::io;
use types::limits;

const MAGIC: [u8; 8] = *b"WEIRLOG\0";
const VERSION: u32 = 1;
/// Number of used bytes in the first block of the log file; the other bytes of the block are padding.
const HEAD: usize = 32;
/// Maximum number of bytes in one write call that fills the ring with zeros. Also the maximum size of the record buffer
/// that the log keeps for the next record.
const CHUNK: u64 = 1 << 20;

/// The reason why a store cannot use a log.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the error text documents each variant
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

/// A batch log: the storage of the log, and the position at which the log writes the next record.
pub struct Log {
    disk: Box<dyn LogDisk>,
    /// The anchor (replay position) that the store must save when it writes the changes of the last record to the
    /// database table.
    now: Anchor,
    /// Number of bytes in the ring that hold records after the last anchor (replay position) that the store made
    /// durable. The log must not overwrite these bytes.
    held: u64,
    /// Sequence number of the last log record that is durable on the disk.
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
    /// Creates an empty log on `disk` and discards the previous content of `disk`. The store must save the
    /// [`Self::anchor`] (replay position) before it writes records.
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

    /// Opens the log that belongs to `anchor` (the position after which a replay begins). The caller then replays all
    /// later records ([`Self::read_on`]) and calls [`Self::begin`]. Finally the store must save the new
    /// [`Self::anchor`].
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

    /// Returns the anchor (replay position) after the last record. The store must save this anchor in the same
    /// transaction as the changes of the last record.
    pub fn anchor(&self) -> Anchor {
        self.now
    }

    /// Returns whether all written records are durable.
    pub fn is_flushed(&self) -> bool {
        self.flushed == self.now.index
    }

    /// Returns the changes of the next record in a replay; `None` after the last complete record.
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

    /// Verifies that the replay has reached the end of the history, where the next record is missing. If a later record
    /// shows that the missing record had been flushed, the log is damaged.
    fn end(&self) -> Result<(), LogError> {
        let missing = self.now.index.saturating_add(1);
        let rest = self.now.size - self.held;
        let mut block = [0; Head::LEN];
        for offset in (BLOCK..rest).step_by(BLOCK as usize) {
            let position = (self.now.position + offset) % self.now.size;
            self.disk.read_at(BLOCK + position, &mut block)?;
            // A record of this run whose sequence number is above that of the missing record cannot be left from an
            // earlier pass over the ring. If the record says that the missing record had been flushed, the missing
            // record was lost by damage.
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

    /// Reads the record at `position` in the ring. Returns `None` if there is no complete record of at most `most`
    /// bytes.
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

    /// Begins a new run of the log after a replay. From now on, a replay no longer accepts records of earlier runs at
    /// or after the current position in the ring.
    pub fn begin(&mut self) {
        self.now.run += 1;
        self.flushed = self.now.index;
    }

    /// Returns whether at most an eighth of the ring is free. Also returns true if the log has no ring.
    pub fn is_nearly_full(&self) -> bool {
        self.now.size.saturating_sub(self.held) <= self.now.size / 8
    }

    /// Encodes the next record with these changes. Returns whether the ring has space for the record.
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

    /// Writes the record that [`Self::prepare`] encoded to the ring, without a flush.
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

    /// Flushes all written log records to the disk.
    pub fn flush(&mut self) -> io::Result<()> {
        self.disk.sync()?;
        self.flushed = self.now.index;
        Ok(())
    }

    /// Doubles the ring, if the log has a ring and the storage allows it. Returns whether the ring was doubled. The
    /// store must durably save the new [`Self::anchor`] (replay position) before it writes more records.
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

    /// Frees all space in the ring. The caller has made all changes up to the [`Self::anchor`] (replay position)
    /// durable in the database table.
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
