//! LEND: passes a descriptor of an object's file to a client on the same machine, which then reads the bytes itself
//! (short-circuit reads).

use bytes::Bytes;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::LOAN_MARK_MAX;

/// The data that a client needs to use a lent object file, besides the descriptor of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loan {
    /// File offset of the first byte of the object.
    pub begin: u64,
    /// The first bytes of the object file at the time of the LEND, at least one byte. Once the file begins with other
    /// bytes than these, the client must no longer use the descriptor.
    pub mark: Bytes,
}

/// Result of LEND.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LendReply {
    /// The loan; `None` if the object does not exist. The descriptor arrives together with the first byte of the reply.
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
