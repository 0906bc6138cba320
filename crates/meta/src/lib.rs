//! The namespace of the file system: names, inodes and their attributes in an ordered key-value store. Each operation
//! has its own source file and becomes one atomic batch of the store.

mod check;
pub mod dump;
pub mod engine;
pub mod engines;
mod ids;
mod inode_lifetime;
pub mod log;
mod namespace;
mod ops;
mod permission;
mod reply;
pub mod schema;
mod tx;

pub use check::{At, Event, Fault, Memory as CheckMemory, Mended, check, check_into};
pub use engines::{Embedded, FileLog, Memory, Step, Stepper, StorageBackend, StoreError};
pub use log::LogDisk;
pub use namespace::{DumpError, DumpPart, Format, Namespace, OpenError};
pub use permission::Rights;
pub use reply::{
    ChangeInfo, Changed, CreateMode, Created, Doomed, Ending, FileInfo, FileState, Layout, Made, Name, Names, ReadDir,
    Removed, Renamed, Replaced, SetXattr, Unused,
};
pub use schema::merge;
