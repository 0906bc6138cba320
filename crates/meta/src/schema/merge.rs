//! Deltas that commute, and the one function that merges them into records.

use super::{Record, Tail, get_option, get_time, put_option, put_time};
use crate::engine::Value;
use bytes::Bytes;
use types::{ByteRange, Timestamp, leaves_hole, limits};
use xdr::{Malformed, Reader, Writer};

/// A change that a store merges into the record that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delta {
    /// To a [`Tail`].
    Tail(TailDelta),
    /// To [`Counts`]: files made, or gone if negative.
    Files(i64),
    /// To [`NextId`]: inode numbers taken.
    Ids(u64),
}

/// A change of the often changing half of an inode; the change attribute always rises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TailDelta {
    /// What becomes of the size.
    pub size: SizeDelta,
    /// What becomes known of holes, besides what a size that is set says.
    pub holes: Holes,
    /// What becomes known of the lengths of objects. Alone it is no change that anybody sees: the change attribute stays.
    pub whole: Option<Whole>,
    /// Subdirectories gained, lost if negative.
    pub subdirs: i32,
    /// New access time.
    pub atime: Option<Timestamp>,
    /// New modification time.
    pub mtime: Option<Timestamp>,
    /// New change time.
    pub ctime: Option<Timestamp>,
}

/// What becomes of a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SizeDelta {
    /// Nothing.
    #[default]
    Keep,
    /// It takes this value; if it had another one, the modification time becomes this.
    Set(u64, Timestamp),
    /// It takes this value if it is smaller.
    Grow(u64),
    /// As [`Self::Grow`], and the bytes up to there are on the disks of iods.
    Wrote(u64),
    /// A directory gains so many entries, loses them if negative.
    Entries(i32),
}

/// What a change says of holes in a regular file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Holes {
    /// Nothing.
    #[default]
    Keep,
    /// What was written begins here: a file that ended before has a hole now.
    Before(u64),
    /// There may be some.
    Made,
}

/// That objects are on their disks as long as a file demands which ends at `end`, if they are as long as one demands which ends at `from`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Whole {
    /// Where the bytes begin that were written.
    pub from: u64,
    /// One past the last of them.
    pub end: u64,
}

/// How far a file was written, and what that says of holes; a number alone says nothing of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// One past the last byte.
    pub end: u64,
    /// What is known of holes.
    pub holes: Holes,
    /// What is known of the lengths of objects, once what was written is on disk.
    pub whole: Option<Whole>,
}

impl From<u64> for Reach {
    fn from(end: u64) -> Self {
        Reach { end, holes: Holes::Keep, whole: None }
    }
}

impl From<ByteRange> for Reach {
    /// Written as a whole.
    fn from(range: ByteRange) -> Self {
        let whole = Some(Whole { from: range.offset, end: range.end() });
        Reach { end: range.end(), holes: Holes::Before(range.offset), whole }
    }
}

/// How many files there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Inodes, the root and orphans included.
    pub files: u64,
}

/// The first inode number not yet given out.
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
    /// `tail` after this change; `None` if it cannot be made.
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
    /// The form in which a batch carries it.
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

    /// The delta in `bytes`.
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

/// The merge function of this schema, for [`crate::Embedded`] and [`crate::Memory`].
///
/// `None` if there is no record, if it is damaged, or if the change would carry it out of its bounds.
pub fn merge(old: Option<&[u8]>, delta: &[u8]) -> Option<Value> {
    let old = Bytes::copy_from_slice(old?);
    Some(match Delta::from_bytes(Bytes::copy_from_slice(delta)).ok()? {
        Delta::Tail(delta) => delta.apply(Tail::from_value(old).ok()?)?.to_value(),
        Delta::Files(n) => Counts { files: Counts::from_value(old).ok()?.files.checked_add_signed(n)? }.to_value(),
        Delta::Ids(n) => NextId(NextId::from_value(old).ok()?.0.checked_add(n)?).to_value(),
    })
}
