//! The faults that `weir fsck` can find in a metadata store, each with its code and its repair.

use crate::engine::{Key, Value};
use crate::schema::XattrTally;
use bytes::Bytes;
use std::fmt;
use types::{FileId, FileKind};

/// A fault of a metadata store: a violated invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A record is damaged: its checksum or its encoding is wrong.
    Record {
        /// Key of the damaged record.
        key: Key,
    },
    /// The type of a key is unknown to this version of Weir.
    Key {
        /// The key of unknown type.
        key: Key,
    },
    /// The root directory is missing or is not a directory.
    Root,
    /// An inode has a core record (type, owner, layout) but no tail record (size, times, change attribute).
    NoTail {
        /// Number of the inode that has no tail record.
        id: FileId,
    },
    /// An inode has a tail record (size, times, change attribute) but no core record (type, owner, layout).
    NoCore {
        /// Number of the inode that has no core record.
        id: FileId,
    },
    /// A directory entry refers to an inode that does not exist.
    Dangling {
        /// The directory entry that refers to a missing inode.
        at: At,
    },
    /// The file kind in a directory entry differs from the kind in the inode to which the entry refers.
    Kind {
        /// The directory entry with the wrong file kind.
        at: At,
        /// The file kind recorded in the inode.
        kind: FileKind,
    },
    /// A directory entry has a cookie outside the range that the hash of its name allows, or its name is invalid.
    Cookie {
        /// The directory entry with the invalid cookie or name.
        at: At,
    },
    /// A directory has two entries with the same name.
    Twice {
        /// The second directory entry with the same name.
        at: At,
    },
    /// Directory entries exist for a directory that is missing or is not a directory.
    NoDirectory {
        /// Inode number of the directory, from the keys of its entries.
        dir: FileId,
        /// Number of entries that exist for the directory.
        names: u64,
    },
    /// The parent that a directory's inode records is not the directory that has the entry for this directory.
    Parent {
        /// The directory entry that refers to the directory.
        at: At,
        /// The parent recorded in the directory's inode.
        parent: FileId,
    },
    /// More than one directory entry refers to the same directory. The surplus entry is outside the recorded parent, or
    /// is not the first such entry in the recorded parent.
    Second {
        /// The surplus entry that refers to the directory.
        at: At,
    },
    /// A directory belongs to a loop of directories, which is unreachable from the root.
    Circle {
        /// The directory with the lowest inode number in the loop.
        id: FileId,
    },
    /// An inode has no directory entry and is not an orphan.
    Nameless {
        /// Number of the inode that has no directory entry.
        id: FileId,
        /// The core record (type, owner, layout) of the inode when the check counted the inode's directory entries. The
        /// repair is applied only if this record is still unchanged.
        core: Value,
    },
    /// The link count in a file's inode differs from the number of its directory entries.
    Links {
        /// Number of the inode that has the wrong link count.
        id: FileId,
        /// The link count recorded in the inode.
        told: u32,
        /// The number of directory entries that refer to the inode.
        found: u32,
        /// The core record (type, owner, layout) of the inode when the check counted the inode's directory entries. The
        /// repair is applied only if this record is still unchanged.
        core: Value,
    },
    /// The entry count in a directory's inode differs from the number of its entries.
    Entries {
        /// Inode number of the directory.
        dir: FileId,
        /// The entry count recorded in the directory's inode.
        told: u64,
        /// The number of entries that the check found in the directory.
        found: u64,
    },
    /// The subdirectory count in a directory's inode differs from the number of its subdirectories.
    Subdirs {
        /// Inode number of the directory.
        dir: FileId,
        /// The subdirectory count recorded in the directory's inode.
        told: u32,
        /// The number of subdirectories that the check found in the directory.
        found: u64,
    },
    /// The totals (count and length) of the extended attributes in a file's inode are wrong.
    Xattrs {
        /// Inode number of the file.
        id: FileId,
        /// The totals of extended attributes recorded in the inode.
        told: XattrTally,
        /// The totals that the check computed. The field `changes`, the number of changes of the attributes, is copied
        /// from the inode.
        found: XattrTally,
    },
    /// Extended attributes exist for an inode that does not exist.
    StrayXattrs {
        /// Number of the missing inode, from the keys of the attributes.
        id: FileId,
    },
    /// Inline bytes are stored for a file that is missing, is not a regular file, or has objects.
    StrayBytes {
        /// Inode number of the file, from the key of the inline bytes.
        id: FileId,
    },
    /// The inode count that the store has recorded differs from the number of inodes.
    Files {
        /// The inode count that the store has recorded.
        told: u64,
        /// The number of inodes that the check found.
        found: u64,
    },
    /// The next inode number that the store will allocate is too low, so the store can allocate a number that is
    /// already in use.
    NextId {
        /// The next inode number to allocate, as recorded in the store.
        next: u64,
        /// The highest inode number in use.
        used: FileId,
    },
    /// A regular file without directory entries is missing from the orphan list.
    LostOrphan {
        /// Number of the inode that is missing from the orphan list.
        id: FileId,
    },
    /// The orphan list has an inode that has directory entries, is not a regular file, or is missing.
    StrayOrphan {
        /// Number of the inode that is wrongly in the orphan list.
        id: FileId,
    },
    /// The list of doomed files (files whose objects are to be deleted) has a file that still exists.
    DoomedAlive {
        /// Number of the inode that still exists although the list of doomed files has it.
        id: FileId,
    },
    /// An intent exists for a file that is missing or is not a regular file.
    StrayIntent {
        /// Inode number of the file, from the key of the intent.
        id: FileId,
        /// Number of the intent's kind, which says what kind of operation is unfinished.
        kind: u8,
    },
}

/// A directory entry with its directory and its cookie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct At {
    /// Inode number of the directory.
    pub dir: FileId,
    /// The cookie, which is the position of the entry in the directory.
    pub cookie: u64,
    /// The name in the directory entry.
    pub name: Bytes,
    /// Number of the inode to which the directory entry refers.
    pub child: FileId,
    /// The file kind recorded in the directory entry.
    pub kind: FileKind,
}

/// The result of an attempt to repair a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mended {
    /// The repair succeeded.
    Yes,
    /// The fault no longer exists, or the records have changed since the check.
    Gone,
    /// No automatic repair is possible; an administrator must act.
    No,
}

impl Fault {
    /// Returns the code of the fault: a word that scripts can use, because the code is the same in every version of
    /// Weir.
    pub fn code(&self) -> &'static str {
        match self {
            Fault::Record { .. } => "record-damaged",
            Fault::Key { .. } => "key-unknown",
            Fault::Root => "root-missing",
            Fault::NoTail { .. } => "inode-half",
            Fault::NoCore { .. } => "inode-other-half",
            Fault::Dangling { .. } => "name-dangling",
            Fault::Kind { .. } => "name-kind",
            Fault::Cookie { .. } => "name-misplaced",
            Fault::Twice { .. } => "name-twice",
            Fault::NoDirectory { .. } => "directory-missing",
            Fault::Parent { .. } => "directory-parent",
            Fault::Second { .. } => "directory-second-name",
            Fault::Circle { .. } => "directory-circle",
            Fault::Nameless { .. } => "inode-nameless",
            Fault::Links { .. } => "link-count",
            Fault::Entries { .. } => "entry-count",
            Fault::Subdirs { .. } => "subdirectory-count",
            Fault::Xattrs { .. } => "xattr-count",
            Fault::StrayXattrs { .. } => "xattr-stray",
            Fault::StrayBytes { .. } => "bytes-stray",
            Fault::Files { .. } => "inode-count",
            Fault::NextId { .. } => "number-reused",
            Fault::LostOrphan { .. } => "orphan-lost",
            Fault::StrayOrphan { .. } => "orphan-stray",
            Fault::DoomedAlive { .. } => "doomed-alive",
            Fault::StrayIntent { .. } => "intent-stray",
        }
    }

    /// Returns the inode number of the file or directory that the fault concerns; `None` if the fault concerns no
    /// inode.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Fault::Record { key } | Fault::Key { key } => match key.first() {
                Some(b'b' | b'i' | b'd' | b'x' | b'o' | b'g' | b'u' | b'w') => {
                    crate::schema::id_of(key.get(..9).unwrap_or_default()).ok()
                }
                _ => None,
            },
            Fault::Root => Some(FileId::ROOT),
            Fault::Dangling { at }
            | Fault::Kind { at, .. }
            | Fault::Cookie { at }
            | Fault::Twice { at }
            | Fault::Parent { at, .. }
            | Fault::Second { at } => Some(at.child),
            Fault::NoDirectory { dir, .. } | Fault::Entries { dir, .. } | Fault::Subdirs { dir, .. } => Some(*dir),
            Fault::NoTail { id }
            | Fault::NoCore { id }
            | Fault::Circle { id }
            | Fault::Nameless { id, .. }
            | Fault::Links { id, .. }
            | Fault::Xattrs { id, .. }
            | Fault::StrayXattrs { id }
            | Fault::StrayBytes { id }
            | Fault::LostOrphan { id }
            | Fault::StrayOrphan { id }
            | Fault::DoomedAlive { id }
            | Fault::StrayIntent { id, .. } => Some(*id),
            Fault::NextId { used, .. } => Some(*used),
            Fault::Files { .. } => None,
        }
    }

    /// Returns the directory and the name that the fault concerns; `None` if the fault concerns no directory entry.
    pub fn name(&self) -> Option<(FileId, &Bytes)> {
        match self {
            Fault::Dangling { at }
            | Fault::Kind { at, .. }
            | Fault::Cookie { at }
            | Fault::Twice { at }
            | Fault::Parent { at, .. }
            | Fault::Second { at } => Some((at.dir, &at.name)),
            _ => None,
        }
    }

    /// Returns a sentence for users that describes how the fault is repaired.
    pub fn remedy(&self) -> &'static str {
        match self {
            Fault::Record { key } => match (key.first(), key.last()) {
                (Some(b'd'), _) => "remove the name; what it stood for gets one in /lost+found",
                (Some(b'o' | b'g' | b'u' | b'w'), _) => "remove the record",
                (Some(b'i'), Some(1)) if key.len() == 10 => "write it anew: size from the iods or names, times lost",
                _ => "none: restore the store from a copy, or remove the file",
            },
            Fault::Key { .. } => "none: another version of weir may know it",
            Fault::Root => "none: restore the store from a copy",
            Fault::NoTail { .. } => "write it anew: size from the iods or names, times lost",
            Fault::NoCore { .. } => "remove it",
            Fault::Dangling { .. } => "remove the name",
            Fault::Kind { .. } => "correct the kind in the name",
            Fault::Cookie { .. } => "move the name to where it is looked for",
            Fault::Twice { .. } => "remove the second one",
            Fault::NoDirectory { .. } => "make the directory anew in /lost+found, with these names",
            Fault::Parent { .. } => "correct the parent",
            Fault::Second { .. } => "remove the name",
            Fault::Circle { .. } => "move it to /lost+found",
            Fault::Nameless { .. } => "give it a name in /lost+found",
            Fault::Links { .. } | Fault::Entries { .. } | Fault::Subdirs { .. } | Fault::Xattrs { .. } => {
                "correct the count"
            }
            Fault::Files { .. } => "correct the count",
            Fault::StrayXattrs { .. } | Fault::StrayBytes { .. } => "remove them",
            Fault::NextId { .. } => "go on behind the highest number in use",
            Fault::LostOrphan { .. } => "put it on the list: it is freed when nobody has it open",
            Fault::StrayOrphan { .. } | Fault::DoomedAlive { .. } => "take it off the list",
            Fault::StrayIntent { .. } => "remove the note",
        }
    }
}

/// Displays a key: the first byte (tag byte) as a character, and all other bytes as hexadecimal digits.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tag, rest) = self.0.split_first().map_or((b'?', &[][..]), |(tag, rest)| (*tag, rest));
        write!(f, "{} ", tag.escape_ascii())?;
        rest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Record { key } => write!(f, "the record {} cannot be read", Shown(key)),
            Fault::Key { key } => write!(f, "the key {} is not known", Shown(key)),
            Fault::Root => write!(f, "the root directory is missing"),
            Fault::NoTail { .. } => write!(f, "size and times of the inode are missing"),
            Fault::NoCore { .. } => write!(f, "size and times of an inode that does not exist"),
            Fault::Dangling { at } => write!(f, "the name stands for inode {}, which does not exist", at.child),
            Fault::Kind { at, kind } => write!(f, "the name tells {:?}, the inode is {kind:?}", at.kind),
            Fault::Cookie { at } => write!(f, "the name is at {:#x}, where nobody looks for it", at.cookie),
            Fault::Twice { .. } => write!(f, "the name is in its directory twice"),
            Fault::NoDirectory { dir, names } => write!(f, "{names} names in directory {dir}, which does not exist"),
            Fault::Parent { at, parent } => write!(f, "its name is in directory {}, its parent is {parent}", at.dir),
            Fault::Second { .. } => write!(f, "the directory has a second name"),
            Fault::Circle { .. } => write!(f, "the directory is in a circle that the root does not lead to"),
            Fault::Nameless { .. } => write!(f, "no name stands for it"),
            Fault::Links { told, found, .. } => write!(f, "it counts {told} names, there are {found}"),
            Fault::Entries { told, found, .. } => write!(f, "it counts {told} entries, there are {found}"),
            Fault::Subdirs { told, found, .. } => write!(f, "it counts {told} directories in it, there are {found}"),
            Fault::Xattrs { told, found, .. } => write!(
                f,
                "it counts {} extended attributes of {} bytes, there are {} of {}",
                told.count, told.bytes, found.count, found.bytes
            ),
            Fault::StrayXattrs { .. } => write!(f, "extended attributes of an inode that does not exist"),
            Fault::StrayBytes { .. } => write!(f, "bytes are kept of a file that has them elsewhere or does not exist"),
            Fault::Files { told, found } => write!(f, "the store counts {told} inodes, there are {found}"),
            Fault::NextId { next, used } => write!(f, "number {next} is given out next, {used} is in use"),
            Fault::LostOrphan { .. } => write!(f, "it has no names, and nothing will free it"),
            Fault::StrayOrphan { .. } => write!(f, "it is on the list of nameless files, but is none"),
            Fault::DoomedAlive { .. } => write!(f, "its objects are to be deleted, but it lives"),
            Fault::StrayIntent { kind, .. } => write!(f, "a note of kind {kind} about something that is no file"),
        }
    }
}
