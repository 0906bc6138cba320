//! Gives a file the record of where its bytes live, and takes them out of its metadata.

use super::Plan;
use crate::engine::Expect;
use crate::schema::{self, Body};
use crate::tx::Tx;
use crate::{FileInfo, Layout};
use bytes::Bytes;
use types::{FileId, Status, limits};

/// Sets the layout of a regular file that has no objects, else leaves it; answers with the one it has then.
///
/// If bytes are kept with its metadata they are on their way from then on: the answer has them, and they count until
/// [`arrived`]. No attribute changes: a layout is not something that the file's users see. Those in the answer are as they
/// were when the operation began.
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

/// The bytes that were on their way are durable where the layout says.
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
