//! LIST and STATS: requests of the mgr and of operators about a whole store.

use types::{FileId, Generation};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{COUNTERS_MAX, Capability, LIST_MAX, TEXT_MAX, cut, take_text, text};

/// Arguments of LIST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListArgs {
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// The last object of the previous reply; 0 for the first request.
    pub after: u64,
    /// Largest number of entries to return.
    pub max: u32,
}

impl Xdr for ListArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u64(self.after);
        out.u32(self.max);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ListArgs { cap: Capability::decode(input)?, after: input.u64()?, max: input.u32()? })
    }
}

/// One object of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// The object.
    pub object: FileId,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes that the object occupies on disk, including the object head.
    pub allocated: u64,
    /// Fencing generation of the object; 0 if the object is damaged.
    pub generation: Generation,
    /// Whether the head of the object is unreadable; such an object can only be removed.
    pub damaged: bool,
}

impl Xdr for ListEntry {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.object.0);
        out.u64(self.size);
        out.u64(self.allocated);
        out.u32(self.generation.0);
        out.bool(self.damaged);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ListEntry {
            object: FileId(input.u64()?),
            size: input.u64()?,
            allocated: input.u64()?,
            generation: Generation(input.u32()?),
            damaged: input.bool()?,
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
    /// Its name, for instance `requests.read`.
    pub name: String,
    /// Its value.
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
