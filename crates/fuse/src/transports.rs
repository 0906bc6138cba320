//! The registry of transports.

pub(crate) mod device;
pub(crate) mod uring;
