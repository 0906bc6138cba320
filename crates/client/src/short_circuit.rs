//! Short-circuit reads: the client reads cached bytes directly from the files that local iods lend.
//!
//! `docs/decisions/local-reads.md` explains why a short-circuit read never returns bytes that a READ would not return.

mod buffers;
mod loan;
mod loan_state;
mod loans;

pub(crate) use loan::Loan;
use loan::LoanEnded;
pub(crate) use loan_state::LoanReply;
pub(crate) use loans::{Loans, ObjectLoan, Read};
