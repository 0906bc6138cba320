//! Incremental codec for COMPOUND and CB_COMPOUND (RFC 8881 sections 16.2 and 20.2), which handles one operation at a
//! time.
//!
//! A server must answer the operations before a malformed or unknown one, so it never decodes a whole COMPOUND at once.
//! It reads a header first. Then [`Ops`] returns operation numbers, each followed by its body.

use super::{nfs_cb_opnum4, nfs_opnum4, nfsstat4, utf8str_cs};
use types::limits;
use xdr::{Malformed, Reader, Segments, Writer, Xdr};

/// The header before the operations of a COMPOUND call (`COMPOUND4args`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArgsHeader {
    /// Returned unchanged in the reply, without any other meaning.
    pub tag: utf8str_cs,
    /// Minor version of NFSv4 of the operations.
    pub minorversion: u32,
    /// Number of operations. Decoding sets no limit: too many operations are an NFS error (NFS4ERR_TOO_MANY_OPS).
    pub numops: u32,
}

/// The header before the operations of a CB_COMPOUND call (`CB_COMPOUND4args`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CbArgsHeader {
    /// Returned unchanged in the reply, without any other meaning.
    pub tag: utf8str_cs,
    /// Minor version of NFSv4 of the operations.
    pub minorversion: u32,
    /// Unused since NFSv4.1, where sessions replace it.
    pub callback_ident: u32,
    /// Number of operations. Decoding sets no limit.
    pub numops: u32,
}

/// The header before the results of a COMPOUND or CB_COMPOUND reply (`COMPOUND4res`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResHeader {
    /// Status of the last operation that the server executed.
    pub status: nfsstat4,
    /// The tag of the call.
    pub tag: utf8str_cs,
    /// Number of results: of all successful operations, and of the first failed one.
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

/// An iterator over the operations (or results) after a header.
///
/// After each number the caller must read the body of that operation before it reads the next number. Only the type of
/// a body determines its length.
#[derive(Clone, Debug)]
pub struct Ops {
    left: u32,
    input: Reader,
}

impl Ops {
    /// Returns an iterator over `count` operations in the rest of `input`.
    pub fn new(count: u32, input: Reader) -> Self {
        Ops { left: count, input }
    }

    /// Returns how many operation numbers have not been read yet.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Reads the number of the next operation; `None` after the last one. NFS may not define the number.
    ///
    /// # Errors
    /// The message ends before the announced number of operations.
    pub fn next_number(&mut self) -> Result<Option<u32>, Malformed> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.input.u32().map(Some)
    }

    /// Reads the body of the operation whose number was read last.
    ///
    /// # Errors
    /// The body is not a valid `T`.
    pub fn body<T: Xdr>(&mut self) -> Result<T, Malformed> {
        T::decode(&mut self.input)
    }

    /// Returns the reader of the rest, for a body that the caller decodes itself.
    pub fn input(&mut self) -> &mut Reader {
        &mut self.input
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    /// Some operations or bytes have not been read.
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.left > 0 { Err(Malformed::Trailing) } else { self.input.finish() }
    }
}

/// The number of an operation, of either program.
pub trait OpNumber {
    /// Returns the number on the wire.
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

/// Initial capacity in bytes: enough for most COMPOUNDs, which would otherwise be reallocated while they grow.
const ROOM: usize = 512;

/// An encoder that appends operations (or results) and at the end puts the header with their count in front.
#[derive(Debug, Default)]
pub struct OpsWriter {
    count: u32,
    out: Writer,
}

impl OpsWriter {
    /// Returns an encoder without operations.
    pub fn new() -> Self {
        OpsWriter { count: 0, out: Writer::with_capacity(ROOM) }
    }

    /// Returns the number of operations so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the number of bytes so far, without the header.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Returns whether there is no operation yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends an operation that has no body.
    pub fn void(&mut self, number: impl OpNumber) -> &mut Self {
        self.with(number, |_| {})
    }

    /// Appends an operation with its body.
    pub fn op(&mut self, number: impl OpNumber, body: &impl Xdr) -> &mut Self {
        self.with(number, |out| body.encode(out))
    }

    /// Appends an operation whose body `body` writes.
    pub fn with(&mut self, number: impl OpNumber, body: impl FnOnce(&mut Writer)) -> &mut Self {
        self.count += 1;
        self.out.u32(number.number());
        body(&mut self.out);
        self
    }

    /// Appends an operation that is already encoded (number and body). Large parts are not copied.
    pub fn encoded(&mut self, op: &Segments) -> &mut Self {
        self.count += 1;
        for part in op.parts() {
            self.out.raw(part);
        }
        self
    }

    /// Returns the arguments of COMPOUND.
    pub fn into_args(self, tag: utf8str_cs, minorversion: u32) -> Segments {
        let numops = self.count;
        self.behind(&ArgsHeader { tag, minorversion, numops })
    }

    /// Returns the arguments of CB_COMPOUND.
    pub fn into_cb_args(self, tag: utf8str_cs, minorversion: u32, callback_ident: u32) -> Segments {
        let numops = self.count;
        self.behind(&CbArgsHeader { tag, minorversion, callback_ident, numops })
    }

    /// Returns the results of COMPOUND or CB_COMPOUND.
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
                // The eager type skips the body. The skipped bytes are the bytes that a writer must write.
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
