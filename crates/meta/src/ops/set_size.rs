//! What a write does to a file's attributes: the size grows, the times change (LAYOUTCOMMIT, RFC 8881 §18.42).

use super::Plan;
use crate::Changed;
use crate::permission::without_set_ids;
use crate::schema::{Reach, SizeDelta, TailDelta, Whole};
use crate::tx::Tx;
use types::{FileId, FileKind, Status, Timestamp, limits};

/// Iods hold bytes up to `end` of which no writer has told: as a write that is not durable. Nothing is changed where the
/// file reaches so far already.
///
/// The batch conflicts with every other change of size and times. So a report of the writer that comes first, and a time
/// that is set after the report, stay.
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

/// The objects are on their disks as long as `known` says.
pub(crate) fn whole(tx: &mut Tx<'_>, id: FileId, known: Whole) -> Plan<()> {
    tx.rely_on(id)?;
    // A sync must not fail for want of space for this.
    tx.frees();
    tx.not_durable();
    let tail = tx.tail(id)?;
    if known.from <= tail.whole && tail.whole < known.end.min(tail.size) {
        tx.change_tail(id, TailDelta { whole: Some(known), ..TailDelta::default() });
    }
    super::known(())
}

/// The file was written as far as `to` says, at `mtime` if the writer says so; `stable` if the bytes are on the disks of iods. It
/// never shrinks.
///
/// Whoever wrote had the file open or a layout of it, so nothing is checked; but like any write by somebody other than
/// the superuser it takes the set-user-id and set-group-id bits.
pub(crate) fn plan(tx: &mut Tx<'_>, id: FileId, to: Reach, mtime: Option<Timestamp>, stable: bool) -> Plan<Changed> {
    let Reach { end, holes, whole } = to;
    // A record changes in place. The end of a file waits for it, and so do those who look at the file.
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
