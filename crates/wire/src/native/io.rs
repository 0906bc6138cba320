//! READ and WRITE of the native data program: list I/O on one object, with the payload last in the message and never
//! copied.

use bytes::Bytes;
use types::Verifier;
use types::limits::{EXTENTS_MAX, PAYLOAD_MAX};
use xdr::{Malformed, Reader, Segments, Writer, Xdr};

use super::{Capability, PIECES_MAX};

/// Bytes of an object to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

impl Xdr for Extent {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.offset);
        out.u32(self.len);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Extent { offset: input.u64()?, len: input.u32()? })
    }
}

/// Bytes of an object to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteExtent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
    /// CRC-32C of these bytes; 0 and unchecked on connections without checksums.
    pub crc32c: u32,
}

impl Xdr for WriteExtent {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.offset);
        out.u32(self.len);
        out.u32(self.crc32c);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(WriteExtent { offset: input.u64()?, len: input.u32()?, crc32c: input.u32()? })
    }
}

/// Arguments of READ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadArgs {
    /// Names the object; needs READ.
    pub cap: Capability,
    /// The extents to read: at most `EXTENTS_MAX`, together at most the agreed payload.
    pub extents: Vec<Extent>,
}

impl Xdr for ReadArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.array(&self.extents, |out, e| e.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ReadArgs { cap: Capability::decode(input)?, extents: input.array(EXTENTS_MAX, Extent::decode)? })
    }
}

/// The kind of a run of bytes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum PieceKind {
    /// Data; the reply carries the bytes.
    Data = 0,
    /// A hole: bytes that were never written and read as zeros. The reply does not carry them.
    Hole = 1,
    /// Bytes at and past the end of the object. The reply does not carry them.
    Beyond = 2,
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The kind of the piece.
    pub kind: PieceKind,
    /// Number of bytes, never 0.
    pub len: u32,
    /// CRC-32C of the data on connections with checksums, otherwise 0.
    pub crc32c: u32,
}

impl Xdr for Piece {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.kind as u32);
        out.u32(self.len);
        out.u32(self.crc32c);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let kind = match input.u32()? {
            0 => PieceKind::Data,
            1 => PieceKind::Hole,
            2 => PieceKind::Beyond,
            value => return Err(Malformed::BadValue { what: "piece kind", value }),
        };
        let (len, crc32c) = (input.u32()?, input.u32()?);
        if len == 0 {
            return Err(Malformed::Invalid("empty piece"));
        }
        Ok(Piece { kind, len, crc32c })
    }
}

/// The result of READ without its data. An iod encodes it, then the length of the data, then the data from their own
/// buffers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadHead {
    /// Size of the object in bytes; 0 if the object does not exist.
    pub size: u64,
    /// Pieces that cover the requested extents, in order. No piece spans two extents.
    pub pieces: Vec<Piece>,
}

impl ReadHead {
    /// Returns the number of data bytes that follow.
    pub fn data_len(&self) -> u64 {
        self.pieces.iter().filter(|p| p.kind == PieceKind::Data).map(|p| u64::from(p.len)).sum()
    }
}

impl Xdr for ReadHead {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.size);
        out.array(&self.pieces, |out, p| p.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ReadHead { size: input.u64()?, pieces: input.array(PIECES_MAX, Piece::decode)? })
    }
}

/// Result of READ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadReply {
    /// Size and pieces.
    pub head: ReadHead,
    /// The bytes of all data pieces, back to back.
    pub data: Bytes,
}

impl Xdr for ReadReply {
    fn encode(&self, out: &mut Writer) {
        self.head.encode(out);
        out.opaque(&self.data);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let head = ReadHead::decode(input)?;
        let data = input.opaque(PAYLOAD_MAX)?;
        if head.data_len() != data.len() as u64 {
            return Err(Malformed::Invalid("data pieces and data differ in length"));
        }
        Ok(ReadReply { head, data })
    }
}

/// The arguments of WRITE without the data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteHead {
    /// Names the object; needs WRITE.
    pub cap: Capability,
    /// Whether the bytes must be durable before the iod replies.
    pub stable: bool,
    /// Smallest valid size of the object in bytes. A missing or shorter object has lost bytes, and the iod fails the
    /// write with `Lost`.
    pub least: u64,
    /// Target extents of the data, at most `EXTENTS_MAX`.
    pub extents: Vec<WriteExtent>,
}

impl Xdr for WriteHead {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.bool(self.stable);
        out.u64(self.least);
        out.array(&self.extents, |out, e| e.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(WriteHead {
            cap: Capability::decode(input)?,
            stable: input.bool()?,
            least: input.u64()?,
            extents: input.array(EXTENTS_MAX, WriteExtent::decode)?,
        })
    }
}

impl WriteHead {
    /// Returns the number of data bytes that follow.
    pub fn data_len(&self) -> u64 {
        self.extents.iter().map(|e| u64::from(e.len)).sum()
    }

    /// Decodes the arguments up to the data. The second value is the announced length of the data, at most
    /// `PAYLOAD_MAX`.
    pub fn decode_before_data(input: &mut Reader) -> Result<(Self, usize), Malformed> {
        let head = WriteHead::decode(input)?;
        let len = input.u32()?;
        if len as usize > PAYLOAD_MAX {
            return Err(Malformed::TooLong { len, max: PAYLOAD_MAX as u32 });
        }
        if head.data_len() != u64::from(len) {
            return Err(Malformed::Invalid("extents and data differ in length"));
        }
        Ok((head, len as usize))
    }
}

/// Arguments of WRITE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteArgs {
    /// Capability, stability and extents.
    pub head: WriteHead,
    /// The bytes of all extents back to back; one segment when decoded.
    pub data: Segments,
}

impl Xdr for WriteArgs {
    fn encode(&self, out: &mut Writer) {
        self.head.encode(out);
        out.opaque_segments(&self.data);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let head = WriteHead::decode(input)?;
        let data = input.opaque(PAYLOAD_MAX)?;
        if head.data_len() != data.len() as u64 {
            return Err(Malformed::Invalid("extents and data differ in length"));
        }
        Ok(WriteArgs { head, data: Segments::from(data) })
    }
}

/// Result of WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteReply {
    /// The write verifier. Unstable bytes are durable only after a COMMIT that returns the same verifier.
    pub verifier: Verifier,
    /// Whether the bytes are durable now.
    pub stable: bool,
    /// Size of the object after the write.
    pub size: u64,
}

impl Xdr for WriteReply {
    fn encode(&self, out: &mut Writer) {
        out.fixed(&self.verifier.0);
        out.bool(self.stable);
        out.u64(self.size);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(WriteReply { verifier: Verifier(input.fixed()?), stable: input.bool()?, size: input.u64()? })
    }
}
