//! Attributes of files, as the namespace stores them and every protocol shows them.

use crate::{FileId, Timestamp};
use bytes::Bytes;

/// What a file is (`nfs_ftype4`; named attributes are not offered).
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
    /// The kind with this number (the values of `nfs_ftype4`).
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
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: at most 0o7777.
    pub mode: u32,
    /// Number of names (directories: 2 + subdirectories).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes; of a symlink, its target's; of a directory, its number of entries.
    pub size: u64,
    /// Bytes of storage in use.
    pub used: u64,
    /// Whether it may have holes, so that `used` is the most it may be and who keeps the bytes knows better. Servers alone know.
    pub holes: bool,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Change attribute: rises with every change, never goes back (RFC 8881 §5.8.1.4).
    pub change: u64,
    /// Major and minor number of a device node, else zero.
    pub rdev: (u32, u32),
}

/// The least that file systems leave out of files, and where they do: blocks.
const BLOCK: u64 = 4096;

/// Whether a file that ended at `end` has a block without bytes when it goes on at `from`.
pub fn leaves_hole(end: u64, from: u64) -> bool {
    let whole = |block: u64| block.checked_add(BLOCK).is_some_and(|next| next <= from);
    end.checked_next_multiple_of(BLOCK).is_some_and(whole)
}

/// How a time is to be set (`settime4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// To the server's clock.
    Now,
    /// To this.
    To(Timestamp),
}

/// The attributes to be changed; `None` stays as it is.
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
    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        *self == SetAttrs::default()
    }
}

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name: 1 to 255 bytes, no slash, no NUL, neither `.` nor `..`.
    pub name: Bytes,
    /// Position to continue after; above 2, stable while other entries come and go.
    pub cookie: u64,
    /// Attributes of what it names.
    pub attrs: Attrs,
}

/// Capacity of a file system, bytes and files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Bytes in all.
    pub bytes_total: u64,
    /// Bytes free.
    pub bytes_free: u64,
    /// Bytes free to ordinary users.
    pub bytes_avail: u64,
    /// Files that could exist.
    pub files_total: u64,
    /// Files that could still be made.
    pub files_free: u64,
}
