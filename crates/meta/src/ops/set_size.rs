//! The effect of a write on the attributes of a file: the size grows and the times change (LAYOUTCOMMIT, RFC 8881
//! §18.42).

use super::Plan;
use crate::Changed;
use crate::permission::without_set_ids;
use crate::schema::{SizeDelta, TailDelta, Whole, WriteEnd};
use crate::tx::Tx;
use types::{FileId, FileKind, Status, Timestamp, limits};

/// Grows the file to `end`, because the iods have bytes up to this offset that no LAYOUTCOMMIT has reported to the mgr.
/// On completion, the change is visible but not durable. Changes nothing if the file size is already at least `end`.
///
/// The batch has preconditions on size and times. So the batch never overwrites the size or the times that a
/// concurrent LAYOUTCOMMIT or SETATTR sets.
pub(crate) fn learn(tx: &mut Tx<'_>, id: FileId, end: u64) -> Plan<Changed> {
    let core = tx.rely_on(id)?;
    let tail = tx.rely_on_tail(id)?;
    if end <= tail.size {
        let attrs = core.attrs(id, &tail);
        return super::known(Changed { before: attrs, after: attrs });
    }
    tx.not_durable();
    plan(tx, id, end.into(), None, false)
}

/// Raises [`crate::FileInfo::whole`], the file length for which every object durably has the required length. `known`
/// says which object lengths have become durable.
pub(crate) fn whole(tx: &mut Tx<'_>, id: FileId, known: Whole) -> Plan<()> {
    tx.rely_on(id)?;
    // A nearly full store accepts this batch, because otherwise an fsync could fail for lack of space for this record.
    tx.frees();
    tx.not_durable();
    let tail = tx.tail(id)?;
    if known.from <= tail.whole && tail.whole < known.end.min(tail.size) {
        tx.change_tail(id, TailDelta { whole: Some(known), ..TailDelta::default() });
    }
    super::known(())
}

/// Records that a client wrote the file up to `to`, at the time `mtime` if the client reports one. `stable` means that
/// the written bytes are durable on iods. The file size never shrinks.
///
/// Permissions are not checked, because the writer has the file open or has a layout. The write clears the set-user-id
/// and set-group-id bits unless the writer is the superuser.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, to: WriteEnd, mtime: Option<Timestamp>, stable: bool) -> Plan<Changed> {
    let WriteEnd { end, holes, whole } = to;
    // A nearly full store accepts this batch. The batch adds no record, and the mgr may have to record the new size
    // before it can remove the file or reply to a GETATTR.
    tx.frees();
    let before = tx.rely_on(id)?;
    match before.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Status::IsDir),
        _ => return Err(Status::Inval),
    }
    if end > limits::FILE_SIZE_MAX {
        return Err(Status::FBig);
    }
    let mut after = before.clone();
    if !tx.cred.is_root() {
        after.mode = without_set_ids(before.mode, before.gid, tx.cred);
    }
    if after != before {
        tx.put_core(id, &after);
    }
    let mtime = mtime.unwrap_or(tx.now);
    let size = if stable { SizeDelta::Wrote(end) } else { SizeDelta::Grow(end) };
    let whole = whole.filter(|_| stable);
    let delta = TailDelta { size, holes, whole, mtime: Some(mtime), ctime: Some(tx.now), ..TailDelta::default() };
    let index = tx.change_tail(id, delta);
    Ok(Box::new(move |settled| {
        let (before, after) = settled.attrs(id, (&before, &after), index)?;
        Ok(Changed { before, after })
    }))
}
