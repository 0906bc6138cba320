//! Data placement: distributions, layout kinds and their encoding, the policy, planning of list I/O, and gathering of
//! small writes.
//!
//! This crate does no I/O and reads no clock: the result of a function depends only on its arguments.

pub mod distributions;
pub mod gather;
pub mod kinds;
mod later;
pub mod list_io;
mod net_address;
pub mod policy;
pub mod read_ahead;
pub mod threshold;

pub use distributions::{BadGeometry, Distribution, DistributionId, Piece, Place};
pub use later::Later;
pub use net_address::NetAddress;
pub use policy::{Access, Effective, Layers, Origin, Part, Policy, PolicyError, Settings};
