//! Attributes as the client asks for and reads them, by the same table as the server's.

use crate::attrs::{self, FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY, FATTR4_WEIR_SETTLED, Mask};
use crate::values::Values;
use wire::nfs4::{GETATTR4args, GETATTR4resok};
use xdr::Malformed;

/// How long requests wait at the server.
pub const LOAD: Mask = Mask::of(&[FATTR4_WEIR_QUEUE_DELAY]);
/// How files are to be used, and how long requests wait.
pub const POLICY: Mask = Mask::of(&[FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY]);
/// When everything that was answered before is on stable storage.
pub const SETTLED: Mask = Mask::of(&[FATTR4_WEIR_SETTLED]);
/// Everything in [`types::Attrs`], and how long requests wait.
pub const ATTRS: Mask = attrs::OBJECT.or(LOAD);
/// Everything that is of use when a file is opened.
pub const OPENING: Mask = ATTRS.or(POLICY);

/// GETATTR of these.
pub fn getattr_args(wanted: Mask) -> GETATTR4args {
    GETATTR4args { attr_request: wanted.to_bitmap() }
}

/// The answer to [`getattr_args`]. What a server does not have is left out.
///
/// # Errors
/// An attribute is malformed or was not asked for.
pub fn values_of(reply: &GETATTR4resok) -> Result<Values, Malformed> {
    attrs::decode(&reply.obj_attributes)
}
