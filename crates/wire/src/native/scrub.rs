//! SCRUB of the native data program: an iod reads a part of its store from disk and verifies the block checksums.

use types::ObjectId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, SCRUB_FINDINGS_MAX, put_object, take_object};

/// The position in a store at which a scrub continues.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScrubCursor {
    /// The object to check next. If the object no longer exists, the scrub continues with the next object.
    pub object: ObjectId,
    /// Offset in the object, in bytes, at which the scrub continues.
    pub offset: u64,
}

impl Xdr for ScrubCursor {
    fn encode(&self, out: &mut Writer) {
        put_object(out, self.object);
        out.u64(self.offset);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ScrubCursor { object: take_object(input)?, offset: input.u64()? })
    }
}

/// Arguments of SCRUB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubArgs {
    /// Capability for the whole store ([`super::STORE_OBJECT`]); needs the right ADMIN.
    pub cap: Capability,
    /// The position that the previous SCRUB reply returned; `None` in the first request of a scrub.
    pub from: Option<ScrubCursor>,
    /// Approximate number of bytes that the iod reads before it replies. The iod may read less, because it has a limit
    /// of its own.
    pub budget: u32,
}

impl Xdr for ScrubArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.optional(self.from.as_ref(), |out, from| from.encode(out));
        out.u32(self.budget);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let cap = Capability::decode(input)?;
        Ok(ScrubArgs { cap, from: input.optional(ScrubCursor::decode)?, budget: input.u32()? })
    }
}

/// The kind of damage that a scrub found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Damage {
    /// The header of the object file is damaged, or the object has lost bytes at its end.
    Object = 0,
    /// Bytes of the object do not match their block checksum.
    Checksum = 1,
    /// The disk returns an error when the iod reads these bytes.
    Unreadable = 2,
}

impl Damage {
    /// All kinds of damage that a scrub can find.
    pub const ALL: [Damage; 3] = [Damage::Object, Damage::Checksum, Damage::Unreadable];
}

impl Xdr for Damage {
    fn encode(&self, out: &mut Writer) {
        out.u32(*self as u32);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let value = input.u32()?;
        let known = Self::ALL.into_iter().find(|damage| *damage as u32 == value);
        known.ok_or(Malformed::BadValue { what: "kind of damage", value })
    }
}

/// A finding of a scrub: damaged bytes of one object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Finding {
    /// The damaged object.
    pub object: ObjectId,
    /// The kind of damage.
    pub damage: Damage,
    /// Offset of the first damaged byte in the object.
    pub offset: u64,
    /// Number of damaged bytes. 0 for [`Damage::Object`], where all bytes of the object are affected.
    pub len: u64,
}

impl Xdr for Finding {
    fn encode(&self, out: &mut Writer) {
        put_object(out, self.object);
        self.damage.encode(out);
        out.u64(self.offset);
        out.u64(self.len);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Finding {
            object: take_object(input)?,
            damage: Damage::decode(input)?,
            offset: input.u64()?,
            len: input.u64()?,
        })
    }
}

/// Result of SCRUB.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReply {
    /// The position at which the next request must continue; `None` if the scrub has reached the end of the store.
    pub next: Option<ScrubCursor>,
    /// Number of objects whose check this request has finished.
    pub objects: u64,
    /// Number of bytes that this request has read.
    pub bytes: u64,
    /// Number of bytes that this request has read in blocks that have a checksum.
    pub verified: u64,
    /// Number of blocks that had no checksum and got one from this request.
    pub rebuilt: u64,
    /// The damage that this request has found. Adjacent damaged ranges of the same kind are joined.
    pub findings: Vec<Finding>,
}

impl Xdr for ScrubReply {
    fn encode(&self, out: &mut Writer) {
        out.optional(self.next.as_ref(), |out, next| next.encode(out));
        out.u64(self.objects);
        out.u64(self.bytes);
        out.u64(self.verified);
        out.u64(self.rebuilt);
        out.array(&self.findings, |out, finding| finding.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ScrubReply {
            next: input.optional(ScrubCursor::decode)?,
            objects: input.u64()?,
            bytes: input.u64()?,
            verified: input.u64()?,
            rebuilt: input.u64()?,
            findings: input.array(SCRUB_FINDINGS_MAX, Finding::decode)?,
        })
    }
}
