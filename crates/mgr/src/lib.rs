//! The metadata server (mgr): it serves the namespace and layouts over NFS, and reads and writes on the iods for
//! clients without layouts.
//!
//! [`format()`] creates a file system, and [`Mgr::start`] serves it.

// The test module `cluster` names this crate `mgr`, because the unit tests share the module with the integration tests.
#[cfg(test)]
extern crate self as mgr;

mod backchannel;
mod background;
mod backup;
mod caller;
mod check;
mod clients;
mod clock;
mod cluster_file;
mod config;
mod counters;
mod data_server_reports;
mod devices;
mod dumps;
mod error;
mod exports;
mod fs;
mod gateway;
mod gathered_writes;
mod grants;
mod handle;
mod intents;
mod iods;
mod kinds;
mod local_socket_hint;
mod locks;
mod moves;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod paths;
mod proxy;
mod queue;
mod random;
mod refused_clients;
mod rights;
mod running;
mod space;
mod status;
mod store;
mod striped_records;
mod volume;

pub use backup::{Dumped, check_dump, dump, restore};
pub use cluster_file::ClusterFile;
pub use config::{Access, Config, Export, KernelLayout, PORT, SquashWhom};
pub use counters::Counters;
pub use error::Error;
pub use fs::Files;
pub use iods::Refusal;
pub use running::{Mgr, Running};
pub use store::format;
