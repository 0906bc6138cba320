//! Gives a file the record of where its bytes live.

use super::Plan;
use crate::schema::Body;
use crate::tx::Tx;
use crate::{FileInfo, Layout};
use types::{FileId, Status, limits};

/// Sets the layout of a regular file that has none, or one for later, else leaves it; answers with the one it has then.
///
/// No attribute changes: a layout is not something that the file's users see. Those in the answer are as they were
/// when the operation began.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, layout: &Layout) -> Plan<FileInfo> {
    if layout.body.len() > limits::LAYOUT_RECORD_MAX {
        return Err(Status::TooBig);
    }
    let mut core = tx.rely_on(id)?;
    let attrs = core.attrs(id, &tx.tail(id)?);
    let Body::Regular { generation, layout: present, .. } = &mut core.body else { return Err(Status::WrongType) };
    let generation = *generation;
    if let Some(present) = present.as_ref().filter(|present| present.is_final()) {
        return super::known(FileInfo { attrs, generation, layout: Some(present.clone()) });
    }
    *present = Some(layout.clone());
    tx.put_core(id, &core);
    super::known(FileInfo { attrs, generation, layout: Some(layout.clone()) })
}
