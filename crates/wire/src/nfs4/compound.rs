//! Incremental codec for COMPOUND and CB_COMPOUND (RFC 8881 sections 16.2 and 20.2), which handles one operation at a
//! time.
//!
//! A server must execute the operations that precede a malformed or unknown operation. So it cannot decode a whole
//! COMPOUND at once. It decodes the header first. Then [`Ops`] returns one operation number after the other, and the
//! server decodes the body of each operation.

use super::{nfs_cb_opnum4, nfs_opnum4, nfsstat4, utf8str_cs};
use types::limits;
use xdr::{Malformed, Reader, Segments, Writer, Xdr};

/// The header before the operations of a COMPOUND call (`COMPOUND4args`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArgsHeader {
    /// A text that the server copies into the reply without interpreting it.
    pub tag: utf8str_cs,
    /// Minor version of NFSv4 that the operations belong to.
    pub minorversion: u32,
    /// Number of operations. Decoding accepts any number; the server returns NFS4ERR_TOO_MANY_OPS if there are too
    /// many.
    pub numops: u32,
}

/// The header before the operations of a CB_COMPOUND call (`CB_COMPOUND4args`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CbArgsHeader {
    /// A text that the client copies into the reply without interpreting it.
    pub tag: utf8str_cs,
    /// Minor version of NFSv4 that the operations belong to.
    pub minorversion: u32,
    /// The callback identifier of NFSv4.0. NFSv4.1 does not use it, because callbacks belong to a session.
    pub callback_ident: u32,
    /// Number of operations. Decoding accepts any number.
    pub numops: u32,
}

/// The header before the results of a COMPOUND or CB_COMPOUND reply (`COMPOUND4res`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResHeader {
    /// Status of the last operation that the peer has executed, which is the status of the whole reply.
    pub status: nfsstat4,
    /// The tag of the call, copied unchanged.
    pub tag: utf8str_cs,
    /// Number of results: one for each successful operation, and one for the first failed operation.
    pub numres: u32,
}

impl Xdr for ArgsHeader {
    fn encode(&self, out: &mut Writer) {
        out.opaque(&self.tag);
        out.u32(self.minorversion);
        out.u32(self.numops);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(ArgsHeader { tag: input.opaque(limits::OPAQUE_MAX)?, minorversion: input.u32()?, numops: input.u32()? })
    }
}

impl Xdr for CbArgsHeader {
    fn encode(&self, out: &mut Writer) {
        out.opaque(&self.tag);
        out.u32(self.minorversion);
        out.u32(self.callback_ident);
        out.u32(self.numops);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(CbArgsHeader {
            tag: input.opaque(limits::OPAQUE_MAX)?,
            minorversion: input.u32()?,
            callback_ident: input.u32()?,
            numops: input.u32()?,
        })
    }
}

impl Xdr for ResHeader {
    fn encode(&self, out: &mut Writer) {
        self.status.encode(out);
        out.opaque(&self.tag);
        out.u32(self.numres);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let status = nfsstat4::decode(input)?;
        Ok(ResHeader { status, tag: input.opaque(limits::OPAQUE_MAX)?, numres: input.u32()? })
    }
}

/// An iterator over the operations of a COMPOUND, or over the results in its reply.
///
/// After each operation number, the caller must decode the body of that operation, and only then request the next
/// number. A body carries no length, so only the decoder of its type finds the end of the body.
#[derive(Clone, Debug)]
pub struct Ops {
    left: u32,
    input: Reader,
}

impl Ops {
    /// Returns an iterator over `count` operations, which are encoded in the rest of `input`.
    pub fn new(count: u32, input: Reader) -> Self {
        Ops { left: count, input }
    }

    /// Returns the number of operations that the caller has not begun to decode.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Decodes the number of the next operation; returns `None` after the last operation. NFS may not define an
    /// operation with this number.
    ///
    /// # Errors
    /// When the message has fewer operations than the header announced.
    pub fn next_number(&mut self) -> Result<Option<u32>, Malformed> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.input.u32().map(Some)
    }

    /// Decodes the body of the current operation, whose number the caller has just decoded.
    ///
    /// # Errors
    /// When the body is not a valid `T`.
    pub fn body<T: Xdr>(&mut self) -> Result<T, Malformed> {
        T::decode(&mut self.input)
    }

    /// Returns the reader at the current position, for callers that decode the body of an operation themselves.
    pub fn input(&mut self) -> &mut Reader {
        &mut self.input
    }

    /// Checks that the caller has decoded all operations and that no bytes follow them.
    ///
    /// # Errors
    /// When operations or bytes are left.
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.left > 0 { Err(Malformed::Trailing) } else { self.input.finish() }
    }
}

/// The number of an operation of COMPOUND or of CB_COMPOUND.
pub trait OpNumber {
    /// Returns the operation number as it is encoded in messages.
    fn number(self) -> u32;
}

impl OpNumber for nfs_opnum4 {
    fn number(self) -> u32 {
        self as u32
    }
}

impl OpNumber for nfs_cb_opnum4 {
    fn number(self) -> u32 {
        self as u32
    }
}

/// Returns the operation with this number, or `None` if NFS does not define it.
pub fn opnum(number: u32) -> Option<nfs_opnum4> {
    nfs_opnum4::try_from(i32::try_from(number).ok()?).ok()
}

/// Returns the callback operation with this number, or `None` if NFS does not define it.
pub fn cb_opnum(number: u32) -> Option<nfs_cb_opnum4> {
    nfs_cb_opnum4::try_from(i32::try_from(number).ok()?).ok()
}

/// Initial capacity of the encoder in bytes. Most COMPOUNDs fit, so the encoder need not reallocate its buffer for
/// them.
const ROOM: usize = 512;

/// An encoder for COMPOUNDs and their replies. It appends operations (or results), and finally prepends the header,
/// which contains the number of operations.
#[derive(Debug, Default)]
pub struct OpsWriter {
    count: u32,
    out: Writer,
}

impl OpsWriter {
    /// Returns an encoder that has no operations yet.
    pub fn new() -> Self {
        OpsWriter { count: 0, out: Writer::with_capacity(ROOM) }
    }

    /// Returns the number of operations in the encoder.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the number of encoded bytes, without the header.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Returns whether the encoder has no operation yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends an operation without a body.
    pub fn void(&mut self, number: impl OpNumber) -> &mut Self {
        self.with(number, |_| {})
    }

    /// Appends an operation with this body.
    pub fn op(&mut self, number: impl OpNumber, body: &impl Xdr) -> &mut Self {
        self.with(number, |out| body.encode(out))
    }

    /// Appends an operation whose body the function `body` encodes.
    pub fn with(&mut self, number: impl OpNumber, body: impl FnOnce(&mut Writer)) -> &mut Self {
        self.count += 1;
        self.out.u32(number.number());
        body(&mut self.out);
        self
    }

    /// Appends an operation whose number and body are already encoded. Does not copy large segments.
    pub fn encoded(&mut self, op: &Segments) -> &mut Self {
        self.count += 1;
        for part in op.parts() {
            self.out.raw(part);
        }
        self
    }

    /// Prepends the header; returns the encoded arguments of a COMPOUND.
    pub fn into_args(self, tag: utf8str_cs, minorversion: u32) -> Segments {
        let numops = self.count;
        self.behind(&ArgsHeader { tag, minorversion, numops })
    }

    /// Prepends the header; returns the encoded arguments of a CB_COMPOUND.
    pub fn into_cb_args(self, tag: utf8str_cs, minorversion: u32, callback_ident: u32) -> Segments {
        let numops = self.count;
        self.behind(&CbArgsHeader { tag, minorversion, callback_ident, numops })
    }

    /// Prepends the header; returns the encoded result of a COMPOUND or CB_COMPOUND.
    pub fn into_res(self, status: nfsstat4, tag: utf8str_cs) -> Segments {
        let numres = self.count;
        self.behind(&ResHeader { status, tag, numres })
    }

    fn behind(self, header: &impl Xdr) -> Segments {
        let mut out = Writer::new();
        header.encode(&mut out);
        let mut message = out.finish();
        message.extend(self.out.finish());
        message
    }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary::{Arbitrary, Seed};
    use super::super::*;
    use super::*;
    use bytes::Bytes;

    #[test]
    fn lazy_and_eager_decoding_agree() {
        for seed in 0..200 {
            let call = COMPOUND4args::arbitrary(&mut Seed(seed));
            let mut input = Reader::new(call.to_bytes());
            let header = ArgsHeader::decode(&mut input).unwrap();
            assert_eq!((&header.tag, header.minorversion), (&call.tag, call.minorversion));
            let mut ops = Ops::new(header.numops, input);
            let mut written = OpsWriter::new();
            for op in &call.argarray {
                let before = ops.input().clone();
                assert_eq!(nfs_argop4::decode(&mut before.clone()).as_ref(), Ok(op));
                let number = ops.next_number().unwrap().unwrap();
                assert_eq!(opnum(number), Some(op.discriminant()));
                // Decode the operation a second time with the generated type, to find where its body ends. The encoder
                // must produce the same bytes for this operation.
                let mut skipped = before.clone();
                nfs_argop4::decode(&mut skipped).unwrap();
                let len = before.remaining() - skipped.remaining();
                written.encoded(&before.rest().slice(..len).into());
                *ops.input() = skipped;
            }
            assert_eq!(ops.next_number(), Ok(None));
            assert_eq!(ops.finish(), Ok(()));
            assert_eq!(written.into_args(header.tag, header.minorversion).to_bytes(), call.to_bytes());
        }
    }

    #[test]
    fn the_results_begin_with_their_count() {
        let mut out = OpsWriter::new();
        out.op(OP_PUTFH, &PUTFH4res { status: NFS4_OK }).op(OP_LOOKUP, &LOOKUP4res { status: NFS4ERR_NOENT });
        let reply = out.into_res(NFS4ERR_NOENT, Bytes::from_static(b"t")).to_bytes();
        let whole = COMPOUND4res::from_bytes(&reply).unwrap();
        assert_eq!(whole.status, NFS4ERR_NOENT);
        assert_eq!(whole.resarray.len(), 2);
        let mut input = Reader::new(reply);
        assert_eq!(ResHeader::decode(&mut input).unwrap().numres, 2);
    }

    #[test]
    fn lazy_callbacks_agree_with_the_complete_message() {
        for seed in 0..50 {
            let call = CB_COMPOUND4args::arbitrary(&mut Seed(seed));
            let mut out = OpsWriter::new();
            for op in &call.argarray {
                out.encoded(&op.to_bytes().into());
            }
            let bytes = out.into_cb_args(call.tag.clone(), call.minorversion, call.callback_ident).to_bytes();
            assert_eq!(bytes, call.to_bytes());
            let header = CbArgsHeader::decode(&mut Reader::new(bytes)).unwrap();
            assert_eq!(header.numops as usize, call.argarray.len());
        }
    }

    #[test]
    fn a_truncated_message_is_refused_at_the_missing_operation() {
        let mut out = OpsWriter::new();
        out.void(OP_PUTROOTFH);
        let mut bytes = out.into_args(Bytes::new(), 1).to_bytes().to_vec();
        bytes[11] = 2;
        let mut input = Reader::new(bytes.into());
        let header = ArgsHeader::decode(&mut input).unwrap();
        let mut ops = Ops::new(header.numops, input);
        assert_eq!(ops.next_number(), Ok(Some(OP_PUTROOTFH as u32)));
        assert_eq!(ops.finish(), Err(Malformed::Trailing));
        assert_eq!(ops.next_number(), Err(Malformed::Short));
        assert_eq!(opnum(2), None);
        assert_eq!(opnum(u32::MAX), None);
        assert_eq!(cb_opnum(OP_CB_SEQUENCE as u32), Some(OP_CB_SEQUENCE));
    }
}
