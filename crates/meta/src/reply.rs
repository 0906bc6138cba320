//! Arguments and results of namespace operations: attributes, layouts, ways to create, and results of changes.

use bytes::Bytes;
use types::{Attrs, DirEntry, FileId, Generation, SetAttrs};
use xdr::{Malformed, Xdr};

/// The change attribute of a directory or file before and after an operation (`change_info4`, RFC 8881 §3.3.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangeInfo {
    /// Value before the operation.
    pub before: u64,
    /// Value after the operation; equal to `before` when nothing changed.
    pub after: u64,
    /// Whether no other change happened between the two.
    pub atomic: bool,
}

/// The layout of a file as the namespace stores it; the namespace never interprets the body.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// Number of the layout kind.
    pub kind: u32,
    /// The record of the layout, at most [`types::limits::LAYOUT_RECORD_MAX`] bytes.
    pub body: Bytes,
}

impl Layout {
    /// Kind of a layout that is not decided yet. The body says how to make the real one, which
    /// [`crate::Namespace::set_layout`] puts in its place.
    pub const LATER: u32 = 0;

    /// Kind of a decided layout of a file that has no objects yet: its bytes, if any, are stored with its metadata. The
    /// body is the layout that the file will have.
    const INLINE: u32 = u32::MAX;
    /// As [`Self::INLINE`], but the bytes are being moved to objects: objects may have some of them, and the stored
    /// bytes are valid.
    const MOVING: u32 = u32::MAX - 1;

    /// Returns whether the bytes of the file are in the objects of this layout.
    pub fn is_final(&self) -> bool {
        ![Self::LATER, Self::INLINE, Self::MOVING].contains(&self.kind)
    }

    /// Returns whether the bytes of a file with this layout are stored with its metadata, where small writes may go.
    pub fn is_inline(&self) -> bool {
        [Self::LATER, Self::INLINE].contains(&self.kind)
    }

    /// Returns whether the bytes of a file with this layout are being moved to objects.
    pub fn is_moving(&self) -> bool {
        self.kind == Self::MOVING
    }

    /// Returns this layout for an inline file, whose bytes are stored with its metadata until there are too many. A
    /// layout for later stays as it is.
    pub fn inline(self) -> Self {
        if self.is_final() { Layout { kind: Self::INLINE, body: self.to_bytes() } } else { self }
    }

    /// Returns this layout for a file whose bytes are being moved to objects.
    pub(crate) fn moving(&self) -> Self {
        Layout { kind: Self::MOVING, body: self.to_bytes() }
    }

    /// Returns the decided layout, whether or not the objects have the bytes; `None` for a layout for later.
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

/// What to do when the name exists, and the first attributes of a new file (`createhow4`, RFC 8881 §18.16).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum How {
    /// An existing regular file is accepted and left as it is; the caller sets a size of zero.
    Unchecked(SetAttrs),
    /// The name must be absent.
    Guarded(SetAttrs),
    /// The name must be absent, or stand for a file that was created with this verifier.
    Exclusive([u8; 8], SetAttrs),
}

/// Everything known about a file except its names and extended attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// Attributes. `used` is an estimate from the size: only the iods know the real value.
    pub attrs: Attrs,
    /// Every object is as long on its disk as a file of this length requires. A shorter object has lost bytes. 0 if
    /// nothing is known.
    pub whole: u64,
    /// End of the bytes that are known to be on an iod's disk; 0 if none are known.
    pub written: u64,
    /// Fencing generation of its objects.
    pub generation: Generation,
    /// Layout, `None` before the first one.
    pub layout: Option<Layout>,
}

/// A new directory, symlink or special file, or a file with a new name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// The attributes of the file or directory.
    pub attrs: Attrs,
    /// The directory that received the name.
    pub dir: ChangeInfo,
}

/// A regular file that was created or found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// The file.
    pub file: FileInfo,
    /// Whether this call created the file, or an earlier call with the same verifier.
    pub created: bool,
    /// The directory.
    pub dir: ChangeInfo,
}

/// A file that lost a name to a removal or a rename.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// The attributes of the file; `nlink` no longer counts the lost name.
    pub attrs: Attrs,
    /// Whether the file is now an orphan: a regular file without a name, kept until it is reaped.
    pub orphan: bool,
}

/// How a regular file ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Completely: the file has no objects.
    Whole,
    /// The file is deleted, and its objects are queued for deletion.
    Doomed,
}

/// A name that was removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The file that it stood for.
    pub file: Replaced,
    /// How the file ended, if it was a regular file that ended with its name.
    pub end: Option<Ending>,
    /// The directory that lost the name.
    pub dir: ChangeInfo,
}

/// A file that was renamed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// The directory that lost the old name.
    pub from: ChangeInfo,
    /// The directory that has the new name.
    pub to: ChangeInfo,
    /// The file that the new name stood for before.
    pub replaced: Option<Replaced>,
}

/// A file whose attributes were changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Attributes before the change.
    pub before: Attrs,
    /// Attributes after the change; no other change happened between the two.
    pub after: Attrs,
}

/// Part of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadDir {
    /// Entries in the order of their cookies.
    pub entries: Vec<DirEntry>,
    /// Whether this is the end of the directory.
    pub eof: bool,
}

/// Whether an extended attribute must exist before it is set (`setxattr_option4`, RFC 8276 §8.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetXattr {
    /// The attribute may exist or not.
    Either,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

/// A deleted file whose objects may still exist on the iods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doomed {
    /// The inode number of the file, which is also its object number.
    pub id: FileId,
    /// Fencing generation of its objects.
    pub generation: Generation,
    /// Layout of its objects.
    pub layout: Layout,
}

/// Objects that a file does not use and that may exist on the iods: the new objects of a swap of its layout until the
/// swap is done, and then its old objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unused {
    /// The file, which may be deleted by now.
    pub file: FileId,
    /// The fencing generation of the file when this record was written; no other record of the file has it.
    pub generation: Generation,
    /// Layout of the objects.
    pub layout: Layout,
}

/// The state of a regular file that a check compares with its objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileState {
    /// The inode number.
    pub id: FileId,
    /// The size in bytes.
    pub size: u64,
    /// End of the bytes that are known to be on an iod's disk; 0 if none are known.
    pub written: u64,
    /// See [`FileInfo::whole`].
    pub whole: u64,
    /// The change attribute.
    pub change: u64,
    /// Fencing generation of its objects.
    pub generation: Generation,
    /// Layout.
    pub layout: Option<Layout>,
}

/// A name in its directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// The directory.
    pub dir: FileId,
    /// The name.
    pub name: Bytes,
    /// The file that it stands for.
    pub child: FileId,
}

/// Part of a search through all names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The names found.
    pub found: Vec<Name>,
    /// Where to continue (directory and cookie), `None` at the end.
    pub next: Option<(FileId, u64)>,
}
