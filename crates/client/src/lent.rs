//! Short-circuit reads: the client reads cached bytes directly from files that local iods lend.
//!
//! `docs/decisions/local-reads.md` explains why such a read shows nothing that a READ would not show.

mod buffers;
mod loan;
mod shelf;
mod standing;

pub(crate) use loan::Loan;
use loan::Over;
pub(crate) use shelf::{Place, Read, Shelf};
pub(crate) use standing::Told;
