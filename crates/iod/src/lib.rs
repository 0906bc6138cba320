//! The data server (iod), which keeps objects in a local directory and serves them by the native data program.
//!
//! [`Store`] keeps objects as files of a local directory. [`Iod`] serves one store over sockets. The data path uses
//! plain threads and blocking calls: the thread of a connection reads a request, makes the file call, and answers. An
//! iod does not know which file of the file system an object belongs to.

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
