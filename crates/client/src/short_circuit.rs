//! Short-circuit reads: the client reads cached bytes directly from files that local iods lend.
//!
//! `docs/decisions/local-reads.md` explains why such a read shows nothing that a READ would not show.

mod buffers;
mod loan;
mod loan_state;
mod loans;

pub(crate) use loan::Loan;
use loan::Over;
pub(crate) use loan_state::Told;
pub(crate) use loans::{Loans, Place, Read};
