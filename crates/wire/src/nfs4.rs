//! NFSv4.0 to NFSv4.2 messages (RFC 7863, 8276, 8435), under the names that the RFCs use.
//!
//! `cargo xtask xdr` generates the types from the RFCs, and the generated files are committed.
//! `docs/decisions/generated-names.md` explains why the types keep the names of the RFCs. The module [`compound`]
//! handles COMPOUND, because callers decode its operations one at a time.

#[cfg(test)]
mod arbitrary;
pub mod compound;
mod generated;
mod list;

pub use generated::*;

#[cfg(test)]
mod tests;
