//! LIST and STATS: requests of the mgr and of operators about a whole store.

use types::{Generation, ObjectId};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{COUNTERS_MAX, Capability, LIST_MAX, TEXT_MAX, cut, put_object, take_object, take_text, text};

/// Arguments of LIST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListArgs {
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// The last object of the previous reply; `None` for the first request.
    pub after: Option<ObjectId>,
    /// Largest number of entries to return.
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

/// The state of the head of an object file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum HeadState {
    /// The head is that of the object that the file name names.
    Own = 0,
    /// The head cannot be read.
    Damaged = 1,
    /// The head is that of another file system or of another object. The iod does not remove the file.
    Foreign = 2,
    /// The head has a version that the iod does not know. The iod does not remove the file.
    Newer = 3,
}

impl HeadState {
    /// All states.
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

/// One object of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// The object, by the name of its file.
    pub object: ObjectId,
    /// The size of the object in bytes.
    pub size: u64,
    /// Bytes that the object occupies on disk, including the object head.
    pub allocated: u64,
    /// Fencing generation of the object; 0 unless the head is the object's own.
    pub generation: Generation,
    /// The state of its head.
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

/// Result of LIST. The iod chooses the order; each object appears at most once in a whole walk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListReply {
    /// The next objects.
    pub entries: Vec<ListEntry>,
    /// Whether this is the end of the list.
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

/// A named counter that only grows while the iod runs, or a gauge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// The name of the counter, for instance `requests.read`.
    pub name: String,
    /// The value of the counter.
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
    /// Size in bytes of the file system that holds the store.
    pub capacity: u64,
    /// Bytes of that file system that the iod can still fill.
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
