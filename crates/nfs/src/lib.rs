//! NFSv4.1/4.2 protocol state and operations, for servers and clients, without sockets or clocks.

// The fuzz targets and the unit tests share the `testing` modules, which name this crate `nfs`. This alias makes the
// modules compile here.
#[cfg(test)]
extern crate self as nfs;

pub mod attrs;
pub mod client;
pub mod data_server;
pub mod exports;
pub mod fs;
pub mod name_delegations;
pub mod server;
pub mod spans;
pub mod state;
pub mod status;
#[cfg(any(test, feature = "memory"))]
pub mod testing;
pub mod values;
