//! The client core: sessions, open files, layout drivers, and parallel requests to the iods under a bounded write
//! window.
//!
//! A [`Mount`] is a connection to a file system, created from a [`Target`] and [`Options`]. Callers look up and change
//! names through the mount, and read and write the bytes of a [`File`] that the mount opens. All operations are
//! asynchronous and must run inside a tokio runtime.

mod compound;
pub mod counters;
mod devices;
mod drivers;
mod effective_policy;
pub mod error;
#[cfg(test)]
mod explorer;
mod extents;
pub mod file;
pub mod in_doubt;
mod inode;
mod lock_order;
mod long_waits;
mod mgr_load;
pub mod mount;
mod negative;
pub mod options;
pub mod placement;
mod session;
mod short_circuit;
pub mod target;
mod via_mgr;
mod write_window;

pub use counters::Counters;
pub use error::{Error, ErrorKind};
pub use file::{File, HeldLock, ReadResult, Segment};
pub use inode::UpperCache;
pub use layout::policy::{Access, Effective, Origin, Part, Policy, Settings};
pub use mount::{CreateOptions, Entry, Mount, Node, OpenFlags, OpenOptions, PathExpectation, ReadDir, XattrMode};
pub use nfs::spans::LockKind;
pub use options::{Durable, Options};
pub use placement::Placement;
pub use target::{BadTarget, Target};

/// The result of the client's operations.
pub type Result<T> = std::result::Result<T, Error>;
