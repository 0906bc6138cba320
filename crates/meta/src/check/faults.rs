//! What can be wrong in a store, each with its code, and what would mend it.

use crate::engine::{Key, Value};
use crate::schema::XattrTally;
use bytes::Bytes;
use std::fmt;
use types::{FileId, FileKind};

/// Something that is wrong in a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A record cannot be read.
    Record {
        /// Its key.
        key: Key,
    },
    /// A key is none that this version knows.
    Key {
        /// The key.
        key: Key,
    },
    /// The root directory is not there or is no directory.
    Root,
    /// An inode has no often changing half.
    NoTail {
        /// The inode.
        id: FileId,
    },
    /// The often changing half of an inode that is not there.
    NoCore {
        /// Its number.
        id: FileId,
    },
    /// A name stands for nothing.
    Dangling {
        /// The name.
        at: At,
    },
    /// A name tells another kind than its file has.
    Kind {
        /// The name.
        at: At,
        /// The kind of the file.
        kind: FileKind,
    },
    /// A name is not at a place that its hash allows, or is none that anybody may give.
    Cookie {
        /// The name.
        at: At,
    },
    /// A name is in its directory for the second time.
    Twice {
        /// The second one.
        at: At,
    },
    /// Names in a directory that is not there, or is none.
    NoDirectory {
        /// Its number.
        dir: FileId,
        /// How many names.
        names: u64,
    },
    /// A directory takes another one for its parent than the one that has its name.
    Parent {
        /// Its name.
        at: At,
        /// What it takes for its parent.
        parent: FileId,
    },
    /// A directory has a second name: this one, which is not in its parent or comes after another that is.
    Second {
        /// The name.
        at: At,
    },
    /// A directory is in a circle of directories: no way leads there from the root.
    Circle {
        /// The one of the lowest number in the circle.
        id: FileId,
    },
    /// A file or directory has no name, and is no orphan.
    Nameless {
        /// The inode.
        id: FileId,
        /// The half of it that counts its names.
        core: Value,
    },
    /// A file has other names than it counts.
    Links {
        /// The inode.
        id: FileId,
        /// How many names it counts.
        told: u32,
        /// How many there are.
        found: u32,
        /// The half of it that counts them.
        core: Value,
    },
    /// A directory counts other names than there are in it.
    Entries {
        /// The directory.
        dir: FileId,
        /// What it counts.
        told: u64,
        /// How many there are.
        found: u64,
    },
    /// A directory counts other directories than there are in it.
    Subdirs {
        /// The directory.
        dir: FileId,
        /// What it counts.
        told: u32,
        /// How many there are.
        found: u64,
    },
    /// A file counts other extended attributes than it has.
    Xattrs {
        /// The file.
        id: FileId,
        /// What it counts.
        told: XattrTally,
        /// What it has; changes are as told.
        found: XattrTally,
    },
    /// Extended attributes of an inode that is not there.
    StrayXattrs {
        /// Its number.
        id: FileId,
    },
    /// Bytes are kept of a file that is not there, is no regular file, or has objects.
    StrayBytes {
        /// Its number.
        id: FileId,
    },
    /// The store counts other inodes than there are.
    Files {
        /// What it counts.
        told: u64,
        /// How many there are.
        found: u64,
    },
    /// A number is in use that the store would give out again.
    NextId {
        /// The first that it would give out.
        next: u64,
        /// The highest in use.
        used: FileId,
    },
    /// A regular file without names that is not on the list of orphans.
    LostOrphan {
        /// The inode.
        id: FileId,
    },
    /// On the list of orphans, but it has names, is no regular file, or is not there.
    StrayOrphan {
        /// Its number.
        id: FileId,
    },
    /// On the list of files whose objects are to be deleted, but it lives.
    DoomedAlive {
        /// The inode.
        id: FileId,
    },
    /// A note of something to be done about a file that is not there, or is no regular file.
    StrayIntent {
        /// The file.
        id: FileId,
        /// The kind of the note.
        kind: u8,
    },
}

/// A name where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct At {
    /// The directory.
    pub dir: FileId,
    /// Its place there.
    pub cookie: u64,
    /// The name.
    pub name: Bytes,
    /// What it stands for.
    pub child: FileId,
    /// The kind that it tells.
    pub kind: FileKind,
}

/// What became of a fault that was to be mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mended {
    /// It is mended.
    Yes,
    /// It is not there (any more).
    Gone,
    /// It needs a person.
    No,
}

impl Fault {
    /// Its code: a word that stays the same for ever.
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

    /// The file or directory that it is about.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Fault::Record { key } | Fault::Key { key } => match key.first() {
                Some(b'b' | b'i' | b'd' | b'x' | b'o' | b'g' | b'w') => {
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

    /// The name that it is about: its directory, and itself.
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

    /// What mending does about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Fault::Record { key } => match (key.first(), key.last()) {
                (Some(b'd'), _) => "remove the name; what it stood for gets one in /lost+found",
                (Some(b'o' | b'g' | b'w'), _) => "remove the record",
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

/// A key as people can read it: its tag, and the rest in hexadecimal digits.
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
