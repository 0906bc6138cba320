//! COMPOUND from the client's side: operations gathered behind a SEQUENCE, results taken one by one with typed errors.

use crate::fs::SOON;
use bytes::Bytes;
use wire::nfs4::compound::{ArgsHeader, OpNumber, Ops};
use wire::nfs4::*;
use xdr::{Malformed, Segments, Writer, Xdr};

/// Bytes of operations, and how many of them, that most requests stay below: those need not move while they grow.
const ROOM: usize = 256;
const OPERATIONS: usize = 8;

/// The operations of one request, without the SEQUENCE in front, so that they can be sent again in another session.
///
/// Payloads are kept as they are and never copied.
#[derive(Debug, Default)]
pub struct Compound {
    out: Writer,
    numbers: Vec<nfs_opnum4>,
    once: bool,
    makes: bool,
}

impl Compound {
    /// No operation yet.
    pub fn new() -> Self {
        Compound { out: Writer::with_capacity(ROOM), numbers: Vec::with_capacity(OPERATIONS), ..Self::default() }
    }

    /// Asks for the reply to be kept, because to do this twice is not the same as once.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Says that an OPEN in it may make a file.
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

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// What is sent: may be encoded as often as needed.
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
    /// Whether the reply is to be kept (`sa_cachethis`).
    pub fn is_once(&self) -> bool {
        self.once
    }

    /// The operations behind SEQUENCE.
    pub fn numbers(&self) -> &[nfs_opnum4] {
        &self.numbers
    }

    /// Whether anything may be changed by it that [`SOON`] is about.
    pub fn changes(&self) -> bool {
        const CHANGES: [nfs_opnum4; 8] =
            [OP_CREATE, OP_REMOVE, OP_RENAME, OP_LINK, OP_SETATTR, OP_SETXATTR, OP_REMOVEXATTR, OP_WRITE];
        self.makes || self.numbers.iter().any(|op| CHANGES.contains(op))
    }

    /// The arguments of the call (`COMPOUND4args`) behind `sequence`, whose answer need not wait for stable storage if `soon`.
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

/// Why a result is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failed {
    /// An operation failed; those behind it were not executed.
    #[error("{op:?} (operation {index}) failed with {status:?}")]
    Op {
        /// Which.
        op: nfs_opnum4,
        /// Its place behind SEQUENCE, from 0.
        index: u32,
        /// Its status.
        status: nfsstat4,
    },
    /// The reply is not that of the request.
    #[error("malformed reply: {0}")]
    Malformed(#[from] Malformed),
}

/// The results of a request, taken in order.
#[derive(Clone, Debug)]
pub struct Results {
    ops: Ops,
    taken: u32,
}

impl Results {
    /// The results behind SEQUENCE, as [`Outcome::Done`](crate::client::session::Outcome::Done) has them.
    pub fn new(ops: Ops) -> Self {
        Results { ops, taken: 0 }
    }

    /// Checks that the next result is that of `op` and a success, and leaves its body.
    fn enter(&mut self, op: nfs_opnum4) -> Result<(), Failed> {
        self.enter_any(&[op])
    }

    /// As [`Results::enter`], of one of several operations.
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

    /// The next result, which has a body (`...resok`) when it is a success.
    ///
    /// # Errors
    /// The operation failed, or the reply is malformed. What stands behind the status of a failed operation can still
    /// be read from [`Results::rest`].
    pub fn take<T: Xdr>(&mut self, op: nfs_opnum4) -> Result<T, Failed> {
        self.enter(op)?;
        Ok(self.ops.body()?)
    }

    /// The next result, which has nothing but its status.
    ///
    /// # Errors
    /// The operation failed, or the reply is malformed.
    pub fn done(&mut self, op: nfs_opnum4) -> Result<(), Failed> {
        self.enter(op)
    }

    /// As [`Results::done`], of one of several operations.
    ///
    /// # Errors
    /// As those of [`Results::done`].
    pub fn done_any(&mut self, ops: &[nfs_opnum4]) -> Result<(), Failed> {
        self.enter_any(ops)
    }

    /// How many results were taken.
    pub fn taken(&self) -> usize {
        self.taken as usize
    }

    /// The results not taken yet.
    pub fn rest(&mut self) -> &mut Ops {
        &mut self.ops
    }

    /// Ends reading.
    ///
    /// # Errors
    /// Results are left.
    pub fn finish(&self) -> Result<(), Failed> {
        Ok(self.ops.finish()?)
    }
}
