//! The policy of a directory: its extended attributes with the policy prefix. A new directory copies these attributes
//! from its parent.

use crate::engine::Walk;
use crate::schema;
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status, limits};

/// Returns the names and values of the extended attributes of `id` that begin with `prefix`. Permissions are not
/// checked.
pub(crate) fn read(tx: &Tx<'_>, id: FileId, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, Status> {
    let core = tx.core(id)?;
    let mut found = Vec::new();
    if core.xattrs.count > 0 {
        let from = schema::xattr_key(id, prefix);
        tx.scan(&from, &schema::xattrs_end(id), limits::XATTRS_MAX, &mut |key, value| {
            let name = schema::xattr_name(key);
            if !name.starts_with(prefix) {
                return Ok(Walk::Stop);
            }
            found.push((Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)));
            Ok(Walk::On)
        })?;
    }
    Ok(found)
}
