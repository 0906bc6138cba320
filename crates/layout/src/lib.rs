//! Where bytes live: distributions, layout kinds and their body codec, the policy, list I/O planning
//! and the gathering of small writes.
//!
//! Nothing here does I/O or reads a clock: every function maps values to values.

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
