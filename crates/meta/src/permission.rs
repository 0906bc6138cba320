//! Permission checks by mode, owner, group and supplementary groups, as on Linux.

use crate::schema::Core;
use types::{Cred, FileKind, Status};

pub(crate) const S_ISUID: u32 = 0o4000;
pub(crate) const S_ISGID: u32 = 0o2000;
pub(crate) const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;

/// The rights that the permission bits of a file give a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Whether the caller may read a file's content or list a directory.
    pub read: bool,
    /// Whether the caller may write a file's content, or add and remove entries of a directory.
    pub write: bool,
    /// Whether the caller may execute a file, or look up names in a directory.
    pub execute: bool,
}

/// Returns the rights of `cred` on a file.
pub(crate) fn rights(cred: &Cred, file: &Core) -> Rights {
    if cred.is_root() {
        let execute = file.kind() == FileKind::Directory || file.mode & 0o111 != 0;
        return Rights { read: true, write: true, execute };
    }
    // Linux checks only the first class (owner, group, other) to which the caller belongs, even if a later class has
    // more rights.
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

/// Returns the error `Access` unless `cred` may read the file's content or list the directory.
pub(crate) fn may_read(cred: &Cred, file: &Core) -> Result<(), Status> {
    need(rights(cred, file).read)
}

/// Returns the error `Access` unless `cred` may write the file's content.
pub(crate) fn may_write(cred: &Cred, file: &Core) -> Result<(), Status> {
    need(rights(cred, file).write)
}

/// Returns the error `Access` unless `cred` may look up names in the directory.
pub(crate) fn may_search(cred: &Cred, dir: &Core) -> Result<(), Status> {
    need(rights(cred, dir).execute)
}

/// Returns the error `Access` unless `cred` may add and remove entries of the directory.
pub(crate) fn may_change_names(cred: &Cred, dir: &Core) -> Result<(), Status> {
    let rights = rights(cred, dir);
    need(rights.write && rights.execute)
}

/// Returns whether `cred` is the owner of the file or the superuser.
pub(crate) fn owns(cred: &Cred, file: &Core) -> bool {
    cred.is_root() || cred.uid == file.uid
}

/// Returns the error `Perm` if the sticky bit of `dir` forbids `cred` to remove or rename the entry of `file`.
pub(crate) fn may_take_away(cred: &Cred, dir: &Core, file: &Core) -> Result<(), Status> {
    let sticky = dir.mode & S_ISVTX != 0;
    if sticky && !owns(cred, dir) && !owns(cred, file) { Err(Status::Perm) } else { Ok(()) }
}

/// Returns `mode` without the set-user-id bit, for a write or a change of owner. Also clears the set-group-id bit if
/// the group may execute the file or if the caller is not in the file's group.
pub(crate) fn without_set_ids(mode: u32, gid: u32, cred: &Cred) -> u32 {
    let mode = mode & !S_ISUID;
    let outsider = !cred.is_root() && !cred.in_group(gid);
    if mode & S_IXGRP != 0 || outsider { mode & !S_ISGID } else { mode }
}

/// Returns the mode of a new file that is not a directory. In a set-group-id directory, a caller outside of the
/// directory's group cannot create an executable file with the set-group-id bit.
pub(crate) fn mode_in(dir: &Core, mode: u32, cred: &Cred) -> u32 {
    let both = S_ISGID | S_IXGRP;
    let outsider = !cred.is_root() && !cred.in_group(dir.gid);
    if mode & both == both && dir.mode & S_ISGID != 0 && outsider { mode & !S_ISGID } else { mode }
}

/// Returns the error `Perm` if files of this kind cannot have extended attributes, or if the file is a sticky directory
/// that `cred` does not own. Otherwise returns the error `Access` unless `cred` may write the file.
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
