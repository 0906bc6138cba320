//! NFSv4.1/4.2 state tables and operations, server half and client half.

pub mod attrs;
pub mod client;
pub mod fs;
pub mod server;
pub mod state;
pub mod status;
pub mod values;
