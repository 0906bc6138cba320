//! LISTXATTRS: the names of the extended attributes of a file (RFC 8276 §8.4.3).

use crate::engine::Walk;
use crate::schema;
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status, limits};

/// Returns the names of all extended attributes of a file in key order, without the `user.` prefix. As on Linux, the
/// caller needs no permission on the file.
pub(crate) fn read(tx: &Tx<'_>, id: FileId) -> Result<Vec<Bytes>, Status> {
    let core = tx.core(id)?;
    let mut names = Vec::new();
    if core.xattrs.count > 0 {
        tx.scan(&schema::xattr_key(id, b""), &schema::xattrs_end(id), limits::XATTRS_MAX, &mut |key, _| {
            names.push(Bytes::copy_from_slice(schema::xattr_name(key)));
            Ok(Walk::On)
        })?;
    }
    Ok(names)
}
