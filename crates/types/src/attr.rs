//! File attributes, as the namespace stores them and every protocol reports them.

use crate::{FileId, Timestamp};
use bytes::Bytes;

/// The type of a file (`nfs_ftype4`; named attributes are not supported).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    Regular = 1,
    /// Directory.
    Directory = 2,
    /// Block device node.
    Block = 3,
    /// Character device node.
    Char = 4,
    /// Symbolic link.
    Symlink = 5,
    /// Socket node.
    Socket = 6,
    /// Named pipe.
    Fifo = 7,
}

impl FileKind {
    /// Returns the type with this number (the values of `nfs_ftype4`).
    pub fn from_number(n: u32) -> Option<Self> {
        Some(match n {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::Block,
            4 => FileKind::Char,
            5 => FileKind::Symlink,
            6 => FileKind::Socket,
            7 => FileKind::Fifo,
            _ => return None,
        })
    }
}

/// All attributes of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attrs {
    /// Inode number.
    pub id: FileId,
    /// Type of the file.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: at most 0o7777.
    pub mode: u32,
    /// Number of names (directories: 2 + subdirectories).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes; for a symlink the length of the target, for a directory the number of entries.
    pub size: u64,
    /// Bytes of storage in use.
    pub used: u64,
    /// Whether the file may have holes; then `used` is only an upper bound, and the iods know the real value. Set on
    /// servers only.
    pub holes: bool,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Change attribute: grows with every change and never decreases (RFC 8881 §5.8.1.4).
    pub change: u64,
    /// Major and minor number of a device node, else zero.
    pub rdev: (u32, u32),
}

/// Block size: the smallest hole of local file systems, and its alignment.
const BLOCK: u64 = 4096;

/// Returns whether a file that ended at `end` has an unwritten whole block when the next write begins at `from`.
pub fn leaves_hole(end: u64, from: u64) -> bool {
    let whole = |block: u64| block.checked_add(BLOCK).is_some_and(|next| next <= from);
    end.checked_next_multiple_of(BLOCK).is_some_and(whole)
}

/// The new value of a time (`settime4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// This time.
    To(Timestamp),
}

/// A change of attributes; `None` leaves the attribute unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttrs {
    /// Permission bits, at most 0o7777.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

impl SetAttrs {
    /// Returns whether no attribute changes.
    pub fn is_empty(&self) -> bool {
        *self == SetAttrs::default()
    }
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name: 1 to 255 bytes, no slash, no NUL, neither `.` nor `..`.
    pub name: Bytes,
    /// Position from which READDIR continues. Cookies above 2 stay valid while other entries are added and removed.
    pub cookie: u64,
    /// Attributes of the file.
    pub attrs: Attrs,
}

/// Capacity of a file system in bytes and files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Total bytes.
    pub bytes_total: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Free bytes for ordinary users.
    pub bytes_avail: u64,
    /// Largest number of files.
    pub files_total: u64,
    /// Number of files that can still be created.
    pub files_free: u64,
}
