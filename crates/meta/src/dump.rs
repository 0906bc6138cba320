//! Dumps of the metadata store: one file with all records and checksums, from which a store can be restored.
//!
//! This module only encodes and decodes; it does no file I/O. `docs/FORMATS.md` describes the format under "Dump".

use crate::engine::{Batch, Engine, Key, Outcome, Value, Write};
use crate::log::crc32c;
use bytes::Bytes;
use std::io::{self, Read};
use types::{Fsid, StoreId, limits};

const MAGIC: [u8; 8] = *b"WEIRDUMP";
const VERSION: u32 = 1;
/// Length of a dump's header in bytes, including the checksum of the header.
pub const HEAD: usize = 56;
/// The kinds of blocks in a dump. A block begins with the number of the block's kind.
const RECORDS: u32 = 1;
const END: u32 = 2;
/// The encoder ends a block as soon as the block has at least this many bytes.
const BLOCK: usize = 256 << 10;
/// Maximum length of a block in bytes: a block of just under `BLOCK` bytes may receive one more record of maximum
/// length.
pub const BLOCK_MAX: usize = BLOCK + RECORD_HEAD + limits::KEY_MAX + limits::VALUE_MAX;
/// Length in bytes of the fields that precede a record's key.
const RECORD_HEAD: usize = 6;

/// The header of a dump, which identifies the file system and the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DumpHead {
    /// Id of the dumped file system.
    pub fsid: Fsid,
    /// Id of the dumped metadata store.
    pub store: StoreId,
    /// Time at which the dump began, in seconds since the Unix epoch.
    pub created: u64,
}

/// The reason why a file is not a valid dump.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the error text documents each variant
pub enum BadDump {
    #[error("it is not a dump of a metadata store")]
    NoDump,
    #[error("it is a dump of format version {0}, this program reads version {VERSION}")]
    WrongVersion(u32),
    #[error("it is truncated after {0} records")]
    CutOff(u64),
    #[error("it is damaged after {0} records: a checksum does not match")]
    Checksum(u64),
    #[error("it is damaged after {0} records: {1}")]
    Damaged(u64, &'static str),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl DumpHead {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.fsid.0);
        out.extend_from_slice(&self.store.0);
        out.extend_from_slice(&self.created.to_be_bytes());
        out.extend_from_slice(&crc32c(&out).to_be_bytes());
        out
    }

    fn decode(bytes: &[u8; HEAD]) -> Result<Self, BadDump> {
        let (checked, crc) = bytes.split_at(HEAD - 4);
        let mut rest = checked;
        if take(&mut rest) != Some(MAGIC) {
            return Err(BadDump::NoDump);
        }
        match take(&mut rest).map_or(0, u32::from_be_bytes) {
            VERSION => {}
            other => return Err(BadDump::WrongVersion(other)),
        }
        if crc != crc32c(checked).to_be_bytes() {
            return Err(BadDump::Checksum(0));
        }
        DumpHead::fields(rest).ok_or(BadDump::NoDump)
    }

    fn fields(mut rest: &[u8]) -> Option<Self> {
        let (fsid, store) = (Fsid(take(&mut rest)?), StoreId(take(&mut rest)?));
        Some(DumpHead { fsid, store, created: u64::from_be_bytes(take(&mut rest)?) })
    }
}

/// Removes the first `N` bytes of `bytes` and returns them; `None` if `bytes` has fewer than `N` bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// Removes the first record of `block` and returns its key and value.
fn take_record<'b>(block: &mut &'b [u8]) -> Result<(&'b [u8], &'b [u8]), &'static str> {
    let cut_off = "a record is cut off";
    let key = usize::from(take(block).map(u16::from_be_bytes).ok_or(cut_off)?);
    let value = take(block).map(u32::from_be_bytes).ok_or(cut_off)? as usize;
    if key > limits::KEY_MAX || value > limits::VALUE_MAX {
        return Err("a record is too long");
    }
    let (record, rest) = block.split_at_checked(key + value).ok_or(cut_off)?;
    *block = rest;
    Ok(record.split_at(key))
}

/// Returns the checksum of a block, which depends on the checksum of the previous block. So the decoder detects
/// missing, repeated and reordered blocks.
fn chained(before: u32, block: &[u8]) -> u32 {
    crc32c(&[&before.to_be_bytes()[..], block].concat())
}

/// The encoder of a dump.
#[derive(Debug)]
pub struct Encoder {
    chain: u32,
    /// The records of the current block, after 8 bytes that are reserved for the block's header.
    block: Vec<u8>,
    in_block: u64,
    records: u64,
}

impl Encoder {
    /// Begins a dump. Also returns the first bytes of the dump, which the caller must write to the file.
    pub fn new(head: &DumpHead) -> (Self, Vec<u8>) {
        let bytes = head.encode();
        (Encoder { chain: crc32c(&bytes), block: vec![0; 8], in_block: 0, records: 0 }, bytes)
    }

    /// Adds a record. The caller must add records in ascending order of keys. If the record fills a block, returns the
    /// next bytes of the dump and the number of records in these bytes.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Option<(Vec<u8>, u64)> {
        self.block.extend_from_slice(&(key.len() as u16).to_be_bytes());
        self.block.extend_from_slice(&(value.len() as u32).to_be_bytes());
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.in_block += 1;
        (self.block.len() >= BLOCK).then(|| self.close(RECORDS))
    }

    fn close(&mut self, kind: u32) -> (Vec<u8>, u64) {
        let mut block = std::mem::replace(&mut self.block, vec![0; 8]);
        let len = (block.len() - 8) as u32;
        block[..4].copy_from_slice(&kind.to_be_bytes());
        block[4..8].copy_from_slice(&len.to_be_bytes());
        self.chain = chained(self.chain, &block);
        block.extend_from_slice(&self.chain.to_be_bytes());
        let records = std::mem::take(&mut self.in_block);
        self.records += records;
        (block, records)
    }

    /// Ends the dump. Returns the last bytes of the dump and the number of records in these bytes.
    pub fn end(mut self) -> (Vec<u8>, u64) {
        let (mut bytes, mut records) = (Vec::new(), 0);
        if self.in_block > 0 {
            (bytes, records) = self.close(RECORDS);
        }
        self.block.extend_from_slice(&self.records.to_be_bytes());
        bytes.extend(self.close(END).0);
        (bytes, records)
    }
}

/// The decoder of a dump, which reads one block at a time.
#[derive(Debug)]
pub struct Decoder<R> {
    input: R,
    head: DumpHead,
    chain: u32,
    records: u64,
    last: Key,
    ended: bool,
}

impl<R: Read> Decoder<R> {
    /// Reads the header of a dump and verifies its checksum.
    pub fn new(mut input: R) -> Result<Self, BadDump> {
        let mut bytes = [0; HEAD];
        input.read_exact(&mut bytes).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => BadDump::NoDump,
            _ => e.into(),
        })?;
        let head = DumpHead::decode(&bytes)?;
        Ok(Decoder { input, head, chain: crc32c(&bytes), records: 0, last: Key::new(), ended: false })
    }

    /// Returns the header of the dump.
    pub fn head(&self) -> &DumpHead {
        &self.head
    }

    /// Returns how many records the decoder has returned so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), BadDump> {
        self.input.read_exact(buffer).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => BadDump::CutOff(self.records),
            _ => e.into(),
        })
    }

    /// Reads the next block and returns its records in key order; `None` at the end of a complete dump.
    pub fn next_block(&mut self) -> Result<Option<Vec<(Key, Value)>>, BadDump> {
        if self.ended {
            return Ok(None);
        }
        let mut head = [0; 8];
        self.fill(&mut head)?;
        let mut rest = &head[..];
        let mut word = || take(&mut rest).map_or(0, u32::from_be_bytes);
        let (kind, len) = (word(), word() as usize);
        if len > BLOCK_MAX {
            return Err(BadDump::Damaged(self.records, "a block is too long"));
        }
        let mut block = vec![0; head.len() + len + 4];
        block[..head.len()].copy_from_slice(&head);
        self.fill(&mut block[head.len()..])?;
        let crc = block.split_off(head.len() + len);
        self.chain = chained(self.chain, &block);
        if crc != self.chain.to_be_bytes() {
            return Err(BadDump::Checksum(self.records));
        }
        match kind {
            RECORDS => self.take_records(&block[head.len()..]).map(Some),
            END => self.end(&block[head.len()..]).map(|()| None),
            _ => Err(BadDump::Damaged(self.records, "a block is of an unknown kind")),
        }
    }

    fn take_records(&mut self, mut rest: &[u8]) -> Result<Vec<(Key, Value)>, BadDump> {
        let mut records = Vec::new();
        while !rest.is_empty() {
            let damaged = |why| BadDump::Damaged(self.records, why);
            let (key, value) = take_record(&mut rest).map_err(damaged)?;
            if self.records > 0 && key <= &self.last[..] {
                return Err(damaged("the records are in no order"));
            }
            self.last = key.to_vec();
            self.records += 1;
            records.push((key.to_vec(), Bytes::copy_from_slice(value)));
        }
        Ok(records)
    }

    fn end(&mut self, payload: &[u8]) -> Result<(), BadDump> {
        if payload != self.records.to_be_bytes() {
            return Err(BadDump::Damaged(self.records, "it should have another number of records"));
        }
        self.ended = true;
        match self.input.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(BadDump::Damaged(self.records, "something follows its end")),
        }
    }
}

/// The reason why a restore failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the error text documents each variant
pub enum RestoreError {
    #[error(transparent)]
    Bad(#[from] BadDump),
    #[error("no space left on the disk of the metadata store; free space, then run the command again")]
    Full,
    #[error("the metadata store cannot be written: {0}")]
    Failed(String),
}

/// Writes all records of a dump durably into an empty store. Returns the number of records written.
pub async fn restore<R: Read>(engine: &impl Engine, mut dump: Decoder<R>) -> Result<u64, RestoreError> {
    while let Some(records) = dump.next_block()? {
        for records in records.chunks(limits::BATCH_WRITES_MAX) {
            let writes = records.iter().map(|(key, value)| (key.clone(), Write::Put(value.clone()))).collect();
            settled(engine.submit(Batch { writes, ..Batch::default() }).await)?;
        }
    }
    settled(engine.settle().await)?;
    Ok(dump.records())
}

fn settled(outcome: Outcome) -> Result<(), RestoreError> {
    match outcome {
        Outcome::Committed { .. } => Ok(()),
        Outcome::Full => Err(RestoreError::Full),
        Outcome::Unknown(broken) => Err(RestoreError::Failed(broken.to_string())),
        other => Err(RestoreError::Failed(format!("{other:?}"))),
    }
}
