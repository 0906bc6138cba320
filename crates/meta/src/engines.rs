//! The stores: one in memory, one embedded in the daemon with a file of its own.

mod embedded;
mod memory;

pub use embedded::{Embedded, StoreError};
pub use memory::Memory;
