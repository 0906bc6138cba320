//! NFSv4.1/4.2 state tables and operations, for server and client.

// Fuzz targets use this crate by its name, also where this crate's own tests run them.
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
