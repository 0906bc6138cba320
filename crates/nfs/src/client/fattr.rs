//! The attribute sets that the client requests with GETATTR, and the decoder of the replies.

use crate::attrs::{self, FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY, FATTR4_WEIR_SETTLED, Mask};
use crate::values::Values;
use wire::nfs4::{GETATTR4args, GETATTR4resok};
use xdr::Malformed;

/// The attribute set with the queueing delay of requests on the mgr.
pub const LOAD: Mask = Mask::of(&[FATTR4_WEIR_QUEUE_DELAY]);
/// The attribute set with the policy of a file, and the queueing delay of requests on the mgr.
pub const POLICY: Mask = Mask::of(&[FATTR4_WEIR_POLICY, FATTR4_WEIR_QUEUE_DELAY]);
/// The attribute that works as a durability barrier: the server replies to a GETATTR of this attribute only after every
/// change to which it has already replied is durable.
pub const SETTLED: Mask = Mask::of(&[FATTR4_WEIR_SETTLED]);
/// All attributes of [`types::Attrs`], and the queueing delay of requests on the mgr.
pub const ATTRS: Mask = attrs::OBJECT.or(LOAD);
/// All attributes that the client requests when it opens a file.
pub const OPENING: Mask = ATTRS.or(POLICY);

/// Returns the arguments of a GETATTR that requests these attributes.
pub fn getattr_args(wanted: Mask) -> GETATTR4args {
    GETATTR4args { attr_request: wanted.to_bitmap() }
}

/// Decodes the reply to a GETATTR. Attributes that the server does not support are `None`.
///
/// # Errors
/// An attribute is malformed, or is unknown to this client.
pub fn values_of(reply: &GETATTR4resok) -> Result<Values, Malformed> {
    attrs::decode(&reply.obj_attributes)
}
