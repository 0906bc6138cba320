//! The effect of a write on the attributes of a file: the size grows, and the times change (LAYOUTCOMMIT, RFC 8881
//! §18.42).

use super::Plan;
use crate::Changed;
use crate::permission::without_set_ids;
use crate::schema::{Reach, SizeDelta, TailDelta, Whole};
use crate::tx::Tx;
use types::{FileId, FileKind, Status, Timestamp, limits};

/// Grows the file to `end`, for bytes that iods hold and no writer has reported; as for a write that is not durable.
/// Changes nothing if the file already reaches to `end`.
///
/// The batch conflicts with every other change of size and times. So a report of the writer that comes first stays, and
/// so does a time that is set after the report.
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

/// Records that the objects are as long on their disks as `known` says.
pub(crate) fn whole(tx: &mut Tx<'_>, id: FileId, known: Whole) -> Plan<()> {
    tx.rely_on(id)?;
    // A sync must not fail because there is no space for this record.
    tx.frees();
    tx.not_durable();
    let tail = tx.tail(id)?;
    if known.from <= tail.whole && tail.whole < known.end.min(tail.size) {
        tx.change_tail(id, TailDelta { whole: Some(known), ..TailDelta::default() });
    }
    super::known(())
}

/// Records that the file was written up to `to`, at `mtime` if the writer reports the time. `stable` says that the
/// bytes are on the disks of iods. The size never shrinks.
///
/// The writer had the file open or held a layout, so no permission is checked. As any write by a user other than the
/// superuser, it clears the set-user-id and set-group-id bits.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, to: Reach, mtime: Option<Timestamp>, stable: bool) -> Plan<Changed> {
    let Reach { end, holes, whole } = to;
    // A store with little free space accepts this batch: it replaces a record and adds none, and the removal of the file
    // and clients that read its attributes wait for it.
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
