//! Data placement: distributions, layout kinds and their encoding, the policy, planning of list I/O, and gathering of
//! small writes.
//!
//! This crate does no I/O and reads no clock: the result of a function depends only on its arguments.

pub mod distributions;
pub mod gather;
pub mod kinds;
pub mod list_io;
mod net_address;
pub mod policy;
pub mod read_ahead;
pub mod threshold;
mod unassigned;

pub use distributions::{BadGeometry, Distribution, DistributionId, Piece, Place};
pub use net_address::NetAddress;
pub use policy::{Access, Effective, Layers, Origin, Part, Policy, PolicyError, Settings};
pub use unassigned::Unassigned;
