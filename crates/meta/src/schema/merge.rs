//! Deltas that commute (they may be applied in any order), and the merge function that applies a delta to a record.

use super::{Record, Tail, get_option, get_time, put_option, put_time};
use crate::engine::Value;
use bytes::Bytes;
use types::{ByteRange, Timestamp, leaves_hole, limits};
use xdr::{Malformed, Reader, Writer};

/// A delta: a change that the store merges into an existing record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delta {
    /// A change of a tail record ([`Tail`]: the size, times and change attribute of an inode).
    Tail(TailDelta),
    /// Number of created inodes to add to the inode count ([`Counts`]); negative for deleted inodes.
    Files(i64),
    /// Number of inode numbers to allocate from [`NextId`].
    Ids(u64),
}

/// A change of a tail record ([`Tail`]). The change increments the change attribute of the inode, unless only
/// [`Self::whole`] is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TailDelta {
    /// Change of the file size, or for a directory of the number of entries.
    pub size: SizeDelta,
    /// Effect of the change on [`Tail::holes`] (whether the file may have holes). Holes that [`SizeDelta::Set`] creates
    /// when it extends the file come in addition.
    pub holes: Holes,
    /// Object lengths that have become durable, which may raise [`Tail::whole`]. Clients do not see [`Tail::whole`], so
    /// a change of this field alone does not increment the change attribute.
    pub whole: Option<Whole>,
    /// Number of subdirectories to add; negative for removed ones.
    pub subdirs: i32,
    /// New access time; `None` keeps the old access time.
    pub atime: Option<Timestamp>,
    /// New modification time; `None` keeps the old modification time.
    pub mtime: Option<Timestamp>,
    /// New change time; `None` keeps the old change time.
    pub ctime: Option<Timestamp>,
}

/// A change of [`Tail::size`], which is the file size or, for a directory, the number of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SizeDelta {
    /// The change does not affect the size.
    #[default]
    Keep,
    /// Sets the size to the given size. If this changes the size, the modification time becomes the given time.
    Set(u64, Timestamp),
    /// Raises the size to the given size, if the current size is below the given size.
    Grow(u64),
    /// Raises the size as [`Self::Grow`] does, and records that the last byte before the given offset is durable on an
    /// iod.
    Wrote(u64),
    /// Number of directory entries to add; negative for removed ones.
    Entries(i32),
}

/// The effect of a change on [`Tail::holes`] of a regular file: whether the file may have holes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Holes {
    /// The change has no effect on [`Tail::holes`] (whether the file may have holes).
    #[default]
    Keep,
    /// A write began at this offset. If the file ended before this offset, the file now has a hole.
    Before(u64),
    /// The change may have made holes in the file.
    Made,
}

/// A statement about the durable lengths of a file's objects: if every object was long enough for a file of length
/// `from`, every object is now long enough for a file of length `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Whole {
    /// File offset of the first written byte.
    pub from: u64,
    /// File offset after the last written byte.
    pub end: u64,
}

/// The end of a write, with its effects on the holes and on the durable object lengths of the file. A `WriteEnd` made
/// from a file offset alone has neither effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteEnd {
    /// File offset after the last written byte.
    pub end: u64,
    /// Effect of the write on [`Tail::holes`] (whether the file may have holes).
    pub holes: Holes,
    /// Object lengths that are durable once the written bytes are durable; `None` if these lengths are unknown.
    pub whole: Option<Whole>,
}

impl From<u64> for WriteEnd {
    fn from(end: u64) -> Self {
        WriteEnd { end, holes: Holes::Keep, whole: None }
    }
}

impl From<ByteRange> for WriteEnd {
    /// Describes a write of every byte of `range`.
    fn from(range: ByteRange) -> Self {
        let whole = Some(Whole { from: range.offset, end: range.end() });
        WriteEnd { end: range.end(), holes: Holes::Before(range.offset), whole }
    }
}

/// The record of the inode count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Number of inodes, including the root and orphans.
    pub files: u64,
}

/// The record of the next inode number to allocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextId(pub u64);

impl Record for Counts {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.files);
    }
    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Counts { files: input.u64()? })
    }
}

impl Record for NextId {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.0);
    }
    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(NextId(input.u64()?))
    }
}

impl TailDelta {
    /// Returns `tail` after this change; `None` if the change moves a field out of the field's valid range.
    pub fn apply(&self, mut tail: Tail) -> Option<Tail> {
        if *self != (TailDelta { whole: self.whole, ..TailDelta::default() }) || self.whole.is_none() {
            tail.change = tail.change.checked_add(1)?;
        }
        tail.mtime = self.mtime.unwrap_or(tail.mtime);
        tail.holes |= match self.holes {
            Holes::Keep => false,
            Holes::Before(from) => leaves_hole(tail.size, from),
            Holes::Made => true,
        };
        match self.size {
            SizeDelta::Keep => {}
            SizeDelta::Set(size, now) => {
                if tail.size != size {
                    tail.mtime = self.mtime.unwrap_or(now);
                }
                tail.holes = size > 0 && (tail.holes || leaves_hole(tail.size, size));
                tail.size = size;
                tail.written = tail.written.min(size);
                tail.whole = tail.whole.min(size);
            }
            SizeDelta::Grow(size) => tail.size = tail.size.max(size),
            SizeDelta::Wrote(size) => {
                tail.size = tail.size.max(size);
                tail.written = tail.written.max(size);
            }
            SizeDelta::Entries(n) => tail.size = tail.size.checked_add_signed(n.into())?,
        }
        if let Some(Whole { end, .. }) = self.whole.filter(|whole| whole.from <= tail.whole) {
            tail.whole = tail.whole.max(end.min(tail.size));
        }
        tail.subdirs = tail.subdirs.checked_add_signed(self.subdirs)?;
        tail.atime = self.atime.unwrap_or(tail.atime);
        tail.ctime = self.ctime.unwrap_or(tail.ctime);
        (tail.size <= limits::FILE_SIZE_MAX).then_some(tail)
    }
}

impl Delta {
    /// Returns the encoding of the delta in a batch.
    pub fn to_bytes(self) -> Bytes {
        let mut out = Writer::new();
        match self {
            Delta::Tail(delta) => {
                out.u32(1);
                match delta.size {
                    SizeDelta::Keep => out.u32(0),
                    SizeDelta::Set(size, now) => {
                        out.u32(1);
                        out.u64(size);
                        put_time(&mut out, now);
                    }
                    SizeDelta::Grow(size) => {
                        out.u32(2);
                        out.u64(size);
                    }
                    SizeDelta::Entries(n) => {
                        out.u32(3);
                        out.i32(n);
                    }
                    SizeDelta::Wrote(size) => {
                        out.u32(4);
                        out.u64(size);
                    }
                }
                match delta.holes {
                    Holes::Keep => out.u32(0),
                    Holes::Before(from) => {
                        out.u32(1);
                        out.u64(from);
                    }
                    Holes::Made => out.u32(2),
                }
                put_option(&mut out, delta.whole, |out, whole| {
                    out.u64(whole.from);
                    out.u64(whole.end);
                });
                out.i32(delta.subdirs);
                put_option(&mut out, delta.atime, put_time);
                put_option(&mut out, delta.mtime, put_time);
                put_option(&mut out, delta.ctime, put_time);
            }
            Delta::Files(n) => {
                out.u32(2);
                out.i64(n);
            }
            Delta::Ids(n) => {
                out.u32(3);
                out.u64(n);
            }
        }
        out.finish().to_bytes()
    }

    /// Decodes a delta from its encoding in a batch.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes);
        let delta = match input.u32()? {
            1 => Delta::Tail(TailDelta {
                size: match input.u32()? {
                    0 => SizeDelta::Keep,
                    1 => SizeDelta::Set(input.u64()?, get_time(&mut input)?),
                    2 => SizeDelta::Grow(input.u64()?),
                    3 => SizeDelta::Entries(input.i32()?),
                    4 => SizeDelta::Wrote(input.u64()?),
                    value => return Err(Malformed::BadValue { what: "size delta", value }),
                },
                holes: match input.u32()? {
                    0 => Holes::Keep,
                    1 => Holes::Before(input.u64()?),
                    2 => Holes::Made,
                    value => return Err(Malformed::BadValue { what: "delta of holes", value }),
                },
                whole: get_option(&mut input, |input| Ok(Whole { from: input.u64()?, end: input.u64()? }))?,
                subdirs: input.i32()?,
                atime: get_option(&mut input, get_time)?,
                mtime: get_option(&mut input, get_time)?,
                ctime: get_option(&mut input, get_time)?,
            }),
            2 => Delta::Files(input.i64()?),
            3 => Delta::Ids(input.u64()?),
            value => return Err(Malformed::BadValue { what: "delta", value }),
        };
        input.finish()?;
        Ok(delta)
    }
}

/// The merge function of this schema; pass it to [`crate::Embedded`] or [`crate::Memory`].
///
/// Returns `None` if the record is missing or damaged, or if the delta moves a field out of its valid range.
pub fn merge(old: Option<&[u8]>, delta: &[u8]) -> Option<Value> {
    let old = Bytes::copy_from_slice(old?);
    Some(match Delta::from_bytes(Bytes::copy_from_slice(delta)).ok()? {
        Delta::Tail(delta) => delta.apply(Tail::from_value(old).ok()?)?.to_value(),
        Delta::Files(n) => Counts { files: Counts::from_value(old).ok()?.files.checked_add_signed(n)? }.to_value(),
        Delta::Ids(n) => NextId(NextId::from_value(old).ok()?.0.checked_add(n)?).to_value(),
    })
}
