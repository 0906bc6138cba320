//! READLINK: the target of a symbolic link (RFC 8881 §18.24).

use crate::schema::Body;
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status};

/// Returns the target of a symbolic link; `WrongType` for other kinds of files. The caller needs no permission on the
/// link.
pub(crate) fn read(tx: &Tx<'_>, id: FileId) -> Result<Bytes, Status> {
    match tx.core(id)?.body {
        Body::Symlink { target } => Ok(target),
        _ => Err(Status::WrongType),
    }
}
