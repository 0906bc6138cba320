//! LIST and STATS: requests of the mgr and of administrators about the whole store of an iod.

use types::{Generation, ObjectId};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{COUNTERS_MAX, Capability, LIST_MAX, TEXT_MAX, cut, put_object, take_object, take_text, text};

/// Arguments of LIST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListArgs {
    /// Capability for the whole store ([`super::STORE_OBJECT`]); needs the right ADMIN.
    pub cap: Capability,
    /// The last object in the previous LIST reply; `None` in the first LIST of a listing of the store.
    pub after: Option<ObjectId>,
    /// Maximum number of entries to return.
    pub max: u32,
}

impl Xdr for ListArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.optional(self.after.as_ref(), |out, after| put_object(out, *after));
        out.u32(self.max);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ListArgs { cap: Capability::decode(input)?, after: input.optional(take_object)?, max: input.u32()? })
    }
}

/// Whether the header of an object file is intact, and names the same object as the file name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum HeadState {
    /// The header is intact, and names the object that the file is named after.
    Own = 0,
    /// The iod cannot read the header, or its checksum does not match.
    Damaged = 1,
    /// The header names another object or another file system. REMOVE does not delete the file.
    Foreign = 2,
    /// The header has a version that this iod does not know. REMOVE does not delete the file.
    Newer = 3,
}

impl HeadState {
    /// All states that the header of an object file can have.
    pub const ALL: [HeadState; 4] = [HeadState::Own, HeadState::Damaged, HeadState::Foreign, HeadState::Newer];
}

impl Xdr for HeadState {
    fn encode(&self, out: &mut Writer) {
        out.u32(*self as u32);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let value = input.u32()?;
        let known = Self::ALL.into_iter().find(|state| *state as u32 == value);
        known.ok_or(Malformed::BadValue { what: "state of the head of an object", value })
    }
}

/// An entry of LIST: one object of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// The object that the object file is named after.
    pub object: ObjectId,
    /// Size of the object in bytes.
    pub size: u64,
    /// Disk space that the object occupies in bytes, including the header of its file.
    pub allocated: u64,
    /// Generation in the header of the object; 0 if the state of the header is not [`HeadState::Own`].
    pub generation: Generation,
    /// The state of the header in the object's file.
    pub head: HeadState,
}

impl Xdr for ListEntry {
    fn encode(&self, out: &mut Writer) {
        put_object(out, self.object);
        out.u64(self.size);
        out.u64(self.allocated);
        out.u32(self.generation.0);
        self.head.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ListEntry {
            object: take_object(input)?,
            size: input.u64()?,
            allocated: input.u64()?,
            generation: Generation(input.u32()?),
            head: HeadState::decode(input)?,
        })
    }
}

/// Result of LIST. The iod chooses the order of the objects, and returns each object at most once in a listing of the
/// store, which may take several LIST requests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListReply {
    /// The objects of the store after the object [`ListArgs::after`].
    pub entries: Vec<ListEntry>,
    /// Whether the store has no object after these objects.
    pub eof: bool,
}

impl Xdr for ListReply {
    fn encode(&self, out: &mut Writer) {
        out.array(&self.entries, |out, e| e.encode(out));
        out.bool(self.eof);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ListReply { entries: input.array(LIST_MAX, ListEntry::decode)?, eof: input.bool()? })
    }
}

/// A named counter, which grows while the iod runs, or a gauge, which may also fall.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// The name of the counter, for instance `requests.read`.
    pub name: String,
    /// The value of the counter since the iod started, or the current value of the gauge.
    pub value: u64,
}

impl Xdr for Counter {
    fn encode(&self, out: &mut Writer) {
        text(out, cut(&self.name, TEXT_MAX));
        out.u64(self.value);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Counter { name: take_text(input, TEXT_MAX)?, value: input.u64()? })
    }
}

/// Result of STATS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StatsReply {
    /// Total capacity in bytes of the file system on which the store is.
    pub capacity: u64,
    /// Free bytes that the iod may use, on the file system on which the store is.
    pub free: u64,
    /// The counters, at most `COUNTERS_MAX`.
    pub counters: Vec<Counter>,
}

impl Xdr for StatsReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.capacity);
        out.u64(self.free);
        out.array(&self.counters, |out, c| c.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(StatsReply {
            capacity: input.u64()?,
            free: input.u64()?,
            counters: input.array(COUNTERS_MAX, Counter::decode)?,
        })
    }
}
