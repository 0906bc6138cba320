//! A record of the batch log: the changes of a commit group (batches committed together), with a checksum and the
//! record's position in the store's history.

use super::{blocks, crc32c};
use crate::engine::{Key, Value};
use bytes::Bytes;
use std::collections::BTreeMap;
use xdr::Malformed;

/// The changed keys of a commit group with their new values; `None` means that the key is deleted.
pub type Changes = BTreeMap<Key, Option<Value>>;

const MAGIC: [u8; 8] = *b"WEIRLOGR";
/// Value of a length field that means that the key is deleted.
const ABSENT: u32 = u32::MAX;

/// The identity of a log record: the store, the run (the time between two opens of the store), and the position in
/// the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Random id of the store.
    pub store: [u8; 16],
    /// The run number: how many times the store had been opened when the record was written.
    pub run: u64,
    /// Sequence number of the record.
    pub index: u64,
    /// Sequence number of the last log record that had been flushed when this record was written.
    pub flushed: u64,
    /// Checksum of the previous log record. A replay accepts a record only if this field equals the checksum of the
    /// record that the replay has accepted last.
    pub chain: u32,
}

/// The header of a log record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Checksum of the record's bytes that follow this field, without padding.
    pub crc: u32,
    /// Length of the record in bytes, including the header and excluding the padding.
    pub len: u32,
    /// The identity of the record: the store, the run (the time between two opens of the store), and the position in
    /// the log.
    pub stamp: Stamp,
    /// Number of changes in the record.
    pub count: u32,
}

impl Head {
    /// Length of the header of a log record in bytes.
    pub const LEN: usize = 64;
    /// Offset in a log record of the first byte that the checksum covers.
    const CHECKED: usize = 12;

    /// Decodes a record header from the first [`Self::LEN`] bytes of `bytes`. Returns `None` if the magic number is
    /// wrong or the length is too small. Does not verify the checksum.
    pub fn read(bytes: &[u8]) -> Option<Head> {
        let mut bytes = bytes.get(..Self::LEN)?;
        if take::<8>(&mut bytes)? != MAGIC {
            return None;
        }
        let crc = u32::from_be_bytes(take(&mut bytes)?);
        let len = u32::from_be_bytes(take(&mut bytes)?);
        let stamp = Stamp {
            store: take(&mut bytes)?,
            run: u64::from_be_bytes(take(&mut bytes)?),
            index: u64::from_be_bytes(take(&mut bytes)?),
            flushed: u64::from_be_bytes(take(&mut bytes)?),
            chain: u32::from_be_bytes(take(&mut bytes)?),
        };
        let count = u32::from_be_bytes(take(&mut bytes)?);
        (len as usize >= Self::LEN).then_some(Head { crc, len, stamp, count })
    }

    /// Returns whether the checksum of `record` matches this header, so that the record is complete.
    pub fn matches(&self, record: &[u8]) -> bool {
        record.get(Self::CHECKED..self.len as usize).is_some_and(|checked| crc32c(checked) == self.crc)
    }

    /// Decodes the changes in `record`. The caller has verified the checksum of `record`.
    pub fn changes(&self, record: &Bytes) -> Result<Changes, Malformed> {
        let cut = || Malformed::Invalid("a record of the batch log that is cut off");
        let end = (self.len as usize).min(record.len());
        let mut at = Self::LEN;
        let mut part = |len: usize| {
            let from = at;
            at = at.checked_add(len).filter(|to| *to <= end).ok_or_else(cut)?;
            Ok(record.slice(from..at))
        };
        let mut changes = Changes::new();
        for _ in 0..self.count {
            let mut lens = &part(6)?[..];
            let key = u16::from_be_bytes(take(&mut lens).ok_or_else(cut)?);
            let value = u32::from_be_bytes(take(&mut lens).ok_or_else(cut)?);
            let key = part(key.into())?.to_vec();
            let value = if value == ABSENT { None } else { Some(part(value as usize)?) };
            changes.insert(key, value);
        }
        if at == end {
            Ok(changes)
        } else {
            Err(Malformed::Invalid("a record of the batch log with something behind it"))
        }
    }
}

/// Removes the first `N` bytes of `bytes` and returns them; `None` if `bytes` has fewer than `N` bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

/// Encodes a record with these changes into `out`, padded with zeros to a multiple of the block size. Returns the
/// checksum of the record.
///
/// Returns `None` if the record is too long for the 32-bit length field of its header. Keys have at most
/// [`types::limits::KEY_MAX`] bytes.
pub(super) fn encode(stamp: &Stamp, changes: &Changes, out: &mut Vec<u8>) -> Option<u32> {
    let len = |(key, value): (&Key, &Option<Value>)| 6 + key.len() + value.as_ref().map_or(0, Value::len);
    let len = Head::LEN + changes.iter().map(len).sum::<usize>();
    let count = u32::try_from(changes.len()).ok()?;
    out.clear();
    out.reserve(blocks(len as u64) as usize);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&u32::try_from(len).ok().filter(|len| *len < ABSENT)?.to_be_bytes());
    out.extend_from_slice(&stamp.store);
    out.extend_from_slice(&stamp.run.to_be_bytes());
    out.extend_from_slice(&stamp.index.to_be_bytes());
    out.extend_from_slice(&stamp.flushed.to_be_bytes());
    out.extend_from_slice(&stamp.chain.to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    for (key, value) in changes {
        out.extend_from_slice(&u16::try_from(key.len()).ok()?.to_be_bytes());
        // The record length fits in 32 bits (checked before), so the length of each value also fits.
        let value_len = value.as_ref().map_or(ABSENT, |value| value.len() as u32);
        out.extend_from_slice(&value_len.to_be_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    let crc = crc32c(&out[Head::CHECKED..]);
    out[8..Head::CHECKED].copy_from_slice(&crc.to_be_bytes());
    out.resize(blocks(len as u64) as usize, 0);
    Some(crc)
}
