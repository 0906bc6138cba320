//! Permissions of the files of daemons: only the owner may read and write these files, whatever the umask. Other
//! users may only connect to sockets.
//!
//! A metadata store contains the content of small files, all names, and the secret of the directory cookies. An object
//! store contains the content of all other files.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Permission bits of a file in a store: only the owner may read and write it.
pub const FILE: u32 = 0o600;
/// Permission bits of a directory in a store: only the owner may use it.
pub const DIRECTORY: u32 = 0o700;
/// Permission bits of a directory on the path to a socket: other users may traverse the directory, but not list its
/// names.
pub const WAY: u32 = 0o711;

/// Creates a directory with the mode [`WAY`] of directories on the path to a socket.
///
/// # Errors
/// The errors of `mkdir(2)`, including `EEXIST` if the directory exists.
pub fn make_way(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(WAY).create(dir)
}

/// Restricts the permissions of the directory `dir` and of files in it. `most` contains a name and the largest mode
/// that this file may have; the empty name stands for `dir` itself. Skips files that do not exist. Logs each change and
/// each failure.
///
/// The modes of a store's files may be too wide for two reasons: earlier versions of Weir created files with modes that
/// depended on the umask, and a copy of a store may have other modes than the original.
pub fn narrow(dir: &Path, most: &[(&str, u32)]) {
    let (mut narrowed, mut failed) = (Vec::new(), Vec::new());
    for (name, most) in most {
        let path = if name.is_empty() { dir.to_owned() } else { dir.join(name) };
        let Ok(found) = std::fs::metadata(&path) else { continue };
        let (had, most) = (found.mode() & 0o7777, most | 0o7000);
        if had & !most == 0 {
            continue;
        }
        let shown = format!("{} {had:04o}", path.display());
        match std::fs::set_permissions(&path, Permissions::from_mode(had & most)) {
            Ok(()) => narrowed.push(shown),
            Err(error) => failed.push(format!("{shown}: {error}")),
        }
    }
    if !narrowed.is_empty() || !failed.is_empty() {
        let (narrowed, failed) = (narrowed.join(", "), failed.join(", "));
        tracing::warn!(narrowed, failed, "removed permissions of other users on the files of a store");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_removes_only_excess_permissions() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("store");
        make_way(&dir).unwrap();
        let mode = |name: &str| std::fs::metadata(dir.join(name)).unwrap().mode() & 0o7777;
        assert_eq!(mode("") & !WAY, 0, "the umask may take more away");
        assert_eq!(make_way(&dir).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let set = |name: &str, mode| std::fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        for name in ["wide", "narrow", "other"] {
            std::fs::write(dir.join(name), "").unwrap();
        }
        for (name, mode) in [("", 0o2777), ("wide", 0o666), ("narrow", 0o400), ("other", 0o644)] {
            set(name, mode);
        }
        narrow(&dir, &[("", WAY), ("wide", FILE), ("narrow", FILE), ("none", FILE)]);
        assert_eq!([mode(""), mode("wide"), mode("narrow"), mode("other")], [0o2711, 0o600, 0o400, 0o644]);
    }
}
