//! Writes to inline files: small files whose bytes are stored with the metadata.

use super::Plan;
use crate::permission::without_set_ids;
use crate::schema::{self, Body, SizeDelta, TailDelta};
use crate::tx::Tx;
use crate::{Changed, engine::Expect};
use bytes::{Bytes, BytesMut};
use types::{FileId, Status};

/// Writes `data` at `offset` of an inline file. Returns `None` if the file has objects or would become longer than
/// `most` bytes.
///
/// Permissions are not checked, because the writer has the file open. The write clears the set-user-id and set-group-id
/// bits unless the writer is the superuser.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, offset: u64, data: &[u8], most: u64) -> Plan<Option<Changed>> {
    let before = tx.rely_on(id)?;
    let Body::Regular { layout: Some(layout), .. } = &before.body else { return super::known(None) };
    let Some(end) = offset.checked_add(data.len() as u64).filter(|end| *end <= most) else { return super::known(None) };
    if !layout.is_inline() || tx.tail(id)?.size > most {
        return super::known(None);
    }
    let key = schema::bytes_key(id);
    let old = tx.get(&key)?;
    tx.expect(match &old {
        Some(old) => Expect::Reads(key.clone(), old.clone()),
        None => Expect::Absent(key.clone()),
    });
    tx.put(key, joined(old.as_deref().unwrap_or_default(), offset, data)?);
    let mut after = before.clone();
    if !tx.cred.is_root() {
        after.mode = without_set_ids(before.mode, before.gid, tx.cred);
    }
    if after != before {
        tx.put_core(id, &after);
    }
    let now = Some(tx.now);
    let delta = TailDelta { size: SizeDelta::Grow(end), mtime: now, ctime: now, ..TailDelta::default() };
    let index = tx.change_tail(id, delta);
    Ok(Box::new(move |settled| {
        let (before, after) = settled.attrs(id, (&before, &after), index)?;
        Ok(Some(Changed { before, after }))
    }))
}

/// Returns a copy of `old` with `data` at `offset`. A gap between `old` and `data` is filled with zeros.
fn joined(old: &[u8], offset: u64, data: &[u8]) -> Result<Bytes, Status> {
    let offset = usize::try_from(offset).map_err(|_| Status::FBig)?;
    let mut all = BytesMut::from(old);
    let end = offset + data.len();
    if all.len() < end {
        all.resize(end, 0);
    }
    all[offset..end].copy_from_slice(data);
    Ok(all.freeze())
}
