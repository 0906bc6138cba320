//! Creation of directories (CREATE of NF4DIR, RFC 8881 §18.4). A new directory copies the policy of its parent.

use super::Plan;
use crate::Made;
use crate::engine::Walk;
use crate::inode_lifetime::begin;
use crate::permission::{may_change_names, may_search};
use crate::schema::{self, Body, Dentry};
use crate::tx::Tx;
use bytes::Bytes;
use types::{FileId, FileKind, SetAttrs, Status, limits};

/// Prefix of the names of the extended attributes that hold policy settings. A new directory copies these attributes
/// from its parent.
pub(crate) const POLICY: &[u8] = b"weir.";

/// Creates the directory `id` under `name` in `dir`.
pub(crate) fn plan(tx: &mut Tx<'_>, dir: FileId, name: &[u8], set: &SetAttrs, id: FileId) -> Plan<Made> {
    types::name::check(name)?;
    let parent = tx.rely_on_dir(dir)?;
    may_search(tx.cred, &parent)?;
    let place = tx.place(dir, name)?;
    if place.found.is_some() {
        return Err(Status::Exist);
    }
    may_change_names(tx.cred, &parent)?;
    let (mut core, tail) = begin(tx.cred, tx.now, &parent, set, Body::Directory { parent: dir })?;
    if parent.xattrs.count > 0 {
        let mut policy = Vec::new();
        let (from, to) = (schema::xattr_key(dir, POLICY), schema::xattrs_end(dir));
        tx.scan(&from, &to, limits::XATTRS_MAX, &mut |key, value| {
            let name = schema::xattr_name(key);
            if !name.starts_with(POLICY) {
                return Ok(Walk::Stop);
            }
            policy.push((schema::xattr_key(id, name), Bytes::copy_from_slice(value)));
            core.xattrs.count += 1;
            core.xattrs.bytes += (name.len() + value.len()) as u32;
            Ok(Walk::On)
        })?;
        policy.into_iter().for_each(|(key, value)| tx.put(key, value));
    }
    tx.put_inode(id, &core, &tail);
    let entry = Dentry { child: id, kind: FileKind::Directory, name: Bytes::copy_from_slice(name) };
    tx.add_name(dir, &place, &entry)?;
    let touch = tx.change_dir(dir, 1, 1);
    let attrs = core.attrs(id, &tx.told(tail));
    Ok(Box::new(move |settled| Ok(Made { attrs, dir: settled.change(touch)? })))
}
