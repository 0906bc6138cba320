//! Requests about one object without payload: COMMIT, SIZE, TRUNCATE, REMOVE, PUNCH, RESERVE, SEEK and FENCE.

use types::{Generation, Verifier};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::Capability;

/// Arguments of COMMIT, SIZE, REMOVE and LEND, which only name an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectArgs {
    /// Capability that names the object. COMMIT needs the right WRITE, SIZE and LEND need READ, REMOVE needs ADMIN.
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
    /// The write verifier of the iod. If it equals the verifier in the reply to an earlier WRITE, the written bytes are
    /// durable.
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
    /// Disk space in bytes that the object occupies, including the header of its file.
    pub allocated: u64,
    /// Whether clients of the files layout have written to the object after the last WRITE_REPORTS report of the
    /// object. Only the mgr gets the value true, and only once for the same writes.
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
    /// Capability that names the object; needs the right WRITE.
    pub cap: Capability,
    /// The new size of the object in bytes.
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
    /// Size of the object in bytes after the request.
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
    /// Capability that names the object; needs the right WRITE.
    pub cap: Capability,
    /// Offset of the first byte of the hole in the object.
    pub offset: u64,
    /// Length of the hole in bytes. The hole may reach past the end of the object.
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
    /// Capability that names the object; needs the right WRITE.
    pub cap: Capability,
    /// Offset of the first byte of the range to allocate.
    pub offset: u64,
    /// Length of the range in bytes; 0 changes nothing.
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

/// What SEEK looks for: data or a hole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum SeekWhat {
    /// The first data at or after the offset, as SEEK_DATA of `lseek(2)`.
    Data = 0,
    /// The first hole at or after the offset, as SEEK_HOLE of `lseek(2)`. The end of the object counts as a hole.
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
    /// Capability that names the object; needs the right READ.
    pub cap: Capability,
    /// Offset in the object at which the search starts.
    pub offset: u64,
    /// Whether to look for data or for a hole.
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
    /// Offset of the first data or hole. `None` if the search starts at or past the end of the object, or if no data
    /// follow.
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

/// The result of a SEEK, for a caller that knows the smallest valid size of the object.
///
/// A shorter object has lost its last bytes. Lost bytes count as data, so that a program that copies only data reads
/// them and gets the read error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekResult {
    /// Whether the caller looked for data or for a hole.
    pub what: SeekWhat,
    /// Offset in the object at which the search started.
    pub start: u64,
    /// Offset in the reply ([`SeekReply::offset`]).
    pub found: Option<u64>,
}

impl SeekResult {
    /// Returns whether lost bytes can change the result, if the smallest valid size of the object is `least`. If they
    /// can, the caller must request the current size of the object from the iod (SIZE).
    pub fn depends_on_size(&self, least: u64) -> bool {
        match self.what {
            SeekWhat::Data => self.found.is_none() && self.start < least,
            SeekWhat::Hole => self.found.unwrap_or(self.start) < least,
        }
    }

    /// Returns the offset that the search finds if lost bytes count as data. `size` is the current size of the object,
    /// and the bytes from `size` up to the smallest valid size `least` are lost. Returns `None` if no data follow.
    pub fn with_lost(&self, size: u64, least: u64) -> Option<u64> {
        match self.what {
            SeekWhat::Data => self.found.or_else(|| Some(self.start.max(size)).filter(|lost| *lost < least)),
            SeekWhat::Hole => {
                let hole = self.found.unwrap_or(self.start);
                Some(if hole < size { hole } else { hole.max(least) })
            }
        }
    }
}

/// Arguments of FENCE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceArgs {
    /// Capability that names the object; needs the right ADMIN.
    pub cap: Capability,
    /// The new generation of the object: after FENCE, the iod refuses capabilities of older generations. If the
    /// object already has this generation or a newer one, FENCE changes nothing.
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
