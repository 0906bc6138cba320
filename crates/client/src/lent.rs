//! Files that iods of this machine lend: what is in memory is read from them without asking anybody.
//!
//! Why that shows nothing that a READ would not show is in `docs/decisions/local-reads.md`.

mod buffers;
mod loan;
mod shelf;
mod standing;

pub(crate) use loan::Loan;
use loan::Over;
pub(crate) use shelf::{Place, Read, Shelf};
pub(crate) use standing::Told;
