//! The engines of the metadata store: an in-memory engine, and an embedded engine with a database file and a batch log.

mod embedded;
mod memory;

pub use embedded::{Embedded, FileLog, Step, Stepper, StoreError};
pub use memory::Memory;
pub use redb::StorageBackend;
