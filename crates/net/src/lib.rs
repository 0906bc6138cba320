//! Transports and RPC for all daemons: ONC RPC over TCP, over Unix sockets, inside one process, and over simulated
//! networks.

pub mod address;
mod buffers;
pub mod clock;
mod counters;
mod error;
pub mod files;
pub mod local;
mod log_rate_limit;
pub mod rpc;
mod supervise;
pub mod task;
mod transports;
mod user;

pub use address::Address;
pub use counters::{CallCount, Counters, Traffic};
pub use error::Error;
pub use log_rate_limit::may_log;
pub use supervise::supervise;
pub use transports::{Listener, memory};
pub use user::User;
