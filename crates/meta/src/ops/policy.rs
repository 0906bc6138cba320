//! The effective policy of a directory: its own extended attributes with a prefix, which it inherited when it was
//! created.

use crate::engine::Walk;
use crate::schema;
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, Status, limits};

/// Returns names and values of the extended attributes of `id` whose names begin with `prefix`; no permission is
/// needed.
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
