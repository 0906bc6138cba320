//! The data server (iod), which keeps objects in a local directory and serves them by the native data program.
//!
//! [`Store`] keeps objects as files of a local directory. A [`Volume`] is a store with all that belongs to its file
//! system, and a [`Daemon`] serves one or more volumes; [`Iod`] does that over sockets. The data path uses plain threads
//! and blocking calls: the thread of a connection reads a request, makes the file call, and answers. An iod does not
//! know which file of the file system an object belongs to.

mod buffers;
mod counters;
mod disks;
mod lock;
mod server;
mod store;

pub use counters::Counters;
pub use disks::{Disk, DiskFile, Fault, Local, Measure, Memory, Operation};
pub use server::{Broken, Config, Daemon, Iod, ObjectBytes, Peer, Running, StartError, StoreConfig, Volume};
pub use store::{Features, Store, StoreError};
