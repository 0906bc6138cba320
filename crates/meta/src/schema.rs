//! Every key and record of the metadata store, and how records merge.
//!
//! A key is a tag byte followed by big-endian numbers and, last, a name; a record is XDR that begins with its version.

mod dentry;
mod format;
mod inode;
mod intent;
mod merge;

pub use dentry::{CookieKey, Dentry, bucket};
pub use format::FormatRecord;
pub use inode::{Body, Core, Tail, XattrTally};
pub use intent::{Intent, Noted};
pub use merge::{Counts, Delta, Holes, NextId, Reach, SizeDelta, TailDelta, Whole, merge};

use crate::engine::{Key, Value};
use bytes::Bytes;
use types::{FileId, Status, Timestamp};
use xdr::{Malformed, Reader, Writer, Xdr};

/// A record of the store: XDR behind a version number.
pub trait Record: Sized {
    /// The version this program writes and the only one it reads.
    const VERSION: u32 = 1;

    /// Appends everything but the version.
    fn encode(&self, out: &mut Writer);

    /// Takes everything but the version.
    fn decode(input: &mut Reader) -> Result<Self, Malformed>;

    /// The whole record.
    fn to_value(&self) -> Value {
        let mut out = Writer::new();
        out.u32(Self::VERSION);
        self.encode(&mut out);
        out.finish().to_bytes()
    }

    /// The record in `value`, or why there is none.
    fn read(value: Bytes) -> Result<Self, Malformed> {
        let mut input = Reader::new(value);
        if input.u32()? != Self::VERSION {
            return Err(Malformed::Invalid("record of another version"));
        }
        let record = Self::decode(&mut input)?;
        input.finish()?;
        Ok(record)
    }

    /// The record in `value` if that is one: for whoever expects damage and says it by itself.
    fn look(value: &[u8]) -> Option<Self> {
        Self::read(Bytes::copy_from_slice(value)).ok()
    }

    /// The record in `value`; `Corrupt`, and a line in the log, if that is anything else.
    fn from_value(value: Bytes) -> Result<Self, Status> {
        Self::read(value).map_err(|cause| {
            tracing::error!(%cause, record = std::any::type_name::<Self>(), "damaged record in the metadata store");
            Status::Corrupt
        })
    }
}

/// The format record ([`FormatRecord`]).
pub const FORMAT: &[u8] = b"f";
/// The first inode number not yet given out ([`NextId`]).
pub const NEXT_ID: &[u8] = b"n";
/// How many files there are ([`Counts`]).
pub const COUNTS: &[u8] = b"s";

fn tagged(tag: u8, id: FileId, rest: &[u8]) -> Key {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(tag);
    key.extend_from_slice(&id.0.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

/// The slowly changing half of an inode ([`Core`]).
pub fn core_key(id: FileId) -> Key {
    tagged(b'i', id, &[0])
}

/// The often changing half of an inode ([`Tail`]).
pub fn tail_key(id: FileId) -> Key {
    tagged(b'i', id, &[1])
}

/// One name of a directory ([`Dentry`]).
pub fn dentry_key(dir: FileId, cookie: u64) -> Key {
    tagged(b'd', dir, &cookie.to_be_bytes())
}

/// Past every name of a directory.
pub fn dentries_end(dir: FileId) -> Key {
    // Cookies have 63 bits.
    tagged(b'd', dir, &[0xff; 8])
}

/// The cookie in a key made by [`dentry_key`]; `Corrupt` if it is none.
pub fn cookie_of(key: &[u8]) -> Result<u64, Status> {
    let bytes = key.get(9..).and_then(|rest| rest.try_into().ok()).ok_or(Status::Corrupt)?;
    Ok(u64::from_be_bytes(bytes))
}

/// An extended attribute: the value alone, unversioned.
pub fn xattr_key(id: FileId, name: &[u8]) -> Key {
    tagged(b'x', id, name)
}

/// Past every extended attribute of a file.
pub fn xattrs_end(id: FileId) -> Key {
    next_file(b'x', id)
}

/// The name in a key made by [`xattr_key`].
pub fn xattr_name(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// The first key with this tag behind all that belong to `id`.
fn next_file(tag: u8, id: FileId) -> Key {
    match id.0.checked_add(1) {
        Some(next) => tagged(tag, FileId(next), &[]),
        None => vec![tag + 1],
    }
}

/// A file without a name that may still be open (empty value).
pub fn orphan_key(id: FileId) -> Key {
    tagged(b'o', id, &[])
}

/// A file that is gone but whose objects may remain ([`crate::Doomed`]).
pub fn doomed_key(id: FileId) -> Key {
    tagged(b'g', id, &[])
}

/// The bytes of a small file that has no objects: as they are, unversioned, from the first on. What its size has beyond them is zeros.
pub fn bytes_key(id: FileId) -> Key {
    tagged(b'b', id, &[])
}

/// What is still to be done about a file ([`Intent`]), given the number of its kind.
pub fn intent_key(id: FileId, kind: u8) -> Key {
    tagged(b'w', id, &[kind])
}

/// Past every intent of a file.
pub fn intents_end(id: FileId) -> Key {
    next_file(b'w', id)
}

/// File and kind of a key made by [`intent_key`]; `Corrupt` if it is none.
pub fn intent_of(key: &[u8]) -> Result<(FileId, u8), Status> {
    match key.split_last() {
        Some((kind, rest)) => Ok((id_of(rest)?, *kind)),
        None => Err(Status::Corrupt),
    }
}

/// Past every orphan or doomed record, given a key of either.
pub fn past_all(key: &[u8]) -> Key {
    vec![key.first().map_or(0, |tag| tag + 1)]
}

/// The inode number in a key made by [`orphan_key`] or [`doomed_key`]; `Corrupt` if it is none.
pub fn id_of(key: &[u8]) -> Result<FileId, Status> {
    let bytes = key.get(1..).and_then(|rest| rest.try_into().ok()).ok_or(Status::Corrupt)?;
    Ok(FileId(u64::from_be_bytes(bytes)))
}

/// A small record of the daemon's own, such as an iod that registered (value opaque).
pub fn registry_key(name: &[u8]) -> Key {
    let mut key = Vec::with_capacity(1 + name.len());
    key.push(b'r');
    key.extend_from_slice(name);
    key
}

fn put_time(out: &mut Writer, time: Timestamp) {
    out.i64(time.secs);
    out.u32(time.nanos);
}

fn get_time(input: &mut Reader) -> Result<Timestamp, Malformed> {
    let secs = input.i64()?;
    Timestamp::new(secs, input.u32()?).ok_or(Malformed::Invalid("nanoseconds out of range"))
}

fn put_option<T>(out: &mut Writer, value: Option<T>, put: impl FnOnce(&mut Writer, T)) {
    out.bool(value.is_some());
    if let Some(value) = value {
        put(out, value);
    }
}

fn get_option<T>(
    input: &mut Reader,
    get: impl FnOnce(&mut Reader) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    Ok(if input.bool()? { Some(get(input)?) } else { None })
}

impl Xdr for crate::Layout {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.kind);
        out.opaque(&self.body);
    }
    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(crate::Layout { kind: input.u32()?, body: input.opaque(types::limits::LAYOUT_RECORD_MAX)? })
    }
}

impl Record for crate::Doomed {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.id.0);
        out.u32(self.generation.0);
        Xdr::encode(&self.layout, out);
    }
    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(crate::Doomed {
            id: FileId(input.u64()?),
            generation: types::Generation(input.u32()?),
            layout: Xdr::decode(input)?,
        })
    }
}
