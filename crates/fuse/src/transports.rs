//! The registry of transports.

pub(crate) mod device;
