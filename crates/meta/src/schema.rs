//! The schema of the metadata store: all keys and records, and the merge function of records.
//!
//! A key is a tag byte, followed by big-endian numbers and, in some kinds of keys, a name. A record is XDR that begins
//! with its version number.

mod dentry;
mod format;
mod inode;
mod intent;
mod merge;

pub use dentry::{CookieKey, Dentry, bucket};
pub use format::FormatRecord;
pub use inode::{Body, Core, Tail, XattrTally};
pub use intent::{FileIntent, Intent};
pub use merge::{Counts, Delta, Holes, NextId, SizeDelta, TailDelta, Whole, WriteEnd, merge};

use crate::engine::{Key, Value};
use bytes::Bytes;
use types::{FileId, Status, Timestamp};
use xdr::{Malformed, Reader, Writer, Xdr};

/// A record of the store: a version number followed by XDR fields.
pub trait Record: Sized {
    /// The version number of the records that this program writes. The program refuses to read records of any other
    /// version.
    const VERSION: u32 = 1;

    /// Encodes the record without its version number, and appends the result to `out`.
    fn encode(&self, out: &mut Writer);

    /// Decodes the record from `input`, which begins after the version number.
    fn decode(input: &mut Reader) -> Result<Self, Malformed>;

    /// Returns the encoded record with its version number.
    fn to_value(&self) -> Value {
        let mut out = Writer::new();
        out.u32(Self::VERSION);
        self.encode(&mut out);
        out.finish().to_bytes()
    }

    /// Decodes the record in `value`. If `value` is malformed, the error says why.
    fn read(value: Bytes) -> Result<Self, Malformed> {
        let mut input = Reader::new(value);
        if input.u32()? != Self::VERSION {
            return Err(Malformed::Invalid("record of another version"));
        }
        let record = Self::decode(&mut input)?;
        input.finish()?;
        Ok(record)
    }

    /// Decodes the record in `value`; `None` if `value` is malformed. Unlike [`Self::from_value`], does not log an
    /// error.
    fn look(value: &[u8]) -> Option<Self> {
        Self::read(Bytes::copy_from_slice(value)).ok()
    }

    /// Decodes the record in `value`. If `value` is malformed, logs an error and returns `Corrupt`.
    fn from_value(value: Bytes) -> Result<Self, Status> {
        Self::read(value).map_err(|cause| {
            tracing::error!(%cause, record = std::any::type_name::<Self>(), "damaged record in the metadata store");
            Status::Corrupt
        })
    }
}

/// Key of the format record ([`FormatRecord`]).
pub const FORMAT: &[u8] = b"f";
/// Key of the next inode number to allocate ([`NextId`]).
pub const NEXT_ID: &[u8] = b"n";
/// Key of the inode count ([`Counts`]).
pub const COUNTS: &[u8] = b"s";

fn tagged(tag: u8, id: FileId, rest: &[u8]) -> Key {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(tag);
    key.extend_from_slice(&id.0.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

/// Returns the key of an inode's core record ([`Core`]: type, owner, layout), which seldom changes.
pub fn core_key(id: FileId) -> Key {
    tagged(b'i', id, &[0])
}

/// Returns the key of an inode's tail record ([`Tail`]: size, times, change attribute), which changes often.
pub fn tail_key(id: FileId) -> Key {
    tagged(b'i', id, &[1])
}

/// Returns the key of a directory entry ([`Dentry`]).
pub fn dentry_key(dir: FileId, cookie: u64) -> Key {
    tagged(b'd', dir, &cookie.to_be_bytes())
}

/// Returns the first key after the keys of all entries of a directory.
pub fn dentries_end(dir: FileId) -> Key {
    // `u64::MAX` is larger than every cookie, because cookies have 63 bits.
    tagged(b'd', dir, &[0xff; 8])
}

/// Returns the cookie in the key of a directory entry; the error `Corrupt` for other keys.
pub fn cookie_of(key: &[u8]) -> Result<u64, Status> {
    let bytes = key.get(9..).and_then(|rest| rest.try_into().ok()).ok_or(Status::Corrupt)?;
    Ok(u64::from_be_bytes(bytes))
}

/// Returns the key of an extended attribute. The record is the attribute's value, without a version number.
pub fn xattr_key(id: FileId, name: &[u8]) -> Key {
    tagged(b'x', id, name)
}

/// Returns the first key after the keys of all extended attributes of a file.
pub fn xattrs_end(id: FileId) -> Key {
    next_file(b'x', id)
}

/// Returns the attribute name in a key made by [`xattr_key`].
pub fn xattr_name(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// Returns the first key with the tag byte `tag` and an inode number above `id`.
fn next_file(tag: u8, id: FileId) -> Key {
    match id.0.checked_add(1) {
        Some(next) => tagged(tag, FileId(next), &[]),
        None => vec![tag + 1],
    }
}

/// Returns the key that marks a file as an orphan (a regular file without a name). The record is empty.
pub fn orphan_key(id: FileId) -> Key {
    tagged(b'o', id, &[])
}

/// Returns the key of a doomed file, which is deleted but whose objects may still exist ([`crate::Doomed`]).
pub fn doomed_key(id: FileId) -> Key {
    tagged(b'g', id, &[])
}

/// Returns the key of the unused objects of a file ([`crate::Unused`]).
pub fn unused_key(id: FileId) -> Key {
    tagged(b'u', id, &[])
}

/// Returns the key of the bytes of an inline file. The record is the file's bytes from offset 0 on, without a version
/// number. If the record is shorter than the file size, the remaining bytes of the file are zeros.
pub fn bytes_key(id: FileId) -> Key {
    tagged(b'b', id, &[])
}

/// Returns the key of an intent of a file ([`Intent`]); `kind` is the number that [`Intent::kind`] returns.
pub fn intent_key(id: FileId, kind: u8) -> Key {
    tagged(b'w', id, &[kind])
}

/// Returns the first key after the keys of all intents of a file.
pub fn intents_end(id: FileId) -> Key {
    next_file(b'w', id)
}

/// Returns the file and the intent kind in a key made by [`intent_key`]; the error `Corrupt` for other keys.
pub fn intent_of(key: &[u8]) -> Result<(FileId, u8), Status> {
    match key.split_last() {
        Some((kind, rest)) => Ok((id_of(rest)?, *kind)),
        None => Err(Status::Corrupt),
    }
}

/// Returns the first key after all keys that have the same tag byte as `key`.
pub fn past_all(key: &[u8]) -> Key {
    vec![key.first().map_or(0, |tag| tag + 1)]
}

/// Returns the inode number in a key that consists of a tag and an inode number, such as the keys made by
/// [`orphan_key`]. Returns the error `Corrupt` for other keys.
pub fn id_of(key: &[u8]) -> Result<FileId, Status> {
    let bytes = key.get(1..).and_then(|rest| rest.try_into().ok()).ok_or(Status::Corrupt)?;
    Ok(FileId(u64::from_be_bytes(bytes)))
}

/// Returns the key of a registry record: a small record of the mgr, such as a registered iod. The store does not
/// interpret its value.
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

impl Record for crate::Unused {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.file.0);
        out.u32(self.generation.0);
        Xdr::encode(&self.layout, out);
    }
    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(crate::Unused {
            file: FileId(input.u64()?),
            generation: types::Generation(input.u32()?),
            layout: Xdr::decode(input)?,
        })
    }
}
