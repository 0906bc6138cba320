//! READ and WRITE: list I/O on one object. The payload is at the end of the message, so that sender and receiver need
//! not copy it.

use bytes::Bytes;
use types::Verifier;
use types::limits::{EXTENTS_MAX, PAYLOAD_MAX};
use xdr::{Malformed, Reader, Segments, Writer, Xdr};

use super::{Capability, PIECES_MAX};

/// A byte range of an object to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// Number of bytes to read.
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

/// A byte range of an object to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteExtent {
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// Number of bytes to write.
    pub len: u32,
    /// CRC-32C of the bytes to write. On connections without checksums the field is 0, and the iod does not check it.
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
    /// Capability that names the object; needs the right READ.
    pub cap: Capability,
    /// The byte ranges to read: at most `EXTENTS_MAX` ranges, and together at most one payload of the size agreed in
    /// HELLO.
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

/// The kind of a [`Piece`]: data, a hole, or a range past the end of the object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum PieceKind {
    /// Data: the reply carries the bytes.
    Data = 0,
    /// A hole: no client has written these bytes, and they read as zeros. The reply does not carry them.
    Hole = 1,
    /// The range is past the end of the object. The reply carries no bytes for it.
    Beyond = 2,
}

/// A range that a READ reply describes: consecutive bytes of the object that are all data, all in a hole, or all past
/// the end of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Whether the range is data, a hole, or past the end of the object.
    pub kind: PieceKind,
    /// Number of bytes in the range, never 0.
    pub len: u32,
    /// CRC-32C of the bytes of a data range. 0 for other ranges, and on connections without checksums.
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

/// The result of READ without its data. The iod encodes this header and the length of the data, and sends the data from
/// separate buffers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadHead {
    /// Size of the object in bytes; 0 if the object does not exist.
    pub size: u64,
    /// The ranges of data, of holes, and past the end that together make up the requested byte ranges, in their order.
    /// No entry spans two requested ranges.
    pub pieces: Vec<Piece>,
}

impl ReadHead {
    /// Returns the number of data bytes that follow this header in the reply.
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
    /// The size of the object, and which of the requested bytes are data.
    pub head: ReadHead,
    /// The bytes of all data ranges in [`ReadHead::pieces`], one after the other.
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
    /// Capability that names the object; needs the right WRITE.
    pub cap: Capability,
    /// Whether the iod must make the bytes durable before it replies.
    pub stable: bool,
    /// Smallest valid size of the object in bytes: the client knows that the object once had this size durably. A
    /// shorter or missing object has lost bytes, and the write then fails with `Lost`.
    pub least: u64,
    /// The byte ranges that the data belong to, at most `EXTENTS_MAX` ranges.
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
    /// Returns the number of data bytes that follow this header in the request.
    pub fn data_len(&self) -> u64 {
        self.extents.iter().map(|e| u64::from(e.len)).sum()
    }

    /// Decodes the arguments of WRITE that precede the data. Also returns the announced length of the data, which is
    /// at most `PAYLOAD_MAX`.
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
    /// The capability, the stability, and the byte ranges of the write.
    pub head: WriteHead,
    /// The data of all byte ranges of the write, one after the other. A decoded request has the data in one segment.
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
    /// The write verifier of the iod. If a later COMMIT returns another verifier, the iod may have lost unstable bytes.
    pub verifier: Verifier,
    /// Whether the bytes are durable already.
    pub stable: bool,
    /// Size of the object in bytes after the write.
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
