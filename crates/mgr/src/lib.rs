//! The metadata server (mgr): it connects NFS, the namespace and layouts to the network, and does I/O on the iods for
//! clients without layouts.
//!
//! [`format`] makes a file system, [`Mgr::start`] serves it.

mod backchannel;
mod backup;
mod caller;
mod check;
mod clients;
mod cluster_file;
mod collector;
mod config;
mod counters;
mod devices;
mod dumps;
mod error;
mod exports;
mod fs;
mod gateway;
mod gathered;
mod grants;
mod handle;
mod iods;
mod locks;
mod mismatch;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod near;
mod news;
mod notes;
mod paths;
mod proxy;
mod queue;
mod random;
mod rebuilder;
mod recaller;
mod rights;
mod room;
mod running;
mod scrub;
mod settler;
mod space;
mod status;
mod store;
mod sweeper;

pub use backup::{Dumped, check_dump, dump, restore};
pub use cluster_file::ClusterFile;
pub use config::{Access, Config, Export, KernelLayout, PORT, SquashWhom};
pub use counters::Counters;
pub use error::Error;
pub use fs::Files;
pub use iods::Refusal;
pub use running::{Mgr, Running};
pub use store::format;
