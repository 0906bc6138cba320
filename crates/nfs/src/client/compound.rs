//! COMPOUND requests of the client: a builder for the operations after SEQUENCE, and a reader of the results with typed
//! errors.

use crate::fs::SOON;
use bytes::Bytes;
use wire::nfs4::compound::{ArgsHeader, OpNumber, Ops};
use wire::nfs4::*;
use xdr::{Malformed, Segments, Writer, Xdr};

/// Initial capacities for a new request: `ROOM` bytes for the encoded arguments, and `OPERATIONS` entries for the
/// list of operations. Most requests fit without reallocation.
const ROOM: usize = 256;
const OPERATIONS: usize = 8;

/// A builder of COMPOUND requests. It holds the operations without SEQUENCE, so that the client can send a request
/// again in another session.
///
/// The builder keeps references to the buffers of payloads and does not copy the payloads.
#[derive(Debug, Default)]
pub struct Compound {
    out: Writer,
    numbers: Vec<nfs_opnum4>,
    once: bool,
    makes: bool,
}

impl Compound {
    /// Creates a COMPOUND without operations.
    pub fn new() -> Self {
        Compound { out: Writer::with_capacity(ROOM), numbers: Vec::with_capacity(OPERATIONS), ..Self::default() }
    }

    /// Asks the server to cache the reply (`sa_cachethis`), because the operations are not idempotent.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Records that the OPEN of this request may create a file.
    pub fn makes(mut self) -> Self {
        self.makes = true;
        self
    }

    /// Appends an operation with its arguments.
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

    /// Appends PUTFH with this filehandle.
    pub fn putfh(self, handle: &Bytes) -> Self {
        self.op(OP_PUTFH, &PUTFH4args { object: handle.clone() })
    }

    /// Returns the number of operations, SEQUENCE not counted.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns whether the request has no operations yet.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Finishes the request. The caller can encode the result any number of times.
    pub fn build(self) -> Request {
        Request { operations: self.out.finish(), numbers: self.numbers, once: self.once, makes: self.makes }
    }
}

/// The operations of a finished COMPOUND, without SEQUENCE.
#[derive(Clone, Debug)]
pub struct Request {
    operations: Segments,
    numbers: Vec<nfs_opnum4>,
    once: bool,
    makes: bool,
}

impl Request {
    /// Returns whether the request asks the server to cache the reply (`sa_cachethis`).
    pub fn is_once(&self) -> bool {
        self.once
    }

    /// Returns the numbers of the operations after SEQUENCE (`nfs_opnum4`).
    pub fn numbers(&self) -> &[nfs_opnum4] {
        &self.numbers
    }

    /// Returns whether the request contains an operation to which the server may reply before the operation's changes
    /// are durable ([`SOON`]).
    pub fn changes(&self) -> bool {
        const CHANGES: [nfs_opnum4; 8] =
            [OP_CREATE, OP_REMOVE, OP_RENAME, OP_LINK, OP_SETATTR, OP_SETXATTR, OP_REMOVEXATTR, OP_WRITE];
        self.makes || self.numbers.iter().any(|op| CHANGES.contains(op))
    }

    /// Encodes the request as `COMPOUND4args`, with `sequence` as its first operation. With `soon` the server may reply
    /// before the changes of the request are durable.
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

/// Why [`Results`] cannot return the result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failed {
    /// The server failed an operation, and did not execute the operations after it.
    #[error("{op:?} (operation {index}) failed with {status:?}")]
    Op {
        /// The failed operation.
        op: nfs_opnum4,
        /// The index of the failed operation among the operations after SEQUENCE, from 0.
        index: u32,
        /// The status of the failed operation.
        status: nfsstat4,
    },
    /// The reply is malformed, or its results do not match the operations of the request.
    #[error("malformed reply: {0}")]
    Malformed(#[from] Malformed),
}

/// A reader of the results of a COMPOUND reply, in the order of the operations.
#[derive(Clone, Debug)]
pub struct Results {
    ops: Ops,
    taken: u32,
}

impl Results {
    /// Creates a reader of the results after SEQUENCE, which [`Outcome::Done`](crate::client::session::Outcome::Done)
    /// contains.
    pub fn new(ops: Ops) -> Self {
        Results { ops, taken: 0 }
    }

    /// Checks that the next result belongs to `op` and has status NFS4_OK. The body of the result remains unread.
    fn enter(&mut self, op: nfs_opnum4) -> Result<(), Failed> {
        self.enter_any(&[op])
    }

    /// Checks that the next result belongs to one of `ops` and has status NFS4_OK. The body of the result remains
    /// unread.
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

    /// Reads the next result, which must be a successful result of `op` with a body (`...resok`).
    ///
    /// # Errors
    /// The operation failed, or the reply is malformed. After a failed operation, [`Results::rest`] still returns the
    /// bytes after the status of this operation.
    pub fn take<T: Xdr>(&mut self, op: nfs_opnum4) -> Result<T, Failed> {
        self.enter(op)?;
        Ok(self.ops.body()?)
    }

    /// Reads the next result, which must be a successful result of `op` without a body.
    ///
    /// # Errors
    /// The operation failed, or the reply is malformed.
    pub fn done(&mut self, op: nfs_opnum4) -> Result<(), Failed> {
        self.enter(op)
    }

    /// Reads the next result, which must be a successful result of one of `ops` without a body.
    ///
    /// # Errors
    /// The operation failed, or the reply is malformed.
    pub fn done_any(&mut self, ops: &[nfs_opnum4]) -> Result<(), Failed> {
        self.enter_any(ops)
    }

    /// Returns the number of results that the caller has read.
    pub fn taken(&self) -> usize {
        self.taken as usize
    }

    /// Returns the results that the caller has not read.
    pub fn rest(&mut self) -> &mut Ops {
        &mut self.ops
    }

    /// Checks that the caller has read all results.
    ///
    /// # Errors
    /// The reply contains more results.
    pub fn finish(&self) -> Result<(), Failed> {
        Ok(self.ops.finish()?)
    }
}
