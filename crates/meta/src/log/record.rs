//! A record of the batch log: the changes of a window under a checksum, bound to their place in the store's history.

use super::{blocks, crc32c};
use crate::engine::{Key, Value};
use bytes::Bytes;
use std::collections::BTreeMap;
use xdr::Malformed;

/// The changed keys of a window with their values; `None` deletes the key.
pub type Changes = BTreeMap<Key, Option<Value>>;

const MAGIC: [u8; 8] = *b"WEIRLOGR";
/// Stored length that means "no value": the key is deleted.
const ABSENT: u32 = u32::MAX;

/// Identity of a record: its store, its run and its place in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Identity of the store.
    pub store: [u8; 16],
    /// The run of the store in which the record was written.
    pub run: u64,
    /// Number of the record.
    pub index: u64,
    /// All records up to this number were flushed when this record was written.
    pub flushed: u64,
    /// Checksum of the previous record.
    pub chain: u32,
}

/// The head of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Checksum of everything after this field, to the end of the record.
    pub crc: u32,
    /// Length of the record in bytes, with head, without padding.
    pub len: u32,
    /// Identity of the record.
    pub stamp: Stamp,
    /// Number of changes.
    pub count: u32,
}

impl Head {
    /// Bytes of a head.
    pub const LEN: usize = 64;
    /// Offset where the part under the checksum begins.
    const CHECKED: usize = 12;

    /// Reads the head in the first [`Self::LEN`] of `bytes`; `None` if there is no head. Checks only the magic number
    /// and the least length.
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

    /// Returns whether `record`, which has this head, is whole.
    pub fn matches(&self, record: &[u8]) -> bool {
        record.get(Self::CHECKED..self.len as usize).is_some_and(|checked| crc32c(checked) == self.crc)
    }

    /// Decodes the changes in `record`, which has this head and is whole.
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

/// Takes `N` bytes from the front of `bytes`.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

/// Encodes a record with these changes into `out`, padded with zeros to whole blocks. Returns its checksum.
///
/// `None` if the record is longer than its length field can say. Keys have at most [`types::limits::KEY_MAX`] bytes.
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
        // The length of the record fits, so the length of each value fits too.
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
