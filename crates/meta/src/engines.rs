//! The stores: one in memory, and one embedded in the daemon with its own file.

mod embedded;
mod memory;

pub use embedded::{Embedded, FileLog, Step, Stepper, StoreError};
pub use memory::Memory;
pub use redb::StorageBackend;
