//! Messages of the procedures on one whole object: COMMIT, SIZE, TRUNCATE, REMOVE, PUNCH, RESERVE, SEEK and FENCE.

use types::{Generation, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::Capability;

/// Arguments of COMMIT, SIZE, REMOVE and LEND: only the object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectArgs {
    /// Names the object; COMMIT needs WRITE, SIZE and LEND READ, REMOVE ADMIN.
    pub cap: Capability,
}

impl Xdr for ObjectArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ObjectArgs { cap: Capability::decode(input)? })
    }
}

/// Result of COMMIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitReply {
    /// Everything written under this verifier before the COMMIT is durable.
    pub verifier: Verifier,
    /// Size of the object in bytes.
    pub size: u64,
}

impl Xdr for CommitReply {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.verifier.0);
        out.u64(self.size);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(CommitReply { verifier: Verifier(input.fixed()?), size: input.u64()? })
    }
}

/// Result of SIZE. Both sizes are 0 if the object does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeReply {
    /// Size of the object in bytes.
    pub size: u64,
    /// Bytes that the object occupies on disk, including the object head.
    pub allocated: u64,
    /// Whether clients of the files layout have changed the object since NEWS last reported it. Reported once, and only
    /// to the mgr.
    pub changed: bool,
}

impl Xdr for SizeReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.size);
        out.u64(self.allocated);
        out.bool(self.changed);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(SizeReply { size: input.u64()?, allocated: input.u64()?, changed: input.bool()? })
    }
}

/// Arguments of TRUNCATE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TruncateArgs {
    /// Names the object; needs WRITE.
    pub cap: Capability,
    /// The new size in bytes.
    pub size: u64,
}

impl Xdr for TruncateArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u64(self.size);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(TruncateArgs { cap: Capability::decode(input)?, size: input.u64()? })
    }
}

/// Result of TRUNCATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TruncateReply {
    /// Size of the object in bytes afterwards.
    pub size: u64,
}

impl Xdr for TruncateReply {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.size);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(TruncateReply { size: input.u64()? })
    }
}

/// Arguments of PUNCH.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PunchArgs {
    /// Names the object; needs WRITE.
    pub cap: Capability,
    /// First byte of the hole.
    pub offset: u64,
    /// Number of bytes; may reach past the end.
    pub len: u64,
}

impl Xdr for PunchArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u64(self.offset);
        out.u64(self.len);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(PunchArgs { cap: Capability::decode(input)?, offset: input.u64()?, len: input.u64()? })
    }
}

/// Arguments of RESERVE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReserveArgs {
    /// Names the object; needs WRITE.
    pub cap: Capability,
    /// First byte of the range to allocate.
    pub offset: u64,
    /// Number of bytes; 0 changes nothing.
    pub len: u64,
}

impl Xdr for ReserveArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u64(self.offset);
        out.u64(self.len);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ReserveArgs { cap: Capability::decode(input)?, offset: input.u64()?, len: input.u64()? })
    }
}

/// What SEEK looks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum SeekWhat {
    /// Written bytes.
    Data = 0,
    /// A hole; the end of the object counts as one.
    Hole = 1,
}

impl Xdr for SeekWhat {
    fn encode(&self, out: &mut Writer) {
        out.u32(*self as u32);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        match input.u32()? {
            0 => Ok(SeekWhat::Data),
            1 => Ok(SeekWhat::Hole),
            value => Err(Malformed::BadValue { what: "seek target", value }),
        }
    }
}

/// Arguments of SEEK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeekArgs {
    /// Names the object; needs READ.
    pub cap: Capability,
    /// First byte of the search.
    pub offset: u64,
    /// What to search for.
    pub what: SeekWhat,
}

impl Xdr for SeekArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u64(self.offset);
        self.what.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(SeekArgs { cap: Capability::decode(input)?, offset: input.u64()?, what: SeekWhat::decode(input)? })
    }
}

/// Result of SEEK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekReply {
    /// The first matching byte at or after the start. `None` if the start is at or past the end, or if no data follow.
    pub offset: Option<u64>,
}

impl Xdr for SeekReply {
    fn encode(&self, out: &mut Writer) {
        out.optional(self.offset.as_ref(), |out, offset| out.u64(*offset));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(SeekReply { offset: input.optional(Reader::u64)? })
    }
}

/// Arguments of FENCE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceArgs {
    /// Names the object; needs ADMIN.
    pub cap: Capability,
    /// The iod refuses capabilities of older generations from now on. A generation that is not newer than the object's
    /// has no effect.
    pub generation: Generation,
}

impl Xdr for FenceArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.u32(self.generation.0);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(FenceArgs { cap: Capability::decode(input)?, generation: Generation(input.u32()?) })
    }
}
