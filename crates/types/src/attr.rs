//! File attributes, as the metadata store stores them and every protocol reports them.

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
    /// Returns the type with this number of `nfs_ftype4`, or `None` for any other number.
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
    /// Number of hard links; for a directory, 2 plus the number of subdirectories.
    pub nlink: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the file.
    pub gid: u32,
    /// Length in bytes. For a symlink, the length of the target; for a directory, the number of entries.
    pub size: u64,
    /// Bytes of storage that the file uses.
    pub used: u64,
    /// Whether the file may have holes. If so, the allocated space in `used` is only an upper bound, and only the
    /// iods know the exact allocated space. Only servers set this field.
    pub holes: bool,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of the file's content.
    pub mtime: Timestamp,
    /// Time of the last change of the file's content or attributes.
    pub ctime: Timestamp,
    /// Time of creation.
    pub btime: Timestamp,
    /// Change attribute: increases with every change of the file, and never decreases (RFC 8881 §5.8.1.4).
    pub change: u64,
    /// Major and minor number of a device node, else zero.
    pub rdev: (u32, u32),
}

/// Minimum size and alignment of a hole in a file of a local file system, in bytes.
const BLOCK: u64 = 4096;

/// Returns whether a write at offset `from` to a file that ends at `end`, before `from`, leaves a hole: at least one
/// whole block between `end` and `from` that no program has written.
pub fn leaves_hole(end: u64, from: u64) -> bool {
    let whole = |block: u64| block.checked_add(BLOCK).is_some_and(|next| next <= from);
    end.checked_next_multiple_of(BLOCK).is_some_and(whole)
}

/// The new access or modification time in a change of attributes (`settime4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The current time of the server's clock.
    Now,
    /// A time that the client chooses.
    To(Timestamp),
}

/// New attributes of a file; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttrs {
    /// Permission bits, at most 0o7777.
    pub mode: Option<u32>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id of the file.
    pub gid: Option<u32>,
    /// Length of the file in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

impl SetAttrs {
    /// Returns whether all attributes stay unchanged.
    pub fn is_empty(&self) -> bool {
        *self == SetAttrs::default()
    }
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name: 1 to 255 bytes, no slash, no NUL, neither `.` nor `..`.
    pub name: Bytes,
    /// Cookie of the entry (RFC 8881 §18.23): a READDIR with this cookie continues after the entry. A cookie above 2
    /// stays valid while clients add and remove other entries.
    pub cookie: u64,
    /// Attributes of the file that the entry names.
    pub attrs: Attrs,
}

/// Capacity of a file system in bytes and files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Capacity in bytes.
    pub bytes_total: u64,
    /// Free space in bytes.
    pub bytes_free: u64,
    /// Free space in bytes that ordinary users may use.
    pub bytes_avail: u64,
    /// Maximum number of files of the file system.
    pub files_total: u64,
    /// Number of files that can still be created.
    pub files_free: u64,
}
