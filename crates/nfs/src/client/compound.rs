//! COMPOUND requests of the client: operations collected after a SEQUENCE, results read one by one with typed errors.

use crate::fs::SOON;
use bytes::Bytes;
use wire::nfs4::compound::{ArgsHeader, OpNumber, Ops};
use wire::nfs4::*;
use xdr::{Malformed, Segments, Writer, Xdr};

/// Bytes and number of operations that most requests stay below, so that their buffers need not grow.
const ROOM: usize = 256;
const OPERATIONS: usize = 8;

/// The operations of one request without its SEQUENCE, so that the client can send them again in another session.
///
/// Payloads are not copied.
#[derive(Debug, Default)]
pub struct Compound {
    out: Writer,
    numbers: Vec<nfs_opnum4>,
    once: bool,
    makes: bool,
}

impl Compound {
    /// Creates a request without operations.
    pub fn new() -> Self {
        Compound { out: Writer::with_capacity(ROOM), numbers: Vec::with_capacity(OPERATIONS), ..Self::default() }
    }

    /// Asks the server to keep the reply, because executing the request twice differs from executing it once.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Notes that an OPEN of this request may create a file.
    pub fn makes(mut self) -> Self {
        self.makes = true;
        self
    }

    /// Appends an operation.
    pub fn op(mut self, number: nfs_opnum4, args: &impl Xdr) -> Self {
        self.out.u32(number.number());
        args.encode(&mut self.out);
        self.numbers.push(number);
        self
    }

    /// Appends an operation without arguments.
    pub fn void(mut self, number: nfs_opnum4) -> Self {
        self.out.u32(number.number());
        self.numbers.push(number);
        self
    }

    /// Appends PUTFH.
    pub fn putfh(self, handle: &Bytes) -> Self {
        self.op(OP_PUTFH, &PUTFH4args { object: handle.clone() })
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns whether there are no operations yet.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the finished request, which can be encoded any number of times.
    pub fn build(self) -> Request {
        Request { operations: self.out.finish(), numbers: self.numbers, once: self.once, makes: self.makes }
    }
}

/// Operations ready to be sent.
#[derive(Clone, Debug)]
pub struct Request {
    operations: Segments,
    numbers: Vec<nfs_opnum4>,
    once: bool,
    makes: bool,
}

impl Request {
    /// Returns whether the server must keep the reply (`sa_cachethis`).
    pub fn is_once(&self) -> bool {
        self.once
    }

    /// Returns the operations after SEQUENCE.
    pub fn numbers(&self) -> &[nfs_opnum4] {
        &self.numbers
    }

    /// Returns whether the request may change something that [`SOON`] applies to.
    pub fn changes(&self) -> bool {
        const CHANGES: [nfs_opnum4; 8] =
            [OP_CREATE, OP_REMOVE, OP_RENAME, OP_LINK, OP_SETATTR, OP_SETXATTR, OP_REMOVEXATTR, OP_WRITE];
        self.makes || self.numbers.iter().any(|op| CHANGES.contains(op))
    }

    /// Returns the arguments of the call (`COMPOUND4args`) after `sequence`; with `soon` the server need not wait for
    /// stable storage.
    pub fn encode(&self, sequence: &SEQUENCE4args, minor: u32, soon: bool) -> Segments {
        let numops = self.numbers.len() as u32 + 1;
        let mut out = Writer::new();
        let tag = if soon { Bytes::from_static(SOON) } else { Bytes::new() };
        ArgsHeader { tag, minorversion: minor, numops }.encode(&mut out);
        out.u32(OP_SEQUENCE.number());
        sequence.encode(&mut out);
        let mut call = out.finish();
        call.extend(self.operations.clone());
        call
    }
}

/// Why a result is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failed {
    /// An operation failed; the operations after it were not executed.
    #[error("{op:?} (operation {index}) failed with {status:?}")]
    Op {
        /// The operation.
        op: nfs_opnum4,
        /// The index of the operation after SEQUENCE, from 0.
        index: u32,
        /// The status of the operation.
        status: nfsstat4,
    },
    /// The reply does not match the request.
    #[error("malformed reply: {0}")]
    Malformed(#[from] Malformed),
}

/// The results of a request, read in order.
#[derive(Clone, Debug)]
pub struct Results {
    ops: Ops,
    taken: u32,
}

impl Results {
    /// The results after SEQUENCE, from [`Outcome::Done`](crate::client::session::Outcome::Done).
    pub fn new(ops: Ops) -> Self {
        Results { ops, taken: 0 }
    }

    /// Checks that the next result belongs to `op` and is a success; the body remains unread.
    fn enter(&mut self, op: nfs_opnum4) -> Result<(), Failed> {
        self.enter_any(&[op])
    }

    /// Does the same as [`Results::enter`] for one of several operations.
    fn enter_any(&mut self, ops: &[nfs_opnum4]) -> Result<(), Failed> {
        let number = self.ops.next_number()?;
        let Some(op) = ops.iter().copied().find(|op| number == Some(op.number())) else {
            return Err(Malformed::Invalid("a result is missing or of another operation").into());
        };
        let index = self.taken;
        self.taken += 1;
        match self.ops.body::<nfsstat4>()? {
            NFS4_OK => Ok(()),
            status => Err(Failed::Op { op, index, status }),
        }
    }

    /// Reads the next result, which has a body (`...resok`) on success.
    ///
    /// # Errors
    /// The operation failed, or the reply is malformed. The bytes after the status of a failed operation can still be
    /// read from [`Results::rest`].
    pub fn take<T: Xdr>(&mut self, op: nfs_opnum4) -> Result<T, Failed> {
        self.enter(op)?;
        Ok(self.ops.body()?)
    }

    /// Reads the next result, which consists of its status only.
    ///
    /// # Errors
    /// The operation failed, or the reply is malformed.
    pub fn done(&mut self, op: nfs_opnum4) -> Result<(), Failed> {
        self.enter(op)
    }

    /// Does the same as [`Results::done`] for one of several operations.
    ///
    /// # Errors
    /// The errors of [`Results::done`].
    pub fn done_any(&mut self, ops: &[nfs_opnum4]) -> Result<(), Failed> {
        self.enter_any(ops)
    }

    /// Returns the number of results read.
    pub fn taken(&self) -> usize {
        self.taken as usize
    }

    /// Returns the results that are not read yet.
    pub fn rest(&mut self) -> &mut Ops {
        &mut self.ops
    }

    /// Checks that all results were read.
    ///
    /// # Errors
    /// There are unread results.
    pub fn finish(&self) -> Result<(), Failed> {
        Ok(self.ops.finish()?)
    }
}
