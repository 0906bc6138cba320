//! The data server (iod), which stores objects in a local directory and serves them by the native data protocol.
//!
//! [`Store`] keeps each object as a file of a local directory. A [`Volume`] is a store with the secret and the
//! sessions of its file system. A [`Daemon`] serves requests to one or more volumes, and [`Iod`] runs a daemon over
//! TCP and Unix sockets. The data path uses plain threads and blocking calls. The thread of a connection reads a
//! request, makes the system call on the object's file, and replies. An iod does not know the names of files, or which
//! bytes of a file an object holds.

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
