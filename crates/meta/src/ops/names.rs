//! A search from inode numbers to names, used for messages, repairs, and other work that need not be fast.

use crate::engine::Walk;
use crate::schema::{self, Dentry, Record};
use crate::tx::Tx;
use crate::{Name, Names};
use bytes::Bytes;
use std::collections::HashSet;
use types::{FileId, Status};

/// Looks at up to `max` names after `after` (directory and cookie) and returns those of `ids`. With `within`, only the
/// names of this directory.
///
/// Damaged names are skipped: callers want the names that can still be found.
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
    // A page without a valid key ends the search.
    names.next = (!ended && last != start).then_some(last);
    Ok(names)
}
