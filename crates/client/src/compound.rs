//! COMPOUNDs as the client writes and reads them: operations gathered behind a SEQUENCE, results taken one by one.

use crate::{Error, Result};
use bytes::Bytes;
use nfs::attrs;
use types::{Attrs, Status};
use wire::nfs4::compound::{OpNumber, Ops, OpsWriter};
use wire::nfs4::*;
use xdr::{Reader, Segments, Writer, Xdr};

/// The operations of one round trip, without the SEQUENCE in front.
#[derive(Clone, Debug)]
pub(crate) struct Compound {
    /// What people are told when it fails.
    what: String,
    ops: Vec<(nfs_opnum4, Segments)>,
    cached: bool,
}

impl Compound {
    /// No operation yet; `what` completes "while ...", as in `looking up "a"`.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Compound { what: what.into(), ops: Vec::new(), cached: false }
    }

    /// Asks the server to keep the reply, as doing this twice is not the same as once.
    pub(crate) fn cached(mut self) -> Self {
        self.cached = true;
        self
    }

    /// Whether the reply is to be kept (`sa_cachethis`).
    pub(crate) fn is_cached(&self) -> bool {
        self.cached
    }

    /// What it is for.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Whether nothing was changed before the operation at `index` failed, so that all may be sent again as new.
    pub(crate) fn harmless_before(&self, index: usize) -> bool {
        let harmless = |op| matches!(op, OP_PUTFH | OP_PUTROOTFH | OP_SAVEFH | OP_RESTOREFH | OP_LOOKUP | OP_GETATTR);
        self.numbers().take(index).all(harmless)
    }

    /// The operations in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = nfs_opnum4> + '_ {
        self.ops.iter().map(|(number, _)| *number)
    }

    /// Appends an operation.
    pub(crate) fn op(&mut self, number: nfs_opnum4, body: &impl Xdr) -> &mut Self {
        let mut out = Writer::new();
        out.u32(number.number());
        body.encode(&mut out);
        self.ops.push((number, out.finish()));
        self
    }

    /// Appends an operation without a body.
    pub(crate) fn void(&mut self, number: nfs_opnum4) -> &mut Self {
        let mut out = Writer::new();
        out.u32(number.number());
        self.ops.push((number, out.finish()));
        self
    }

    /// Appends PUTFH.
    pub(crate) fn putfh(&mut self, handle: &Bytes) -> &mut Self {
        self.op(OP_PUTFH, &PUTFH4args { object: handle.clone() })
    }

    /// Appends GETATTR of everything in [`Attrs`].
    pub(crate) fn getattr(&mut self) -> &mut Self {
        self.op(OP_GETATTR, &GETATTR4args { attr_request: attrs::OBJECT.to_bitmap() })
    }

    /// Appends GETFH.
    pub(crate) fn getfh(&mut self) -> &mut Self {
        self.void(OP_GETFH)
    }

    /// The arguments of the call, `sequence` first when there is one.
    pub(crate) fn encode(&self, sequence: Option<&SEQUENCE4args>, minor: u32) -> Segments {
        let mut out = OpsWriter::new();
        if let Some(sequence) = sequence {
            out.op(OP_SEQUENCE, sequence);
        }
        for (_, op) in &self.ops {
            out.encoded(op);
        }
        out.into_args(Bytes::new(), minor)
    }
}

/// The results of a COMPOUND, taken in order.
#[derive(Debug)]
pub(crate) struct Results {
    what: String,
    ops: Ops,
    /// Why there are none.
    refused: Option<nfsstat4>,
}

/// Why a result is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    /// The operation answered this.
    Nfs(nfsstat4),
    /// The reply makes no sense.
    Malformed,
}

impl Results {
    /// The results behind the header and the SEQUENCE.
    pub(crate) fn new(what: String, ops: Ops) -> Self {
        Results { what, ops, refused: None }
    }

    /// No results, as the SEQUENCE was refused.
    pub(crate) fn refused(what: String, status: nfsstat4) -> Self {
        Results { what, ops: Ops::new(0, Reader::new(Bytes::new())), refused: Some(status) }
    }

    /// An error of this compound.
    pub(crate) fn error(&self, failed: &Failed) -> Error {
        match failed {
            Failed::Nfs(status) => nfs_error(*status, &self.what),
            Failed::Malformed => Error::protocol(format!("{}: the mgr sent a reply that makes no sense", self.what)),
        }
    }

    /// The body of the next result, which must be that of `number` and a success.
    pub(crate) fn raw<T: Xdr>(&mut self, number: nfs_opnum4) -> std::result::Result<T, Failed> {
        self.status(number)?;
        T::decode(self.ops.input()).map_err(|_| Failed::Malformed)
    }

    /// The status of the next result, which must be that of `number`; its body, if any, is left.
    fn status(&mut self, number: nfs_opnum4) -> std::result::Result<(), Failed> {
        if let Some(status) = self.refused {
            return Err(Failed::Nfs(status));
        }
        let met = self.ops.next_number().map_err(|_| Failed::Malformed)?;
        if met != Some(number.number()) {
            return Err(Failed::Malformed);
        }
        match nfsstat4::decode(self.ops.input()) {
            Ok(NFS4_OK) => Ok(()),
            Ok(status) => Err(Failed::Nfs(status)),
            Err(_) => Err(Failed::Malformed),
        }
    }

    /// As [`Results::raw`], failures made errors.
    pub(crate) fn take<T: Xdr>(&mut self, number: nfs_opnum4) -> Result<T> {
        self.raw(number).map_err(|failed| self.error(&failed))
    }

    /// Checks the success of operations whose results have no body.
    pub(crate) fn done(&mut self, numbers: &[nfs_opnum4]) -> Result<()> {
        numbers.iter().try_for_each(|n| self.status(*n).map_err(|failed| self.error(&failed)))
    }

    /// The result of [`Compound::getattr`].
    pub(crate) fn attrs(&mut self) -> Result<Attrs> {
        let got: GETATTR4resok = self.take(OP_GETATTR)?;
        decode_attrs(&got.obj_attributes, &self.what)
    }

    /// The result of [`Compound::getfh`].
    pub(crate) fn handle(&mut self) -> Result<Bytes> {
        self.take::<GETFH4resok>(OP_GETFH).map(|got| got.object)
    }
}

/// Attributes that a server sent, all of [`Attrs`].
pub(crate) fn decode_attrs(attrs: &fattr4, what: &str) -> Result<Attrs> {
    let values = nfs::attrs::decode(attrs).map_err(|e| Error::protocol(format!("{what}: attributes: {e}")))?;
    values.attrs().ok_or_else(|| Error::protocol(format!("{what}: the mgr left out an attribute")))
}

/// A refusal by the mgr.
pub(crate) fn nfs_error(status: nfsstat4, what: &str) -> Error {
    match nfs::status::from_nfs(status) {
        Some(Status::Io) if status != NFS4ERR_IO => {
            Error::new(crate::ErrorKind::Status(Status::Io), format!("{what}: the mgr answered {status:?}"))
        }
        Some(neutral) => Error::status(neutral, what),
        None => Error::protocol(format!("{what}: the mgr answered success where it cannot be one")),
    }
}
