//! The data server: objects in a local directory behind the native data program.
//!
//! [`Store`] keeps byte objects as files of a directory, [`Iod`] serves one over sockets. The data plane is plain
//! threads and blocking calls: one thread for each connection, which reads a request, does the file call on the spot
//! and answers. An iod does not know which file of the file system a byte belongs to.

mod buffers;
mod counters;
mod disks;
mod lock;
mod server;
mod store;

pub use counters::Counters;
pub use disks::{Disk, DiskFile, Fault, Local, Measure, Memory, Operation};
pub use server::{Broken, Config, Iod, ObjectBytes, Peer, Running, Served, StartError};
pub use store::{Features, Store, StoreError};
