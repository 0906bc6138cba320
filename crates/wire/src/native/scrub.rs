//! SCRUB: reads a part of a store from disk and verifies its checksums.

use types::ObjectId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, SCRUB_FINDINGS_MAX, put_object, take_object};

/// The position at which a scrub continues.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScrubCursor {
    /// The object. If it no longer exists, the scrub continues with the next object.
    pub object: ObjectId,
    /// Offset in the object.
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
    /// For [`super::STORE_OBJECT`]; needs ADMIN.
    pub cap: Capability,
    /// The position from the previous reply; `None` for the first request.
    pub from: Option<ScrubCursor>,
    /// Approximate number of bytes to read before the reply. The iod has a limit of its own.
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

/// The kind of damage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Damage {
    /// Damage of the whole object: of its head, or of its length.
    Object = 0,
    /// The bytes do not match their checksum.
    Checksum = 1,
    /// The disk cannot read the bytes.
    Unreadable = 2,
}

impl Damage {
    /// All kinds.
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

/// Damage that a scrub found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Finding {
    /// The object.
    pub object: ObjectId,
    /// What is wrong.
    pub damage: Damage,
    /// First damaged byte of the object.
    pub offset: u64,
    /// Number of damaged bytes; 0 for [`Damage::Object`], which concerns all bytes.
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
    /// Position of the next request; `None` at the end of the store.
    pub next: Option<ScrubCursor>,
    /// Objects completed.
    pub objects: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes read in blocks that have a checksum.
    pub verified: u64,
    /// Blocks that had no checksum and received one.
    pub rebuilt: u64,
    /// Damage; adjacent ranges are joined.
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
