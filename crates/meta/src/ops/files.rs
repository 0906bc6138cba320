//! The list of regular files in the order of inode numbers, each with the state that a check compares with the file's
//! objects.

use crate::engine::Walk;
use crate::schema::{self, Body, Core, Record, Tail};
use crate::tx::Tx;
use crate::{FileState, Layout};
use types::{FileId, Generation, Status};

/// Returns the regular files among the `max` inodes that follow the inode number `after`. Also returns the inode number
/// after which the next call continues; `None` at the end. Skips damaged inodes.
pub(crate) fn read(tx: &Tx<'_>, after: FileId, max: usize) -> Result<(Vec<FileState>, Option<FileId>), Status> {
    let mut files = Vec::new();
    let Some(next) = after.0.checked_add(1) else { return Ok((files, None)) };
    let from = schema::core_key(FileId(next));
    let mut core: Option<(FileId, Core)> = None;
    let mut last = after;
    // Each inode has two records (core record and tail record), so read twice as many records as inodes.
    let ended = tx.survey(&from, &schema::past_all(&from), max.max(1) * 2, &mut |key, value| {
        let Ok(id) = schema::id_of(key.get(..9).unwrap_or_default()) else { return Walk::On };
        let value = value.unwrap_or_default();
        match key.get(9) {
            Some(0) => core = Core::look(value).map(|core| (id, core)),
            Some(1) => {
                last = id;
                let (Some((of, core)), Some(tail)) = (core.take(), Tail::look(value)) else { return Walk::On };
                if let (true, Body::Regular { generation, layout, .. }) = (of == id, core.body) {
                    files.push(state(id, tx.told(tail), generation, layout));
                }
            }
            _ => {}
        }
        Walk::On
    })?;
    // If this call has read no tail record (size, times), because the tail records of these inodes are missing, skip
    // the inode number `next`. Otherwise the next call would read the same records again.
    let last = if last == after { FileId(next) } else { last };
    Ok((files, (!ended).then_some(last)))
}

/// Returns the state of a regular file that `weir fsck` compares with the file's objects. `None` if the file does not
/// exist, is not a regular file, or is damaged.
pub(crate) fn one(tx: &Tx<'_>, id: FileId) -> Result<Option<FileState>, Status> {
    let core = match tx.core(id) {
        Ok(core) => core,
        Err(Status::Stale | Status::Corrupt) => return Ok(None),
        Err(e) => return Err(e),
    };
    let Body::Regular { generation, layout, .. } = core.body else { return Ok(None) };
    match tx.tail(id) {
        Ok(tail) => Ok(Some(state(id, tail, generation, layout))),
        Err(Status::Corrupt) => Ok(None),
        Err(e) => Err(e),
    }
}

fn state(id: FileId, tail: Tail, generation: Generation, layout: Option<Layout>) -> FileState {
    let Tail { size, written, whole, change, .. } = tail;
    FileState { id, size, written, whole, change, generation, layout }
}
