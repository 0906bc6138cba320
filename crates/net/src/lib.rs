//! Transports and calls in flight: record-marked ONC RPC over TCP and Unix sockets.

pub mod address;
mod buffers;
mod counters;
mod error;
pub mod rpc;
mod stream;

pub use address::Address;
pub use counters::{CallCount, Counters, Traffic};
pub use error::Error;
pub use stream::Listener;
