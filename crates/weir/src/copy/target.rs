//! The destination tree of a copy on this machine. Its operations follow no symlink below the top directory.
//!
//! Other users may change the tree while a copy runs. If a call resolved a whole path, it could follow a symlink that
//! another user has just made, and so leave the tree. So every operation starts at the open top directory. Only the
//! path to the top directory, which the user named, may contain symlinks.
//!
//! Each operation opens the directory that contains the file, and closes the directory at its end. So a copy needs one
//! directory descriptor for each thread, whatever the size of the tree.

use super::entry::{Location, Xattr};
use crate::failure::Failure;
use crate::locator::join;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use types::{Attrs, FileKind, Timestamp};

/// A path in the destination tree: the open top directory, and the path below it.
#[derive(Clone)]
pub struct Place {
    top: Arc<OwnedFd>,
    /// The path below the top directory. It begins with `.`, which stands for the top directory.
    below: Vec<u8>,
}

impl Place {
    /// Opens the top directory at a path that the user named, and follows symlinks in this path.
    pub fn top(path: &[u8]) -> Result<Self, Failure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = Arc::new(rustix::fs::open(super::local::os(path), flags, Mode::empty())?);
        Ok(Place { top, below: b".".to_vec() })
    }

    /// Returns the path of the entry `name` of this directory.
    pub fn child(&self, name: &[u8]) -> Self {
        Place { top: self.top.clone(), below: join(&self.below, name) }
    }

    /// Splits this path into its directory and its last component.
    fn split(&self) -> Result<(Self, &[u8]), Failure> {
        let at = self
            .below
            .iter()
            .rposition(|b| *b == b'/')
            .ok_or_else(|| Failure::new("the root of a file system has no name"))?;
        let (dir, name) = self.below.split_at(at);
        Ok((Place { top: self.top.clone(), below: dir.to_vec() }, &name[1..]))
    }

    /// Opens the file at this path without following symlinks. If the last component is a symlink, opens the symlink
    /// itself. Fails instead if `flags` require a directory.
    fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&self.top, &self.below[..], flags, Mode::empty(), resolve) {
            // Kernels before 5.6 do not have openat2(2), and some containers forbid it, so open one component at a
            // time.
            Err(Errno::NOSYS | Errno::PERM) => self.walk(flags),
            opened => opened,
        }
    }

    /// Opens the file at this path like [`Place::open`], but one component at a time, because old kernels do not have
    /// openat2(2).
    fn walk(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut names = self.below.split(|b| *b == b'/').peekable();
        let mut at = self.top.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        while let Some(name) = names.next() {
            let flags = if names.peek().is_some() { step } else { flags };
            at = rustix::fs::openat(&at, name, flags, Mode::empty())?;
        }
        Ok(at)
    }

    /// Opens the directory at this path, for a call that uses the entry `name` of the directory.
    fn directory(&self, name: &[u8]) -> Result<OwnedFd, Failure> {
        // The client already checks every name that a server sends. Check `name` again here, because an invalid name
        // could lead out of the directory.
        types::name::check(name).map_err(|_| Failure::new("invalid file name"))?;
        self.open(OFlags::DIRECTORY).map_err(replaced)
    }
}

/// Converts the error of a failed open of a directory that the copy found or made before. The cause may be that
/// another program has replaced this directory.
fn replaced(error: Errno) -> Failure {
    match error {
        Errno::LOOP | Errno::NOTDIR => {
            Failure::new("a directory of the path was replaced by a symlink or file, and symlinks are not followed")
                .next("find out which program changes the target, then run the same command again")
        }
        error => error.into(),
    }
}

/// Returns the [`Place`] of a location in a local destination tree. Fails if the location is not in such a tree.
fn place(location: &Location) -> Result<&Place, Failure> {
    location.place.as_ref().ok_or_else(|| Failure::new("the file is not in the target"))
}

/// Makes the directory `name` in `dir`. The returned flag is `false` if the directory existed. A symlink to a directory
/// is an error.
pub fn mkdir(dir: &Location, name: &[u8], mode: u32) -> Result<(Location, bool), Failure> {
    let at = place(dir)?;
    let parent = at.directory(name)?;
    let location = dir.in_target(name, at.child(name));
    match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) => return Ok((location, true)),
        Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let found = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => Ok((location, false)),
        FileType::Symlink => {
            Err(Failure::new("the name is taken by a symlink, and symlinks in the target are not followed")
                .next("remove the symlink, or copy into the directory that it leads to"))
        }
        _ => Err(Errno::EXIST.into()),
    }
}

/// Calls `make` to make the file `name` in `dir`. Returns the location of the new file, or `None` if the name is taken.
fn unless_taken(
    dir: &Location,
    name: &[u8],
    make: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
) -> Result<Option<Location>, Failure> {
    let at = place(dir)?;
    match make(&at.directory(name)?) {
        Ok(()) => Ok(Some(dir.in_target(name, at.child(name)))),
        Err(Errno::EXIST) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Makes a symlink; returns `None` if the name is taken.
pub fn symlink(dir: &Location, name: &[u8], target: &[u8]) -> Result<Option<Location>, Failure> {
    unless_taken(dir, name, |dir| rustix::fs::symlinkat(target, dir, name))
}

/// Makes a hard link to a file of the destination tree; returns `None` if the name is taken.
pub fn link(file: &Location, dir: &Location, name: &[u8]) -> Result<Option<Location>, Failure> {
    let (file_dir, file_name) = place(file)?.split()?;
    let from = file_dir.directory(file_name)?;
    unless_taken(dir, name, |dir| rustix::fs::linkat(&from, file_name, dir, name, AtFlags::empty()))
}

/// Makes a fifo, socket or device node; returns `None` if the name is taken.
pub fn mknod(dir: &Location, name: &[u8], attrs: &Attrs) -> Result<Option<Location>, Failure> {
    if matches!(attrs.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
        return Err(Errno::INVAL.into());
    }
    let dev = rustix::fs::makedev(attrs.rdev.0, attrs.rdev.1);
    let mode = Mode::from_raw_mode(0o600);
    unless_taken(dir, name, |dir| rustix::fs::mknodat(dir, name, file_type(attrs.kind), mode, dev))
}

/// Renames a file inside one directory. Replaces the file that has the new name.
pub fn rename(dir: &Location, from: &[u8], to: &[u8]) -> Result<(), Failure> {
    types::name::check(from).map_err(|_| Failure::new("invalid file name"))?;
    let dir = place(dir)?.directory(to)?;
    Ok(rustix::fs::renameat(&dir, from, &dir, to)?)
}

/// Removes a name. Succeeds if the name does not exist.
pub fn unlink(dir: &Location, name: &[u8]) -> Result<(), Failure> {
    match rustix::fs::unlinkat(place(dir)?.directory(name)?, name, AtFlags::empty()) {
        Err(e) if e != Errno::NOENT => Err(e.into()),
        _ => Ok(()),
    }
}

/// Creates a file that only its owner can open.
pub fn create(dir: &Location, name: &[u8]) -> Result<(File, Location), Failure> {
    let at = place(dir)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(at.directory(name)?, name, flags, Mode::from_raw_mode(0o600))?;
    Ok((File::from(file), dir.in_target(name, at.child(name))))
}

/// Sets the length, the mode and the times of a new file; as root, also its owner. Then renames the file from its
/// temporary to its final name.
pub fn finish(file: &File, attrs: &Attrs, dir: &Location, [temporary, name]: [&[u8]; 2]) -> Result<(), Failure> {
    file.set_len(attrs.size)?;
    if rustix::process::geteuid().is_root() {
        rustix::fs::fchown(file, owner(attrs).0, owner(attrs).1)?;
    }
    // Set the mode after the owner, because chown(2) clears the setuid and setgid bits.
    rustix::fs::fchmod(file, Mode::from_raw_mode(kept_mode(attrs)))?;
    rustix::fs::futimens(file, &times(attrs))?;
    rename(dir, temporary, name)
}

/// Sets the mode and the times of a directory, symlink or special file; as root, also its owner. Fails if the name now
/// belongs to a file of another type.
pub fn apply(location: &Location, attrs: &Attrs) -> Result<(), Failure> {
    let only = if attrs.kind == FileKind::Directory { OFlags::DIRECTORY } else { OFlags::empty() };
    let file = place(location)?.open(only).map_err(replaced)?;
    // The open descriptor always refers to the same inode. Check the type of this inode: before the open, another user
    // may have replaced the file by a file of another type.
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != file_type(attrs.kind) {
        return Err(Failure::new("another file has the name now"));
    }
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = owner(attrs);
        rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if attrs.kind == FileKind::Symlink {
        return Ok(rustix::fs::utimensat(&file, "", &times(attrs), AtFlags::EMPTY_PATH)?);
    }
    let open = itself(&file);
    rustix::fs::chmodat(CWD, &open, Mode::from_raw_mode(kept_mode(attrs)), AtFlags::empty())?;
    Ok(rustix::fs::utimensat(CWD, &open, &times(attrs), AtFlags::empty())?)
}

/// Returns the `/proc` path of an open file, for system calls that do not accept a descriptor opened with `O_PATH`.
fn itself(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Sets one xattr of a directory, or of a new file that the caller holds open. The name of the xattr includes `user.`.
pub fn set_xattr(location: &Location, open: Option<&File>, xattr: &Xattr) -> Result<(), Failure> {
    let name = CString::new(xattr.name.clone()).map_err(Failure::new)?;
    if let Some(file) = open {
        return Ok(rustix::fs::fsetxattr(file.as_fd(), &name, &xattr.value, XattrFlags::empty())?);
    }
    let dir = place(location)?.open(OFlags::DIRECTORY).map_err(replaced)?;
    Ok(rustix::fs::setxattr(itself(&dir), &name, &xattr.value, XattrFlags::empty())?)
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::Char => FileType::CharacterDevice,
        FileKind::Block => FileType::BlockDevice,
    }
}

fn owner(attrs: &Attrs) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    // Do not pass the id -1 to chown(2), which interprets it as "leave the owner unchanged".
    let known = |id: u32| (id != u32::MAX).then_some(id);
    (known(attrs.uid).map(rustix::fs::Uid::from_raw), known(attrs.gid).map(rustix::fs::Gid::from_raw))
}

/// Returns the mode that the copy gets. Clears the setuid and setgid bits if the user who copies is neither root nor
/// the owner of the source, because the copy then has another owner than the source.
fn kept_mode(attrs: &Attrs) -> u32 {
    let own = rustix::process::geteuid();
    if own.is_root() || own.as_raw() == attrs.uid { attrs.mode } else { attrs.mode & 0o1777 }
}

fn times(attrs: &Attrs) -> Timestamps {
    let spec = |t: Timestamp| Timespec { tv_sec: t.secs, tv_nsec: i64::from(t.nanos) };
    Timestamps { last_access: spec(attrs.atime), last_modification: spec(attrs.mtime) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::local::{next_data, open, stat};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    fn top(path: &Path) -> Location {
        Location::target(path.as_os_str().as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn holes_are_found_and_lengths_restored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let bytes = path.as_os_str().as_bytes();
        let target = top(dir.path());
        let (file, _) = create(&target, b"temporary").unwrap();
        file.write_all_at(b"tail", 1 << 20).unwrap();
        let mut attrs = stat(dir.path().join("temporary").as_os_str().as_bytes(), false).unwrap().attrs;
        attrs.size = 3 << 20;
        attrs.mode = 0o751;
        attrs.mtime = Timestamp { secs: 1_000_000, nanos: 123_456_789 };
        finish(&file, &attrs, &target, [b"temporary", b"sparse"]).unwrap();
        let after = stat(bytes, false).unwrap().attrs;
        assert_eq!((after.size, after.mode, after.mtime), (3 << 20, 0o751, attrs.mtime));
        let file = open(bytes).unwrap();
        let mut from = 0;
        let mut covered = 0;
        while let Some(data) = next_data(&file, from, after.size).unwrap() {
            assert!(data.offset >= from && !data.is_empty());
            covered += data.len;
            from = data.end();
        }
        // The test has written 4 bytes to a file of 3 MiB. The data ranges contain at least these bytes; in a file
        // system that does not report holes, they contain the whole file.
        assert!((4..=3 << 20).contains(&covered), "{covered}");
        assert_eq!(next_data(&file, after.size, after.size).unwrap(), None);
    }

    /// Calls every operation that changes names, in the directory `dir` of a destination tree. Returns the result of
    /// each operation.
    fn change(dir: &Location, attrs: &Attrs) -> Vec<(&'static str, Result<(), Failure>)> {
        let elsewhere = dir.in_target(b"file", place(dir).unwrap().child(b"file"));
        let xattr = Xattr { name: b"user.x".to_vec(), value: b"x".to_vec() };
        vec![
            ("mkdir", mkdir(dir, b"new", 0o777).map(drop)),
            ("symlink", symlink(dir, b"new", b"text").map(drop)),
            ("mknod", mknod(dir, b"new", &Attrs { kind: FileKind::Fifo, ..*attrs }).map(drop)),
            ("link", link(&elsewhere, dir, b"new").map(drop)),
            ("rename", rename(dir, b"file", b"new")),
            ("unlink", unlink(dir, b"file")),
            ("create", create(dir, b"new").map(drop)),
            ("apply", apply(dir, attrs)),
            ("set_xattr", set_xattr(dir, None, &xattr)),
        ]
    }

    #[test]
    fn no_symlink_below_the_top_is_followed() {
        let home = tempfile::tempdir().unwrap();
        let outside = home.path().join("outside");
        for dir in ["outside/sub", "tree/sub"] {
            std::fs::create_dir_all(home.path().join(dir)).unwrap();
            std::fs::write(home.path().join(dir).join("file"), b"content").unwrap();
        }
        // Name the top directory through a symlink: the path that the user names may contain symlinks.
        std::os::unix::fs::symlink("tree", home.path().join("way")).unwrap();
        let tree = top(&home.path().join("way"));
        let sub = mkdir(&tree, b"sub", 0o700).unwrap();
        assert!(!sub.1, "it was there");
        let mut attrs = stat(outside.as_os_str().as_bytes(), false).unwrap().attrs;
        (attrs.mode, attrs.mtime) = (0o711, Timestamp { secs: 1, nanos: 0 });
        let before = stat(outside.join("sub").as_os_str().as_bytes(), false).unwrap().attrs;
        std::fs::rename(home.path().join("tree/sub"), home.path().join("tree/moved")).unwrap();
        for (planted, dir) in
            [("sub", &sub.0), ("middle", &tree.in_target(b"middle/sub", place(&tree).unwrap().child(b"middle/sub")))]
        {
            let leads_to = if planted == "sub" { outside.join("sub") } else { outside.clone() };
            std::os::unix::fs::symlink(leads_to, home.path().join("tree").join(planted)).unwrap();
            for (what, outcome) in change(dir, &attrs) {
                let failure = outcome.expect_err(what);
                assert!(failure.what.contains("symlinks are not followed"), "{what}: {}", failure.what);
            }
            let place = place(dir).unwrap();
            place
                .walk(OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY)
                .expect_err("walking follows no symlink either");
        }
        let taken = mkdir(&tree, b"sub", 0o700).err().expect("a symlink is no directory");
        assert!(taken.what.contains("taken by a symlink"), "{}", taken.what);
        let after = stat(outside.join("sub").as_os_str().as_bytes(), false).unwrap().attrs;
        assert_eq!((after.mode, after.mtime, after.ctime), (before.mode, before.mtime, before.ctime));
        assert_eq!(std::fs::read_dir(outside.join("sub")).unwrap().count(), 1);
        // In the loop above, all operations of `change` have failed in directories that a symlink has replaced. They
        // must succeed in a directory that was only renamed.
        let moved = mkdir(&tree, b"moved", 0o700).unwrap().0;
        place(&moved).unwrap().walk(OFlags::PATH | OFlags::DIRECTORY).unwrap();
        for (what, outcome) in change(&moved, &attrs) {
            // `rename` and `create` fail because `mkdir` has already made a directory with the name `new`. `set_xattr`
            // fails if the file system has no xattrs.
            let taken = matches!(what, "rename" | "create");
            assert!(taken || what == "set_xattr" || outcome.is_ok(), "{what}: {outcome:?}");
        }
        assert_eq!(stat(home.path().join("tree/moved").as_os_str().as_bytes(), false).unwrap().attrs.mode, 0o711);
    }

    #[test]
    fn apply_refuses_another_file_and_calls_refuse_invalid_names() {
        let home = tempfile::tempdir().unwrap();
        let (tree, file) = (top(home.path()), home.path().join("file"));
        std::fs::write(&file, b"content").unwrap();
        let mut attrs = stat(file.as_os_str().as_bytes(), false).unwrap().attrs;
        (attrs.kind, attrs.mode, attrs.mtime) = (FileKind::Fifo, 0o620, Timestamp { secs: 5, nanos: 6 });
        let fifo = mknod(&tree, b"fifo", &attrs).unwrap().unwrap();
        apply(&fifo, &attrs).unwrap();
        let link = symlink(&tree, b"link", b"file").unwrap().unwrap();
        let of_link = Attrs { kind: FileKind::Symlink, mtime: Timestamp { secs: 7, nanos: 8 }, ..attrs };
        apply(&link, &of_link).unwrap();
        let now = |name: &str| stat(home.path().join(name).as_os_str().as_bytes(), false).unwrap().attrs;
        assert_eq!((now("fifo").mode, now("fifo").mtime), (0o620, attrs.mtime));
        assert_eq!(now("link").mtime, of_link.mtime);
        let before = now("file");
        std::fs::remove_file(home.path().join("fifo")).unwrap();
        std::fs::hard_link(&file, home.path().join("fifo")).unwrap();
        assert!(apply(&fifo, &attrs).is_err(), "it is another file");
        assert_eq!((now("file").mode, now("file").mtime), (before.mode, before.mtime));
        for name in [&b""[..], b".", b"..", b"a/b", b"../a", b"a\0"] {
            assert!(create(&tree, name).is_err() && mkdir(&tree, name, 0o700).is_err(), "{name:?}");
            assert!(rename(&tree, name, b"to").is_err() && rename(&tree, b"file", name).is_err(), "{name:?}");
        }
    }
}
