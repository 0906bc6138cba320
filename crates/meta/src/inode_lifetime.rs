//! The lifetime of inodes: how operations create inodes, and what happens when an inode loses its last name.

use crate::engine::{Expect, Value, Walk};
use crate::ops::reap;
use crate::permission::{S_ISGID, mode_in};
use crate::schema::{self, Body, Core, Tail, XattrTally};
use crate::tx::{Settled, Tx};
use crate::{Ending, Replaced};
use types::{Cred, FileId, FileKind, SetAttrs, SetTime, Status, Timestamp, limits};

/// Returns the time that a SETATTR argument requests: the current time, or the time in the argument.
pub(crate) fn time(set: SetTime, now: Timestamp) -> Timestamp {
    match set {
        SetTime::Now => now,
        SetTime::To(time) => time,
    }
}

/// Returns a new inode for the directory `dir`. Owner, group and mode follow the rules of Linux; the attributes in
/// `set` override them as far as the rights of `cred` permit.
pub(crate) fn begin(
    cred: &Cred,
    now: Timestamp,
    dir: &Core,
    set: &SetAttrs,
    body: Body,
) -> Result<(Core, Tail), Status> {
    let inherits = dir.mode & S_ISGID != 0;
    let own_gid = if inherits { dir.gid } else { cred.gid };
    let (uid, gid) = (set.uid.unwrap_or(cred.uid), set.gid.unwrap_or(own_gid));
    if !cred.is_root() && (uid != cred.uid || (gid != own_gid && !cred.in_group(gid))) {
        return Err(Status::Perm);
    }
    let mut mode = set.mode.unwrap_or(0);
    if mode > 0o7777 {
        return Err(Status::Inval);
    }
    if matches!(body, Body::Directory { .. }) {
        if !cred.is_root() && !cred.in_group(gid) {
            mode &= !S_ISGID;
        }
        mode |= if inherits { S_ISGID } else { 0 };
    } else {
        mode = mode_in(dir, mode, cred);
    }
    let size = match &body {
        Body::Regular { .. } => set.size.unwrap_or(0),
        Body::Symlink { target } => target.len() as u64,
        _ => 0,
    };
    if size > limits::FILE_SIZE_MAX {
        return Err(Status::FBig);
    }
    let mut tail = Tail::new(now, size);
    tail.atime = set.atime.map_or(now, |set| time(set, now));
    tail.mtime = set.mtime.map_or(now, |set| time(set, now));
    Ok((Core { mode, uid, gid, names: 1, btime: now, xattrs: XattrTally::default(), body }, tail))
}

/// Returns whether a directory has no entries.
pub(crate) fn is_empty(tx: &Tx<'_>, dir: FileId) -> Result<bool, Status> {
    let mut empty = true;
    tx.scan(&schema::dentry_key(dir, 0), &schema::dentries_end(dir), 1, &mut |_, _| {
        empty = false;
        Ok(Walk::Stop)
    })?;
    Ok(empty)
}

/// An inode that loses a name in the current batch. [`Self::settle`] computes the attributes of the inode once the
/// batch is committed.
pub(crate) struct Lost {
    id: FileId,
    core: Core,
    tail: LostTail,
    orphan: bool,
    end: Option<Ending>,
}

enum LostTail {
    Gone(Tail),
    Merge(usize),
}

impl Lost {
    /// Returns whether the file that the batch deletes had objects, which then remain to be deleted. Returns `None` if
    /// the batch does not delete the file, or if the file is not a regular file.
    pub(crate) fn end(&self) -> Option<Ending> {
        self.end
    }

    /// Returns the attributes of the file after the batch.
    pub(crate) fn settle(self, settled: &Settled) -> Result<Replaced, Status> {
        let mut attrs = match self.tail {
            LostTail::Gone(tail) => self.core.attrs(self.id, &tail),
            LostTail::Merge(index) => settled.attrs(self.id, (&self.core, &self.core), index)?.1,
        };
        if attrs.kind == FileKind::Directory {
            attrs.nlink = 0;
        }
        Ok(Replaced { attrs, orphan: self.orphan })
    }
}

/// Removes one name from the link count of an inode. The batch already has a precondition on `core`, the core record of
/// the inode. The caller deletes the directory entry.
///
/// A directory has only one name, so it is deleted; it must be empty at the commit, otherwise the error is `NotEmpty`.
/// A regular file that loses its last name becomes an orphan. If `ends` returns true because no client has the file
/// open, the file is deleted instead. Inodes of other kinds cannot be open and are deleted.
pub(crate) fn lose_name(tx: &mut Tx<'_>, id: FileId, core: &Core, ends: impl FnOnce() -> bool) -> Result<Lost, Status> {
    let mut left = core.clone();
    left.names = core.names.checked_sub(1).ok_or(Status::Corrupt)?;
    let kind = core.kind();
    if kind == FileKind::Directory {
        if !is_empty(tx, id)? {
            return Err(Status::NotEmpty);
        }
        tx.expect(Expect::NoneIn(schema::dentry_key(id, 0), schema::dentries_end(id)));
    }
    let last = left.names == 0 && kind == FileKind::Regular;
    let ended = last && ends();
    let orphan = last && !ended;
    let mut end = None;
    let tail = if left.names > 0 || orphan {
        tx.put_core(id, &left);
        LostTail::Merge(tx.touch(id))
    } else {
        let tail = tx.rely_on_tail(id)?;
        if ended {
            let doomed = reap::end(tx, id, core)?;
            end = Some(if doomed.is_some() { Ending::Doomed } else { Ending::Whole });
        } else {
            tx.delete_inode(id, core)?;
        }
        LostTail::Gone(tail)
    };
    if orphan {
        tx.put(schema::orphan_key(id), Value::new());
    }
    Ok(Lost { id, core: left, tail, orphan, end })
}
