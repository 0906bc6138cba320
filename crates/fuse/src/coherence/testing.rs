//! Attributes for the tests of the coherence module.

use types::{Attrs, FileId, FileKind, Timestamp};

/// Returns attributes of a regular file with the given change attribute and size.
pub(super) fn attrs(change: u64, size: u64) -> Attrs {
    let time = Timestamp { secs: change as i64, nanos: 0 };
    let (kind, mode, nlink, used, rdev) = (FileKind::Regular, 0o644, 1, 0, (0, 0));
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let (id, uid, gid, holes) = (FileId(7), 0, 0, false);
    Attrs { id, kind, mode, nlink, uid, gid, size, used, holes, atime, mtime, ctime, btime, change, rdev }
}
