//! The attribute sets that the client requests, and the decoding of the answers by the server's attribute table.

use crate::attrs::{self, FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY, FATTR4_WEIR_SETTLED, Mask};
use crate::values::Values;
use wire::nfs4::{GETATTR4args, GETATTR4resok};
use xdr::Malformed;

/// How long requests wait at the server.
pub const LOAD: Mask = Mask::of(&[FATTR4_WEIR_QUEUE_DELAY]);
/// The policy of a file, and how long requests wait.
pub const POLICY: Mask = Mask::of(&[FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY]);
/// A request to wait until everything that was answered before is on stable storage.
pub const SETTLED: Mask = Mask::of(&[FATTR4_WEIR_SETTLED]);
/// All attributes in [`types::Attrs`], and how long requests wait.
pub const ATTRS: Mask = attrs::OBJECT.or(LOAD);
/// All attributes that the client uses when it opens a file.
pub const OPENING: Mask = ATTRS.or(POLICY);

/// Returns the arguments of GETATTR for these attributes.
pub fn getattr_args(wanted: Mask) -> GETATTR4args {
    GETATTR4args { attr_request: wanted.to_bitmap() }
}

/// Decodes the answer to [`getattr_args`]. Attributes that the server does not have are missing.
///
/// # Errors
/// An attribute is malformed or was not requested.
pub fn values_of(reply: &GETATTR4resok) -> Result<Values, Malformed> {
    attrs::decode(&reply.obj_attributes)
}
