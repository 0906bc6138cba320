//! GETXATTR: the value of an extended attribute (RFC 8276 §8.4.1).

use crate::permission::may_read;
use crate::schema;
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, FileKind, Status, limits};

/// Returns the value of an extended attribute; `NoXattr` if the file has no such attribute. `name` has no `user.`
/// prefix.
pub(crate) fn read(tx: &Tx<'_>, id: FileId, name: &[u8]) -> Result<Bytes, Status> {
    let core = tx.core(id)?;
    if !matches!(core.kind(), FileKind::Regular | FileKind::Directory) {
        // Only regular files and directories can have `user.` attributes, as on Linux.
        return Err(Status::NoXattr);
    }
    may_read(tx.cred, &core)?;
    if name.is_empty() || name.len() > limits::XATTR_NAME_MAX {
        return Err(Status::NoXattr);
    }
    tx.get(&schema::xattr_key(id, name))?.ok_or(Status::NoXattr)
}
