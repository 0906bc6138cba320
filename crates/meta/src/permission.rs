//! Permission checks of Linux on mode, owner, group and supplementary groups.

use crate::schema::Core;
use types::{Cred, FileKind, Status};

/// Set-user-id bit.
pub(crate) const S_ISUID: u32 = 0o4000;
/// Set-group-id bit.
pub(crate) const S_ISGID: u32 = 0o2000;
/// Sticky bit.
pub(crate) const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;

/// What the permission bits of a file allow a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Read the content, list the directory.
    pub read: bool,
    /// Change the content, change the names in the directory.
    pub write: bool,
    /// Run the file, look names up in the directory.
    pub execute: bool,
}

/// Returns what `cred` may do with the file.
pub(crate) fn rights(cred: &Cred, file: &Core) -> Rights {
    if cred.is_root() {
        let execute = file.kind() == FileKind::Directory || file.mode & 0o111 != 0;
        return Rights { read: true, write: true, execute };
    }
    // The first class that matches decides, even when a later class would allow more.
    let class = if cred.uid == file.uid {
        file.mode >> 6
    } else if cred.in_group(file.gid) {
        file.mode >> 3
    } else {
        file.mode
    };
    Rights { read: class & 4 != 0, write: class & 2 != 0, execute: class & 1 != 0 }
}

fn need(allowed: bool) -> Result<(), Status> {
    if allowed { Ok(()) } else { Err(Status::Access) }
}

/// Returns `Access` unless `cred` may read the content.
pub(crate) fn may_read(cred: &Cred, file: &Core) -> Result<(), Status> {
    need(rights(cred, file).read)
}

/// Returns `Access` unless `cred` may change the content.
pub(crate) fn may_write(cred: &Cred, file: &Core) -> Result<(), Status> {
    need(rights(cred, file).write)
}

/// Returns `Access` unless `cred` may look names up in the directory.
pub(crate) fn may_search(cred: &Cred, dir: &Core) -> Result<(), Status> {
    need(rights(cred, dir).execute)
}

/// Returns `Access` unless `cred` may add and remove names in the directory.
pub(crate) fn may_change_names(cred: &Cred, dir: &Core) -> Result<(), Status> {
    let rights = rights(cred, dir);
    need(rights.write && rights.execute)
}

/// Returns whether `cred` counts as the owner of the file.
pub(crate) fn owns(cred: &Cred, file: &Core) -> bool {
    cred.is_root() || cred.uid == file.uid
}

/// Returns `Perm` if the sticky bit of `dir` keeps `cred` from removing the name of `file`.
pub(crate) fn may_take_away(cred: &Cred, dir: &Core, file: &Core) -> Result<(), Status> {
    let sticky = dir.mode & S_ISVTX != 0;
    if sticky && !owns(cred, dir) && !owns(cred, file) { Err(Status::Perm) } else { Ok(()) }
}

/// Returns `mode` without set-user-id, as after a change of owner or a write. Set-group-id is cleared too if the group
/// may execute (so the bit has its usual meaning) or if the caller is not in the group.
pub(crate) fn without_set_ids(mode: u32, gid: u32, cred: &Cred) -> u32 {
    let mode = mode & !S_ISUID;
    let outsider = !cred.is_root() && !cred.in_group(gid);
    if mode & S_IXGRP != 0 || outsider { mode & !S_ISGID } else { mode }
}

/// Returns the mode of a new non-directory in `dir`. In a set-group-id directory, callers outside of its group cannot
/// create an executable set-group-id file.
pub(crate) fn mode_in(dir: &Core, mode: u32, cred: &Cred) -> u32 {
    let both = S_ISGID | S_IXGRP;
    let outsider = !cred.is_root() && !cred.in_group(dir.gid);
    if mode & both == both && dir.mode & S_ISGID != 0 && outsider { mode & !S_ISGID } else { mode }
}

/// Returns `Perm` unless files of this kind have extended attributes and `cred` may change them, and `Access` if the
/// mode forbids it.
pub(crate) fn may_change_xattrs(cred: &Cred, file: &Core) -> Result<(), Status> {
    let sticky_dir = match file.kind() {
        FileKind::Regular => false,
        FileKind::Directory => file.mode & S_ISVTX != 0,
        _ => return Err(Status::Perm),
    };
    if sticky_dir && !owns(cred, file) {
        return Err(Status::Perm);
    }
    may_write(cred, file)
}
