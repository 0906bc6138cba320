//! A search for the names of files with given inode numbers, which scans all directory entries. Repairs, messages and
//! other tasks that may be slow use this search.

use crate::engine::Walk;
use crate::schema::{self, Dentry, Record};
use crate::tx::Tx;
use crate::{Name, Names};
use bytes::Bytes;
use std::collections::HashSet;
use types::{FileId, Status};

/// Searches up to `max` directory entries after the position `after` (directory and cookie). Returns the entries that
/// refer to a file in `ids`. If `within` is given, returns only entries of this directory.
///
/// Skips damaged entries, because a partial result is still useful to the callers.
pub(crate) fn read(
    tx: &Tx<'_>,
    ids: &HashSet<FileId>,
    within: Option<FileId>,
    after: (FileId, u64),
    max: usize,
) -> Result<Names, Status> {
    let start = within.map_or(after, |dir| (dir, if after.0 == dir { after.1 } else { 0 }));
    let from = match start.1.checked_add(1) {
        Some(cookie) => schema::dentry_key(start.0, cookie),
        None => schema::dentries_end(start.0),
    };
    let to = within.map_or_else(|| schema::past_all(&from), schema::dentries_end);
    let mut names = Names { found: Vec::new(), next: None };
    let mut last = start;
    let ended = tx.survey(&from, &to, max, &mut |key, value| {
        let Ok(dir) = schema::id_of(key.get(..9).unwrap_or_default()) else { return Walk::On };
        let Ok(cookie) = schema::cookie_of(key) else { return Walk::On };
        last = (dir, cookie);
        if let Some(entry) = value.and_then(Dentry::look).filter(|entry| ids.contains(&entry.child)) {
            names.found.push(Name { dir, name: Bytes::copy_from_slice(&entry.name), child: entry.child });
        }
        Walk::On
    })?;
    // If this call has read no valid key, the position at which to continue is unknown, so the search ends.
    names.next = (!ended && last != start).then_some(last);
    Ok(names)
}
