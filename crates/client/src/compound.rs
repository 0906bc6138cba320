//! COMPOUND requests and their results, with a description of each request for error messages.

use crate::mgr_load::MgrLoad;
use crate::{Error, Result};
use bytes::Bytes;
use nfs::attrs::Mask;
use nfs::client::compound::{Compound as Builder, Failed as Refusal, Request, Results as Inner};
use nfs::client::fattr;
use nfs::fs::PolicyText;
use nfs::values::Values;
use std::sync::Arc;
use types::{Attrs, FileId, Status};
use wire::nfs4::*;
use wire::rpc::Auth;
use xdr::Xdr;

/// The credentials of the user for whom the client sends a request; `None` stands for the mount's own credentials.
pub(crate) type Caller = Option<Arc<Auth>>;

/// A COMPOUND under construction: the operations of one round trip, without the leading SEQUENCE.
#[derive(Debug)]
pub(crate) struct Compound {
    what: String,
    builder: Builder,
    once: bool,
    caller: Caller,
    checks: Checks,
}

/// The operations of a COMPOUND that check a path expectation ([`crate::Mount::expecting`]): bit N is set if operation
/// N belongs to such a path check.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Checks(u64);

impl Checks {
    /// A path check consists of PUTFH for a directory, LOOKUP for each name on the path, and VERIFY of the file id.
    const OPERATIONS: [nfs_opnum4; 3] = [OP_PUTFH, OP_LOOKUP, OP_VERIFY];

    /// Returns whether the operation at index `place` of the COMPOUND belongs to a path check.
    fn has(self, place: usize) -> bool {
        place < u64::BITS as usize && self.0 >> place & 1 == 1
    }
}

const _: () = assert!(types::limits::COMPOUND_OPS_MAX <= u64::BITS);

/// An encoded COMPOUND that the client can send several times.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// What the COMPOUND does, for error messages.
    pub(crate) what: String,
    pub(crate) request: Request,
    /// Whether the request is not idempotent: executing it twice has a different effect from executing it once.
    pub(crate) once: bool,
    pub(crate) caller: Caller,
    /// The operations of the COMPOUND that belong to path checks.
    pub(crate) checks: Checks,
}

impl Compound {
    /// Creates a COMPOUND without operations; `what` describes it for messages, such as `looking up "a"`.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Compound { what: what.into(), builder: Builder::new(), once: false, caller: None, checks: Checks::default() }
    }

    /// Returns what the COMPOUND does, for error messages.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Sets the user whose credentials the request carries.
    pub(crate) fn by(mut self, caller: &Caller) -> Self {
        self.caller.clone_from(caller);
        self
    }

    /// Asks the mgr to keep the reply in its reply cache, so that the mgr does not execute a retransmission of the
    /// request again.
    pub(crate) fn cached(mut self) -> Self {
        self.builder = self.builder.once();
        self
    }

    /// Asks the mgr to cache the reply like [`Compound::cached`], and marks the request as not idempotent: after a
    /// restart of the mgr, which loses the reply cache, the client must not send the request again.
    pub(crate) fn once(mut self) -> Self {
        self.once = true;
        self.cached()
    }

    /// Records that an OPEN in this COMPOUND may create a file.
    pub(crate) fn makes(mut self) -> Self {
        self.builder = self.builder.makes();
        self
    }

    /// Marks the request as not idempotent, without asking the mgr to cache the reply.
    pub(crate) fn make_once(&mut self) {
        self.once = true;
    }

    /// Appends an operation.
    pub(crate) fn op(&mut self, number: nfs_opnum4, body: &impl Xdr) -> &mut Self {
        self.builder = std::mem::take(&mut self.builder).op(number, body);
        self
    }

    /// Appends an operation without a body.
    pub(crate) fn void(&mut self, number: nfs_opnum4) -> &mut Self {
        self.builder = std::mem::take(&mut self.builder).void(number);
        self
    }

    /// Appends PUTFH.
    pub(crate) fn putfh(&mut self, handle: &Bytes) -> &mut Self {
        self.op(OP_PUTFH, &PUTFH4args { object: handle.clone() })
    }

    /// Appends a path check: looking up `names` one after the other, from directory `from`, must lead to the file `id`.
    /// This file becomes the current filehandle.
    pub(crate) fn check(&mut self, from: &Bytes, names: &[Bytes], id: FileId) -> &mut Self {
        let begin = self.builder.len();
        self.putfh(from);
        for name in names {
            self.op(OP_LOOKUP, &LOOKUP4args { objname: name.clone() });
        }
        self.op(OP_VERIFY, &VERIFY4args { obj_attributes: nfs::attrs::encode_id(id) });
        self.checks.0 |= (begin..self.builder.len()).fold(0, |bits, place| bits | 1 << place);
        self
    }

    /// Appends a GETATTR for all attributes in [`Attrs`].
    pub(crate) fn getattr(&mut self) -> &mut Self {
        self.getattr_of(fattr::ATTRS)
    }

    /// Appends a GETATTR for the attributes in `wanted`.
    pub(crate) fn getattr_of(&mut self, wanted: Mask) -> &mut Self {
        self.op(OP_GETATTR, &fattr::getattr_args(wanted))
    }

    /// Appends GETFH.
    pub(crate) fn getfh(&mut self) -> &mut Self {
        self.void(OP_GETFH)
    }

    /// Encodes the operations, so that the client can send the COMPOUND.
    pub(crate) fn seal(self) -> Sealed {
        let Compound { what, builder, once, caller, checks } = self;
        Sealed { what, request: builder.build(), once, caller, checks }
    }
}

impl Sealed {
    /// Returns whether all operations before the failed operation `index` are read-only. If so, the client may send the
    /// whole COMPOUND again as a new request.
    pub(crate) fn harmless_before(&self, index: usize) -> bool {
        const HARMLESS: [nfs_opnum4; 9] =
            [OP_PUTFH, OP_PUTROOTFH, OP_SAVEFH, OP_RESTOREFH, OP_LOOKUP, OP_GETATTR, OP_GETFH, OP_ACCESS, OP_VERIFY];
        self.request.numbers().iter().take(index).all(|op| HARMLESS.contains(op))
    }
}

/// The results of a COMPOUND, which the caller takes in the order of the operations.
#[derive(Debug)]
pub(crate) struct Results {
    what: String,
    /// The results, or the status of a COMPOUND that the mgr refused as a whole.
    inner: std::result::Result<Inner, nfsstat4>,
    /// Where the client records the queue delay that the mgr reports in its replies.
    load: Arc<MgrLoad>,
    /// The operations of the COMPOUND that belong to path checks.
    checks: Checks,
}

/// Why an operation of a COMPOUND has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    /// The mgr returned this status for the operation.
    Nfs(nfsstat4),
    /// The mgr's reply is malformed.
    Malformed,
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Op { status, .. } => Failed::Nfs(status),
            Refusal::Malformed(_) => Failed::Malformed,
        }
    }
}

impl Results {
    /// Creates the results from a reply to `compound`.
    pub(crate) fn new(compound: &Sealed, inner: Inner, load: &Arc<MgrLoad>) -> Self {
        Results { what: compound.what.clone(), inner: Ok(inner), load: load.clone(), checks: compound.checks }
    }

    /// Creates the results of a COMPOUND that the mgr refused as a whole, with this status.
    pub(crate) fn refused(compound: &Sealed, status: nfsstat4) -> Self {
        Results { what: compound.what.clone(), inner: Err(status), load: Arc::default(), checks: Checks::default() }
    }

    /// Turns the failure of an operation into an error whose message names this COMPOUND.
    pub(crate) fn error(&self, failed: &Failed) -> Error {
        match failed {
            Failed::Nfs(status) => nfs_error(*status, &self.what),
            Failed::Malformed => Error::protocol(format!("{}: the mgr sent a malformed reply", self.what)),
        }
    }

    fn inner(&mut self) -> std::result::Result<&mut Inner, Failed> {
        self.inner.as_mut().map_err(|status| Failed::Nfs(*status))
    }

    /// Takes the body of the next operation's result.
    ///
    /// # Errors
    /// The next operation failed, or is not the operation with the code `number`.
    pub(crate) fn raw<T: Xdr>(&mut self, number: nfs_opnum4) -> std::result::Result<T, Failed> {
        Ok(self.inner()?.take(number)?)
    }

    /// Decodes the body that follows the status in the result of the failed operation. Only a few operations return a
    /// body when they fail, for example LOCK.
    pub(crate) fn behind_failure<T: Xdr>(&mut self) -> Result<T> {
        let body = self.inner().ok().and_then(|inner| inner.rest().body().ok());
        body.ok_or_else(|| self.error(&Failed::Malformed))
    }

    /// Takes the body of the next result like [`Results::raw`], and turns a failure into an error that names this
    /// COMPOUND.
    pub(crate) fn take<T: Xdr>(&mut self, number: nfs_opnum4) -> Result<T> {
        self.raw(number).map_err(|failed| self.error(&failed))
    }

    /// Takes the next results, which have no body, and checks that the operations with the codes `numbers` succeeded.
    pub(crate) fn done(&mut self, numbers: &[nfs_opnum4]) -> Result<()> {
        let mut all = || numbers.iter().try_for_each(|n| Ok(self.inner()?.done(*n)?));
        all().map_err(|failed| self.error(&failed))
    }

    /// Takes the results of the path checks and of the PUTFH that [`Mount::arrive`](crate::Mount::arrive) appended.
    ///
    /// # Errors
    /// A path no longer leads to the expected file: [`Error::is_moved`], with [`Status::Access`] if the caller has no
    /// search permission on the path. Otherwise the errors of [`Results::done`].
    pub(crate) fn arrived(&mut self) -> Result<()> {
        let mut checked = false;
        while self.inner.as_ref().is_ok_and(|inner| self.checks.has(inner.taken())) {
            checked = true;
            match self.inner().and_then(|inner| Ok(inner.done_any(&Checks::OPERATIONS)?)) {
                Ok(()) => {}
                Err(Failed::Nfs(status)) => {
                    let why = if status == NFS4ERR_ACCESS { Status::Access } else { Status::Stale };
                    let what = format!("{}: the path now leads to another file", self.what);
                    return Err(Error::status(why, what).with_move());
                }
                Err(failed) => return Err(self.error(&failed)),
            }
        }
        if checked { Ok(()) } else { self.done(&[OP_PUTFH]) }
    }

    /// Takes the result of the GETATTR that [`Compound::getattr`] appended.
    pub(crate) fn attrs(&mut self) -> Result<Attrs> {
        self.attrs_and_policy().map(|(attrs, _)| attrs)
    }

    /// Takes the result of a GETATTR for all attributes in [`Attrs`]. Also returns the policy, if the GETATTR asked for
    /// it.
    pub(crate) fn attrs_and_policy(&mut self) -> Result<(Attrs, Option<PolicyText>)> {
        let values = self.values()?;
        let attrs = values.attrs().ok_or("an attribute asked for is missing");
        let attrs = attrs.map_err(|e| Error::protocol(format!("{}: attributes: {e}", self.what)))?;
        Ok((attrs, values.weir_policy))
    }

    /// Takes the result of the GETATTR that [`Compound::getattr_of`] appended.
    pub(crate) fn values(&mut self) -> Result<Values> {
        let got: GETATTR4resok = self.take(OP_GETATTR)?;
        let values = fattr::values_of(&got);
        let values = values.map_err(|e| Error::protocol(format!("{}: attributes: {e}", self.what)))?;
        self.load.told(values.weir_queue_delay);
        Ok(values)
    }

    /// Takes the filehandle that a GETFH returned.
    pub(crate) fn handle(&mut self) -> Result<Bytes> {
        self.take::<GETFH4resok>(OP_GETFH).map(|got| got.object)
    }
}

/// Returns whether a status says that the stateid in the request is no longer valid: the mgr has lost or revoked the
/// open, lock or delegation, or the sequence number of the stateid is too old.
pub(crate) fn is_state_lost(status: nfsstat4) -> bool {
    matches!(
        status,
        NFS4ERR_BAD_STATEID
            | NFS4ERR_OLD_STATEID
            | NFS4ERR_STALE_STATEID
            | NFS4ERR_EXPIRED
            | NFS4ERR_ADMIN_REVOKED
            | NFS4ERR_DELEG_REVOKED
    )
}

/// Converts an NFS error status from the mgr to an error. If the status says that a stateid is no longer valid, the
/// error reports this through [`Error::is_state_lost`].
pub(crate) fn nfs_error(status: nfsstat4, what: &str) -> Error {
    let error = plain_error(status, what);
    if is_state_lost(status) { error.with_state_lost() } else { error }
}

fn plain_error(status: nfsstat4, what: &str) -> Error {
    match nfs::status::from_nfs(status) {
        Some(Status::Io) if status != NFS4ERR_IO => {
            Error::new(crate::ErrorKind::Status(Status::Io), format!("{what}: the mgr answered {status:?}"))
        }
        Some(neutral) => Error::status(neutral, what),
        None => Error::protocol(format!("{what}: the mgr reported success without a result")),
    }
}
