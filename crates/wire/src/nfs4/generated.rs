//! XDR types generated from the RFCs, one file for each form of type (structure, union, enumeration, and so on). Names
//! and meanings are those of the RFCs.

#![allow(missing_docs, non_camel_case_types, non_snake_case)]
#![allow(clippy::large_enum_variant, clippy::upper_case_acronyms, clippy::enum_variant_names)]

#[cfg(test)]
pub(super) mod arbitrary;
mod constants;
mod enums;
mod structs;
mod typedefs;
mod unions;

pub use constants::*;
pub use enums::*;
pub use structs::*;
pub use typedefs::*;
pub use unions::*;
