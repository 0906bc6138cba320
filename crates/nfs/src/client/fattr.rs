//! Attributes as the client asks for and reads them, by the same table as the server's.

use crate::attrs;
use types::Attrs;
use wire::nfs4::{GETATTR4args, GETATTR4resok};
use xdr::Malformed;

/// GETATTR of everything in [`Attrs`].
pub fn getattr_args() -> GETATTR4args {
    GETATTR4args { attr_request: attrs::OBJECT.to_bitmap() }
}

/// The answer to [`getattr_args`].
///
/// # Errors
/// An attribute is malformed, missing or was not asked for.
pub fn attrs_of(reply: &GETATTR4resok) -> Result<Attrs, Malformed> {
    attrs::decode(&reply.obj_attributes)?.attrs().ok_or(Malformed::Invalid("an attribute asked for is missing"))
}
