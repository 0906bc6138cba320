//! LEND: a descriptor of an object's file, for a client of the same machine that reads the bytes itself.

use bytes::Bytes;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::LOAN_MARK_MAX;

/// What goes with a lent descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loan {
    /// Where in the file the bytes of the object begin.
    pub begin: u64,
    /// The first bytes of the file, at least one: as soon as they are others the loan is over.
    pub mark: Bytes,
}

/// Result of LEND.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LendReply {
    /// The descriptor comes with the first byte of the reply; nothing is lent of an object that does not exist.
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
