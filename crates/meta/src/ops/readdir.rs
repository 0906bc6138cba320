//! READDIR: the entries of a directory in the order of their cookies (RFC 8881 §18.23).

use crate::ReadDir;
use crate::engine::Walk;
use crate::permission::may_read;
use crate::schema::{self, Dentry, Record};
use crate::tx::Tx;
use bytes::Bytes;
use types::{DirEntry, FileId, FileKind, Status, limits};

/// Returns up to `max` entries of a directory (at most [`limits::READDIR_MAX`]) that follow the cookie `after`; 0 means
/// the start of the directory.
pub(crate) fn read(tx: &Tx<'_>, dir: FileId, after: u64, max: usize) -> Result<ReadDir, Status> {
    let core = tx.core(dir)?;
    if core.kind() != FileKind::Directory {
        return Err(Status::NotDir);
    }
    may_read(tx.cred, &core)?;
    let max = max.min(limits::READDIR_MAX);
    if max == 0 {
        return Err(Status::TooSmall);
    }
    let mut entries = Vec::new();
    let from = match after.checked_add(1) {
        Some(next) => schema::dentry_key(dir, next),
        None => schema::dentries_end(dir),
    };
    let eof = tx.scan(&from, &schema::dentries_end(dir), max, &mut |key, value| {
        let cookie = schema::cookie_of(key)?;
        let entry = Dentry::from_value(Bytes::copy_from_slice(value))?;
        let attrs = tx.attrs(entry.child).map_err(|s| if s == Status::Stale { Status::Corrupt } else { s })?;
        entries.push(DirEntry { name: entry.name, cookie, attrs });
        Ok(Walk::On)
    })?;
    Ok(ReadDir { entries, eof })
}
