//! Reads of local files and directories by a copy. [`super::target`] has the operations that change a local
//! destination.

use super::buffers::{Buffer, PIECE};
use super::entry::{Entry, Location, Meta, Xattr};
use crate::failure::Failure;
use crate::locator::join;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use types::{Attrs, ByteRange, FileId, FileKind, Timestamp};

/// Converts the bytes of a path into a path of the operating system.
pub fn os(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// Returns the metadata of a file. If `follow` is set and the file is a symlink, returns the metadata of the symlink's
/// target.
pub fn stat(path: &[u8], follow: bool) -> Result<Meta, Failure> {
    let found = if follow { std::fs::metadata(os(path)) } else { std::fs::symlink_metadata(os(path)) };
    Ok(meta(&found?))
}

/// Returns the entries of a directory with their metadata.
///
/// Omits a name that another program removes before this function reads its metadata.
pub fn list(path: &[u8]) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(os(path))? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) => {
                let name = entry.file_name().into_vec();
                let location = Location::local(join(path, &name));
                entries.push(Entry { name, location, meta: meta(&found) });
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

/// Returns the target of a symlink.
pub fn readlink(path: &[u8]) -> Result<Vec<u8>, Failure> {
    Ok(std::fs::read_link(os(path))?.into_os_string().into_vec())
}

/// Opens a source file for reading.
pub fn open(path: &[u8]) -> Result<File, Failure> {
    Ok(File::open(os(path))?)
}

/// Returns the first data range at or after `from` and below `size`. Returns `None` if only a hole is left.
///
/// In a file system that does not report holes, the whole file is data.
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

/// Reads `len` bytes at `offset` into `buffer`, at most [`PIECE`] bytes. Returns a smaller number only at the end of
/// the file.
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

/// Returns all `user.` xattrs of a file or directory. Returns none if the file system does not support xattrs.
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

/// Returns an xattr list or value, whose length is unknown, from the kernel. First calls `ask` with a buffer that
/// usually suffices. If this buffer is too small, calls `ask` with a buffer of the kernel's maximum size.
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
