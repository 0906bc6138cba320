//! REMOVEXATTR: removes an extended attribute (RFC 8276 §8.4.4).

use super::Plan;
use crate::ChangeInfo;
use crate::permission::may_change_xattrs;
use crate::schema;
use crate::tx::{Touch, Tx};
use types::{FileId, Status, limits};

/// Removes the extended attribute `name` (without the `user.` prefix); `NoXattr` if the file has no such attribute.
/// Returns the change attribute of the file before and after.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, name: &[u8]) -> Plan<ChangeInfo> {
    let mut core = tx.rely_on(id)?;
    may_change_xattrs(tx.cred, &core)?;
    if name.is_empty() || name.len() > limits::XATTR_NAME_MAX {
        return Err(Status::NoXattr);
    }
    let key = schema::xattr_key(id, name);
    let old = tx.get(&key)?.ok_or(Status::NoXattr)?;
    let tally = &mut core.xattrs;
    tally.count = tally.count.saturating_sub(1);
    tally.bytes = tally.bytes.saturating_sub((name.len() + old.len()) as u32);
    tally.changes = tally.changes.wrapping_add(1);
    tx.put_core(id, &core);
    tx.delete(key);
    let touch = Touch::Merge(tx.touch(id));
    Ok(Box::new(move |settled| settled.change(touch)))
}
