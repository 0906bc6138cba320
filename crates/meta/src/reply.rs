//! What the namespace takes and gives besides the shared words: results of its operations, ways to create, layouts.

use bytes::Bytes;
use types::{Attrs, DirEntry, FileId, Generation, SetAttrs};
use xdr::{Malformed, Xdr};

/// The change attribute of a directory or file around an operation (`change_info4`, RFC 8881 §3.3.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangeInfo {
    /// Before the operation.
    pub before: u64,
    /// After it; equal to `before` when nothing changed.
    pub after: u64,
    /// Whether nothing else happened between the two.
    pub atomic: bool,
}

/// Where the bytes of a file live, as the namespace keeps it: it never looks inside.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// Number of the layout kind.
    pub kind: u32,
    /// Its record, at most [`types::limits::LAYOUT_RECORD_MAX`] bytes.
    pub body: Bytes,
}

impl Layout {
    /// The kind of a layout that is none yet: the body tells how the real one is to be made, which
    /// [`crate::Namespace::set_layout`] puts in its place.
    pub const LATER: u32 = 0;

    /// The kind of a layout that is decided, of a file that has no objects yet: its bytes, if any, are kept with its metadata. The
    /// body is the layout that it is to have.
    const INLINE: u32 = u32::MAX;
    /// As [`Self::INLINE`], but its bytes are on their way: objects may have some of them, and those kept are what counts.
    const MOVING: u32 = u32::MAX - 1;

    /// Whether this is where the bytes of a file are.
    pub fn is_final(&self) -> bool {
        ![Self::LATER, Self::INLINE, Self::MOVING].contains(&self.kind)
    }

    /// Whether the bytes of a file with this layout are kept with its metadata, and small writes may go there.
    pub fn is_inline(&self) -> bool {
        [Self::LATER, Self::INLINE].contains(&self.kind)
    }

    /// Whether the bytes of a file with this layout are on their way to objects.
    pub fn is_moving(&self) -> bool {
        self.kind == Self::MOVING
    }

    /// This layout of a file whose bytes are kept with its metadata until there are too many. One for later stays what it is.
    pub fn inline(self) -> Self {
        if self.is_final() { Layout { kind: Self::INLINE, body: self.to_bytes() } } else { self }
    }

    /// This layout of a file whose bytes are on their way.
    pub(crate) fn moving(&self) -> Self {
        Layout { kind: Self::MOVING, body: self.to_bytes() }
    }

    /// The layout that is decided, whether the bytes are there or not; `None` for one for later.
    pub fn decided(&self) -> Option<Result<Self, Malformed>> {
        match self.kind {
            Self::LATER => None,
            Self::INLINE | Self::MOVING => {
                Some(Self::from_bytes(&self.body).and_then(|inner| match inner.is_final() {
                    true => Ok(inner),
                    false => Err(Malformed::Invalid("a layout in a layout in a layout")),
                }))
            }
            _ => Some(Ok(self.clone())),
        }
    }
}

/// What to do when the name is there, and what a new file starts with (`createhow4`, RFC 8881 §18.16).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum How {
    /// An existing regular file will do; it is left as it is, a size of zero is the caller's to set.
    Unchecked(SetAttrs),
    /// The name must be absent.
    Guarded(SetAttrs),
    /// The name must be absent, or name a file made with this verifier.
    Exclusive([u8; 8], SetAttrs),
}

/// Everything known about a file but its names and extended attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// Attributes. `used` is an estimate from the size: only the iods know.
    pub attrs: Attrs,
    /// Every object is on its disk as long as a file of so many bytes demands: a shorter one has lost some. 0 where nothing is known.
    pub whole: u64,
    /// One past the last byte that is known to be on the disk of an iod; 0 if none is.
    pub written: u64,
    /// Fencing epoch of its objects.
    pub generation: Generation,
    /// Where its bytes live, `None` before the first layout.
    pub layout: Option<Layout>,
}

/// A file that was made: directory, symlink or special file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// Its attributes, or those of the file that got another name.
    pub attrs: Attrs,
    /// The directory that took the name.
    pub dir: ChangeInfo,
}

/// A regular file that was made or found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// The file.
    pub file: FileInfo,
    /// Whether this call made it (or an earlier one with the same verifier did).
    pub created: bool,
    /// The directory.
    pub dir: ChangeInfo,
}

/// A file that lost a name to a removal or a rename.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// Its attributes, the lost name already gone from `nlink`.
    pub attrs: Attrs,
    /// Whether it is now an orphan: a regular file without a name, kept until it is reaped.
    pub orphan: bool,
}

/// How a regular file ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Nothing is left of it.
    Whole,
    /// Its objects are doomed.
    Doomed,
}

/// A name that was removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// What it named.
    pub file: Replaced,
    /// How that ended, if it was a regular file and ended with its name.
    pub end: Option<Ending>,
    /// The directory that lost it.
    pub dir: ChangeInfo,
}

/// A file that was renamed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// The directory that lost the old name.
    pub from: ChangeInfo,
    /// The directory that has the new name.
    pub to: ChangeInfo,
    /// What the new name named before.
    pub replaced: Option<Replaced>,
}

/// A file whose attributes were changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Before.
    pub before: Attrs,
    /// After; nothing else happened between the two.
    pub after: Attrs,
}

/// Part of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadDir {
    /// Entries in the order of their cookies.
    pub entries: Vec<DirEntry>,
    /// Whether nothing follows.
    pub eof: bool,
}

/// Whether an extended attribute must or must not be there to be set (`setxattr_option4`, RFC 8276 §8.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetXattr {
    /// Either way.
    Either,
    /// It must be absent.
    Create,
    /// It must be there.
    Replace,
}

/// A file that is gone but whose objects may still lie on the iods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doomed {
    /// Its inode number, which is its object number.
    pub id: FileId,
    /// Fencing epoch of its objects.
    pub generation: Generation,
    /// Where its bytes live.
    pub layout: Layout,
}

/// What a check compares with the objects of a regular file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileState {
    /// Its inode number.
    pub id: FileId,
    /// Its size in bytes.
    pub size: u64,
    /// One past the last byte that is known to be on the disk of an iod; 0 if none is.
    pub written: u64,
    /// See [`FileInfo::whole`].
    pub whole: u64,
    /// Its change attribute.
    pub change: u64,
    /// Fencing epoch of its objects.
    pub generation: Generation,
    /// Where its bytes live.
    pub layout: Option<Layout>,
}

/// A name as it stands in its directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// The directory that it is in.
    pub dir: FileId,
    /// The name.
    pub name: Bytes,
    /// What it stands for.
    pub child: FileId,
}

/// Part of a search through all names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The names found.
    pub found: Vec<Name>,
    /// Where to go on (directory and cookie), `None` at the end.
    pub next: Option<(FileId, u64)>,
}
