//! The faults that a store can have, each with its code and its repair.

use crate::engine::{Key, Value};
use crate::schema::XattrTally;
use bytes::Bytes;
use std::fmt;
use types::{FileId, FileKind};

/// A fault of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A record cannot be read.
    Record {
        /// Key of the record.
        key: Key,
    },
    /// A key is unknown to this version.
    Key {
        /// The key.
        key: Key,
    },
    /// The root directory does not exist or is no directory.
    Root,
    /// An inode has no tail.
    NoTail {
        /// The inode.
        id: FileId,
    },
    /// A tail exists for an inode without a core.
    NoCore {
        /// Number of the inode.
        id: FileId,
    },
    /// A name stands for no file.
    Dangling {
        /// The name.
        at: At,
    },
    /// The kind in a directory entry differs from the kind of its file.
    Kind {
        /// The name.
        at: At,
        /// The kind of the file.
        kind: FileKind,
    },
    /// A name has a cookie that its hash does not allow, or is not a valid name.
    Cookie {
        /// The name.
        at: At,
    },
    /// A name occurs a second time in its directory.
    Twice {
        /// The second entry.
        at: At,
    },
    /// Names exist in a directory that is missing or no directory.
    NoDirectory {
        /// Number of the directory.
        dir: FileId,
        /// Number of names.
        names: u64,
    },
    /// The recorded parent of a directory is not the directory that has its name.
    Parent {
        /// Name of the directory.
        at: At,
        /// The recorded parent.
        parent: FileId,
    },
    /// A directory has a second name: this one is not in its parent, or follows another one in its parent.
    Second {
        /// The name.
        at: At,
    },
    /// A directory is in a loop of directories, which cannot be reached from the root.
    Circle {
        /// The directory with the lowest number in the loop.
        id: FileId,
    },
    /// A file or directory has no name and is no orphan.
    Nameless {
        /// The inode.
        id: FileId,
        /// The core of the inode, which has the link count.
        core: Value,
    },
    /// The link count of a file is wrong.
    Links {
        /// The inode.
        id: FileId,
        /// The recorded number of names.
        told: u32,
        /// The number of names found.
        found: u32,
        /// The core of the inode, which has the link count.
        core: Value,
    },
    /// The recorded number of names of a directory is wrong.
    Entries {
        /// The directory.
        dir: FileId,
        /// The recorded number.
        told: u64,
        /// The number found.
        found: u64,
    },
    /// The recorded number of subdirectories of a directory is wrong.
    Subdirs {
        /// The directory.
        dir: FileId,
        /// The recorded number.
        told: u32,
        /// The number found.
        found: u64,
    },
    /// The recorded totals of a file's extended attributes are wrong.
    Xattrs {
        /// The file.
        id: FileId,
        /// The recorded totals.
        told: XattrTally,
        /// The totals found, with the recorded number of changes.
        found: XattrTally,
    },
    /// Extended attributes exist for a missing inode.
    StrayXattrs {
        /// Number of the inode.
        id: FileId,
    },
    /// Inline bytes exist for a file that is missing, is no regular file, or has objects.
    StrayBytes {
        /// Number of the file.
        id: FileId,
    },
    /// The recorded number of inodes is wrong.
    Files {
        /// The recorded number.
        told: u64,
        /// The number found.
        found: u64,
    },
    /// An inode number is in use that the store would allocate again.
    NextId {
        /// The next number that the store would allocate.
        next: u64,
        /// The highest number in use.
        used: FileId,
    },
    /// A regular file without names is not on the list of orphans.
    LostOrphan {
        /// The inode.
        id: FileId,
    },
    /// An inode on the list of orphans has names, is no regular file, or is missing.
    StrayOrphan {
        /// Number of the inode.
        id: FileId,
    },
    /// A file on the list of files whose objects are to be deleted still exists.
    DoomedAlive {
        /// The inode.
        id: FileId,
    },
    /// An intent exists for a file that is missing or no regular file.
    StrayIntent {
        /// The file.
        id: FileId,
        /// The kind of the intent.
        kind: u8,
    },
}

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct At {
    /// The directory.
    pub dir: FileId,
    /// The cookie of the name.
    pub cookie: u64,
    /// The name.
    pub name: Bytes,
    /// The file that it stands for.
    pub child: FileId,
    /// The kind in the entry.
    pub kind: FileKind,
}

/// The result of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mended {
    /// The fault is repaired.
    Yes,
    /// The fault does not exist (any more).
    Gone,
    /// The fault needs a person.
    No,
}

impl Fault {
    /// Returns the code of the fault: a word that never changes.
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

    /// Returns the file or directory that the fault concerns.
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

    /// Returns the name that the fault concerns, with its directory.
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

    /// Returns a description of the repair of the fault.
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

/// A key in readable form: its tag, then the rest in hexadecimal digits.
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
