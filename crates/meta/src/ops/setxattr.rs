//! SETXATTR: sets an extended attribute (RFC 8276 §8.4.2, xattr(7)).

use super::Plan;
use crate::permission::may_change_xattrs;
use crate::schema;
use crate::tx::{Touch, Tx};
use crate::{ChangeInfo, SetXattr};
use bytes::Bytes;
use types::{FileId, Status, limits};

/// Sets the extended attribute `name` (without the `user.` prefix) to `value`. Returns the change attribute of the file
/// before and after.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, name: &[u8], value: &[u8], how: SetXattr) -> Plan<ChangeInfo> {
    if name.is_empty() || name.contains(&0) {
        return Err(Status::Inval);
    }
    if name.len() > limits::XATTR_NAME_MAX {
        return Err(Status::NameTooLong);
    }
    if value.len() > limits::XATTR_VALUE_MAX {
        return Err(Status::XattrTooBig);
    }
    let mut core = tx.rely_on(id)?;
    may_change_xattrs(tx.cred, &core)?;
    let key = schema::xattr_key(id, name);
    let present = tx.get(&key)?;
    match (how, &present) {
        (SetXattr::Create, Some(_)) => return Err(Status::Exist),
        (SetXattr::Replace, None) => return Err(Status::NoXattr),
        _ => {}
    }
    let tally = &mut core.xattrs;
    match &present {
        Some(old) => tally.bytes = tally.bytes.saturating_sub(old.len() as u32),
        None => {
            tally.count += 1;
            tally.bytes += name.len() as u32;
        }
    }
    tally.bytes += value.len() as u32;
    if tally.count as usize > limits::XATTRS_MAX || tally.bytes as usize > limits::XATTRS_BYTES_MAX {
        return Err(Status::NoSpc);
    }
    // Every change of extended attributes also changes the core record of the file, on which the batch has a
    // precondition. So this batch conflicts with concurrent operations that change or copy the attributes.
    tally.changes = tally.changes.wrapping_add(1);
    tx.put_core(id, &core);
    tx.put(key, Bytes::copy_from_slice(value));
    let touch = Touch::Merge(tx.touch(id));
    Ok(Box::new(move |settled| settled.change(touch)))
}
