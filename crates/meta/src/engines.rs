//! The stores: one in memory, one embedded in the daemon with a file of its own.

mod embedded;
mod memory;

pub use embedded::{Embedded, FileLog, Step, Stepper, StoreError};
pub use memory::Memory;
pub use redb::StorageBackend;
