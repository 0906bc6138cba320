//! The side of a copy that is a directory tree of this machine.

use super::buffers::{Buffer, PIECE};
use super::end::{Entry, Meta, Spot, Xattr};
use crate::failure::Failure;
use crate::locator::join;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use types::{Attrs, ByteRange, FileId, FileKind, Timestamp};

/// A path as the operating system takes it.
pub fn os(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// Attributes of a file; of the link itself unless `follow`.
pub fn stat(path: &[u8], follow: bool) -> Result<Meta, Failure> {
    let found = if follow { std::fs::metadata(os(path)) } else { std::fs::symlink_metadata(os(path)) };
    Ok(meta(&found?))
}

/// All names of a directory with their attributes.
///
/// A name that goes away while the directory is read is left out.
pub fn list(path: &[u8]) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(os(path))? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) => {
                let name = entry.file_name().into_vec();
                let spot = Spot::local(join(path, &name));
                entries.push(Entry { name, spot, meta: meta(&found) });
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(entries)
}

fn meta(found: &std::fs::Metadata) -> Meta {
    let file_type = found.file_type();
    let kind = if file_type.is_file() {
        FileKind::Regular
    } else if file_type.is_dir() {
        FileKind::Directory
    } else if file_type.is_symlink() {
        FileKind::Symlink
    } else if file_type.is_block_device() {
        FileKind::Block
    } else if file_type.is_char_device() {
        FileKind::Char
    } else if file_type.is_fifo() {
        FileKind::Fifo
    } else {
        FileKind::Socket
    };
    let time = |secs, nanos: i64| Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) };
    let rdev = found.rdev();
    Meta {
        dev: found.dev(),
        attrs: Attrs {
            id: FileId(found.ino()),
            kind,
            mode: found.mode() & 0o7777,
            nlink: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
            uid: found.uid(),
            gid: found.gid(),
            size: found.size(),
            used: found.blocks().saturating_mul(512),
            holes: false,
            atime: time(found.atime(), found.atime_nsec()),
            mtime: time(found.mtime(), found.mtime_nsec()),
            ctime: time(found.ctime(), found.ctime_nsec()),
            btime: found.created().map(Timestamp::from).unwrap_or_default(),
            change: 0,
            rdev: (rustix::fs::major(rdev), rustix::fs::minor(rdev)),
        },
    }
}

/// Makes a directory; `false` when one is there already.
pub fn mkdir(path: &[u8], mode: u32) -> Result<bool, Failure> {
    match rustix::fs::mkdir(os(path), Mode::from_raw_mode(mode)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) if os(path).is_dir() => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The path when `make` made something there, `None` when the name is taken.
pub fn unless_taken(
    path: Vec<u8>,
    make: impl FnOnce(&[u8]) -> Result<(), std::io::Error>,
) -> Result<Option<Spot>, Failure> {
    match make(&path) {
        Ok(()) => Ok(Some(Spot::local(path))),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The target of a symlink.
pub fn readlink(path: &[u8]) -> Result<Vec<u8>, Failure> {
    Ok(std::fs::read_link(os(path))?.into_os_string().into_vec())
}

/// Makes a symlink.
pub fn symlink(target: &[u8], path: &[u8]) -> Result<(), std::io::Error> {
    std::os::unix::fs::symlink(os(target), os(path))
}

/// Makes a hard link; a symlink is linked itself.
pub fn link(file: &[u8], path: &[u8]) -> Result<(), std::io::Error> {
    std::fs::hard_link(os(file), os(path))
}

/// Renames, replacing what was there.
pub fn rename(from: &[u8], to: &[u8]) -> Result<(), Failure> {
    Ok(std::fs::rename(os(from), os(to))?)
}

/// Removes a name; one that is not there is no failure.
pub fn unlink(path: &[u8]) -> Result<(), Failure> {
    match std::fs::remove_file(os(path)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(()),
    }
}

/// Makes a fifo, socket or device node.
pub fn mknod(path: &[u8], attrs: &Attrs) -> Result<(), std::io::Error> {
    let kind = match attrs.kind {
        FileKind::Fifo => rustix::fs::FileType::Fifo,
        FileKind::Socket => rustix::fs::FileType::Socket,
        FileKind::Char => rustix::fs::FileType::CharacterDevice,
        FileKind::Block => rustix::fs::FileType::BlockDevice,
        FileKind::Regular | FileKind::Directory | FileKind::Symlink => return Err(Errno::INVAL.into()),
    };
    let dev = rustix::fs::makedev(attrs.rdev.0, attrs.rdev.1);
    Ok(rustix::fs::mknodat(CWD, os(path), kind, Mode::from_raw_mode(0o600), dev)?)
}

/// Opens a file for reading.
pub fn open(path: &[u8]) -> Result<File, Failure> {
    Ok(File::open(os(path))?)
}

/// Makes a new file that only its owner can open.
pub fn create(path: &[u8]) -> Result<File, Failure> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(os(path), flags, Mode::from_raw_mode(0o600))?))
}

/// The first range of data at or after `from` and below `size`; `None` when only a hole is left.
///
/// A file system that does not know holes shows one range to the end.
pub fn next_data(file: &File, from: u64, size: u64) -> Result<Option<ByteRange>, Failure> {
    if from >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => from,
        Err(e) => return Err(e.into()),
    };
    if start >= size {
        return Ok(None);
    }
    let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) if end > start => end.min(size),
        _ => size,
    };
    Ok(ByteRange::new(start, end - start))
}

/// Fills `buffer` with `len` bytes from `offset`, at most [`PIECE`]; fewer only at the end of the file.
pub fn read(file: &File, offset: u64, len: usize, buffer: &mut Buffer) -> Result<usize, Failure> {
    let space = &mut buffer.space()[..len.min(PIECE)];
    let mut done = 0;
    while done < space.len() {
        match file.read_at(&mut space[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

/// Gives a file its length, mode, times and, for root, its owner.
pub fn finish(file: &File, attrs: &Attrs) -> Result<(), Failure> {
    file.set_len(attrs.size)?;
    if rustix::process::geteuid().is_root() {
        rustix::fs::fchown(file, owner(attrs).0, owner(attrs).1)?;
    }
    // After the owner: a change of owner takes the setuid and setgid bits away.
    rustix::fs::fchmod(file, Mode::from_raw_mode(kept_mode(attrs)))?;
    Ok(rustix::fs::futimens(file, &times(attrs))?)
}

/// Gives the file, directory or symlink at `path` its mode, times and, for root, its owner; follows no link.
pub fn apply(path: &[u8], attrs: &Attrs) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = owner(attrs);
        rustix::fs::chownat(CWD, os(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if attrs.kind != FileKind::Symlink {
        rustix::fs::chmodat(CWD, os(path), Mode::from_raw_mode(kept_mode(attrs)), AtFlags::empty())?;
    }
    Ok(rustix::fs::utimensat(CWD, os(path), &times(attrs), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn owner(attrs: &Attrs) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    // The number -1 means "leave as it is" to the kernel and is no owner.
    let known = |id: u32| (id != u32::MAX).then_some(id);
    (known(attrs.uid).map(rustix::fs::Uid::from_raw), known(attrs.gid).map(rustix::fs::Gid::from_raw))
}

/// Who is not root does not keep the owner, and a file that changes hands must not stay setuid.
fn kept_mode(attrs: &Attrs) -> u32 {
    let own = rustix::process::geteuid();
    if own.is_root() || own.as_raw() == attrs.uid { attrs.mode } else { attrs.mode & 0o1777 }
}

fn times(attrs: &Attrs) -> Timestamps {
    let spec = |t: Timestamp| Timespec { tv_sec: t.secs, tv_nsec: i64::from(t.nanos) };
    Timestamps { last_access: spec(attrs.atime), last_modification: spec(attrs.mtime) }
}

/// All `user.` xattrs of a file or directory; none where the file system has no xattrs.
pub fn xattrs(path: &[u8]) -> Result<Vec<Xattr>, Failure> {
    let names = match sized(|space| rustix::fs::llistxattr(os(path), space)) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP | Errno::PERM) => return Ok(Vec::new()),
        Err(e) => return Err(e.into()),
    };
    let mut found = Vec::new();
    for name in names.split(|b| *b == 0).filter(|name| name.starts_with(b"user.")) {
        let c_name = CString::new(name).map_err(Failure::new)?;
        match sized(|space| rustix::fs::lgetxattr(os(path), c_name.as_c_str(), space)) {
            Ok(value) => found.push(Xattr { name: name.to_vec(), value }),
            Err(Errno::NODATA) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(found)
}

/// Sets one xattr; `name` includes its `user.` prefix.
pub fn set_xattr(path: &[u8], xattr: &Xattr) -> Result<(), Failure> {
    let name = CString::new(xattr.name.clone()).map_err(Failure::new)?;
    Ok(rustix::fs::lsetxattr(os(path), name.as_c_str(), &xattr.value, XattrFlags::empty())?)
}

/// Asks for a value of unknown length: first with room for most, then with the room the kernel allows at most.
fn sized(ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    for room in [1 << 10, 64 << 10] {
        let mut space = vec![0; room];
        match ask(&mut space) {
            Ok(len) => {
                space.truncate(len);
                return Ok(space);
            }
            Err(Errno::RANGE) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::TOOBIG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn holes_are_found_and_lengths_restored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let bytes = path.as_os_str().as_bytes();
        let file = create(bytes).unwrap();
        file.write_all_at(b"tail", 1 << 20).unwrap();
        let mut attrs = stat(bytes, false).unwrap().attrs;
        attrs.size = 3 << 20;
        attrs.mode = 0o751;
        attrs.mtime = Timestamp { secs: 1_000_000, nanos: 123_456_789 };
        finish(&file, &attrs).unwrap();
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
        // A file system without holes shows everything as data; either way the tail is in it.
        assert!((4..=3 << 20).contains(&covered), "{covered}");
        assert_eq!(next_data(&file, after.size, after.size).unwrap(), None);
    }
}
