//! LEND (short-circuit reads): passes a descriptor of an object's file to a client of the same machine, which reads the
//! bytes itself.

use bytes::Bytes;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::LOAN_MARK_MAX;

/// The data that accompany a passed descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loan {
    /// Offset in the file at which the bytes of the object begin.
    pub begin: u64,
    /// The first bytes of the file, at least one. When the file begins with other bytes, the descriptor is no longer
    /// valid.
    pub mark: Bytes,
}

/// Result of LEND.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LendReply {
    /// `None` if the object does not exist. The descriptor arrives with the first byte of the reply.
    pub loan: Option<Loan>,
}

impl Xdr for Loan {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.begin);
        out.opaque(&self.mark);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let (begin, mark) = (input.u64()?, input.opaque(LOAN_MARK_MAX)?);
        if mark.is_empty() { Err(Malformed::Invalid("a loan without a mark")) } else { Ok(Loan { begin, mark }) }
    }
}

impl Xdr for LendReply {
    fn encode(&self, out: &mut Writer) {
        out.optional(self.loan.as_ref(), |out, loan| loan.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LendReply { loan: input.optional(Loan::decode)? })
    }
}
