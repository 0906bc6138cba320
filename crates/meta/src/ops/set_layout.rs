//! The layout of a file: sets the layout, and removes the inline bytes once they are stored in objects.

use super::Plan;
use crate::engine::Expect;
use crate::schema::{self, Body};
use crate::tx::Tx;
use crate::{FileInfo, Layout};
use bytes::Bytes;
use types::{FileId, Status, limits};

/// Sets the layout of a regular file, unless the file already has objects or its inline bytes are being moved to
/// objects. Returns the layout that the file has after this operation.
///
/// If the file is inline, the result contains the inline bytes, and the caller writes them to the objects. The inline
/// bytes remain the valid copy until [`arrived`] removes them. The operation changes no attribute, because programs do
/// not see layouts. The result contains the attributes of the file before the operation.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, layout: &Layout) -> Plan<(FileInfo, Option<Bytes>)> {
    if layout.body.len() > limits::LAYOUT_RECORD_MAX {
        return Err(Status::TooBig);
    }
    let mut core = tx.rely_on(id)?;
    let tail = tx.tail(id)?;
    let (attrs, whole, written) = (core.attrs(id, &tail), tail.whole, tail.written);
    let Body::Regular { generation, layout: present, .. } = &mut core.body else { return Err(Status::WrongType) };
    let generation = *generation;
    let info = |layout: &Layout| FileInfo { attrs, whole, written, generation, layout: Some(layout.clone()) };
    if let Some(present) = present.as_ref().filter(|present| present.is_final()) {
        return super::known((info(present), None));
    }
    let key = schema::bytes_key(id);
    let bytes = tx.get(&key)?;
    if let Some(present) = present.as_ref().filter(|present| present.is_moving()) {
        return super::known((info(present), bytes));
    }
    let next = match bytes.is_some() {
        true => layout.moving(),
        false => layout.clone(),
    };
    *present = Some(next.clone());
    tx.expect(match &bytes {
        Some(bytes) => Expect::Reads(key, bytes.clone()),
        None => Expect::Absent(key),
    });
    tx.put_core(id, &core);
    super::known((info(&next), bytes))
}

/// Removes the inline bytes of a file. The caller has made these bytes durable in the file's objects.
pub(crate) fn arrived(tx: &mut Tx<'_>, id: FileId) -> Plan<FileInfo> {
    let mut core = tx.rely_on(id)?;
    let tail = tx.tail(id)?;
    let (attrs, whole, written) = (core.attrs(id, &tail), tail.whole, tail.written);
    let Body::Regular { generation, layout: Some(present), .. } = &mut core.body else { return Err(Status::WrongType) };
    let generation = *generation;
    if present.is_moving() {
        *present = present.decided().transpose().map_err(|_| Status::Corrupt)?.ok_or(Status::Corrupt)?;
        let info = FileInfo { attrs, whole, written, generation, layout: Some(present.clone()) };
        tx.frees();
        tx.delete(schema::bytes_key(id));
        tx.put_core(id, &core);
        return super::known(info);
    }
    super::known(FileInfo { attrs, whole, written, generation, layout: Some(present.clone()) })
}
