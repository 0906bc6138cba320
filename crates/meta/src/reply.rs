//! Arguments and results of namespace operations: layouts, create modes, and attributes before and after a change.

use bytes::Bytes;
use types::{Attrs, DirEntry, FileId, Generation, SetAttrs};
use xdr::{Malformed, Xdr};

/// The change attribute of a directory or file before and after an operation (`change_info4`, RFC 8881 §3.3.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangeInfo {
    /// Change attribute of the directory or file before the operation.
    pub before: u64,
    /// Change attribute of the directory or file after the operation; equal to `before` if nothing changed.
    pub after: u64,
    /// Whether the operation was the only change between `before` and `after`.
    pub atomic: bool,
}

/// The layout of a file, as the namespace stores it. The namespace does not interpret the body of the layout.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// Kind of the layout: a `layouttype4` number if the bytes of the file are in objects, otherwise `UNASSIGNED` or
    /// another constant of [`Layout`].
    pub kind: u32,
    /// The layout record, of at most [`types::limits::LAYOUT_RECORD_MAX`] bytes.
    pub body: Bytes,
}

impl Layout {
    /// Kind of a layout for which the mgr has not chosen iods yet. The body says how to choose the iods.
    /// [`crate::Namespace::set_layout`] later replaces this layout.
    pub const UNASSIGNED: u32 = 0;

    /// Kind of a layout with chosen iods but without objects: the file is inline, so its bytes are stored with its
    /// metadata. The body is the encoded layout that the file gets when the mgr creates its objects.
    const INLINE: u32 = u32::MAX;
    /// Kind of a layout while the mgr moves the inline bytes to objects. The objects may already have some of the
    /// bytes, but the inline bytes remain the valid copy.
    const MOVING: u32 = u32::MAX - 1;

    /// Returns whether the bytes of a file with this layout are in objects.
    pub fn is_final(&self) -> bool {
        ![Self::UNASSIGNED, Self::INLINE, Self::MOVING].contains(&self.kind)
    }

    /// Returns whether the bytes of a file with this layout are stored with the file's metadata and may be written
    /// there.
    pub fn is_inline(&self) -> bool {
        [Self::UNASSIGNED, Self::INLINE].contains(&self.kind)
    }

    /// Returns whether the mgr is moving the inline bytes of a file with this layout to objects.
    pub fn is_moving(&self) -> bool {
        self.kind == Self::MOVING
    }

    /// Returns this layout in the form for an inline file, whose bytes are stored with its metadata. A layout of kind
    /// [`Self::UNASSIGNED`] is returned unchanged.
    pub fn inline(self) -> Self {
        if self.is_final() { Layout { kind: Self::INLINE, body: self.to_bytes() } } else { self }
    }

    /// Returns this layout in the form for a file whose inline bytes the mgr is moving to objects.
    pub(crate) fn moving(&self) -> Self {
        Layout { kind: Self::MOVING, body: self.to_bytes() }
    }

    /// Returns the layout that names the iods of the file, whether or not its objects exist yet. Returns `None` for a
    /// layout of kind [`Self::UNASSIGNED`], which names no iods.
    pub fn decided(&self) -> Option<Result<Self, Malformed>> {
        match self.kind {
            Self::UNASSIGNED => None,
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

/// The mode of a create: what to do if the name exists, and the initial attributes of a new file (`createhow4`, RFC
/// 8881 §18.16).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CreateMode {
    /// If the name refers to a regular file, the create succeeds and leaves this file unchanged. If the client requests
    /// a truncate, the caller truncates the file.
    Unchecked(SetAttrs),
    /// The create fails if the name exists.
    Guarded(SetAttrs),
    /// The create fails if the name exists, unless an exclusive create with this verifier created the file of this
    /// name.
    Exclusive([u8; 8], SetAttrs),
}

/// Everything that the namespace stores about a file except its names and extended attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// The attributes of the file. The attribute `used` is an estimate from the file size, because only the iods know
    /// the allocated space.
    pub attrs: Attrs,
    /// A file length in bytes. The mgr knows that every object durably has the length that a file of this length
    /// requires; 0 if the mgr knows no such file length. An object that is shorter than required has lost bytes.
    pub whole: u64,
    /// Offset after the last byte of the file that is known to be durable on an iod; 0 if none is known.
    pub written: u64,
    /// Fencing generation of the file's objects.
    pub generation: Generation,
    /// The layout; `None` until the first layout is set.
    pub layout: Option<Layout>,
}

/// The result of MKDIR, SYMLINK, MKNOD or LINK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// The attributes of the new inode, or of the file with the new name.
    pub attrs: Attrs,
    /// Change attribute of the directory that received the name.
    pub dir: ChangeInfo,
}

/// The result of a create: the regular file that was created or found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// Attributes, layout and fencing generation of the file.
    pub file: FileInfo,
    /// Whether this call created the file, or an earlier call with the same verifier created it.
    pub created: bool,
    /// Change attribute of the directory in which the file was created or found.
    pub dir: ChangeInfo,
}

/// A file that lost a name in a remove or a rename.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// The attributes of the file; the link count excludes the lost name.
    pub attrs: Attrs,
    /// Whether the file is now an orphan: a regular file without a name that the mgr deletes after the last client has
    /// closed it.
    pub orphan: bool,
}

/// How a regular file was deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The file had no objects, so the mgr has nothing more to delete.
    Whole,
    /// The inode is deleted, and the objects are in the list of doomed files for later deletion.
    Doomed,
}

/// The result of REMOVE: the file that lost the name, and the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The file whose directory entry REMOVE removed.
    pub file: Replaced,
    /// How the file was deleted, if REMOVE deleted a regular file together with its last name.
    pub end: Option<Ending>,
    /// Change attribute of the directory from which REMOVE removed the entry.
    pub dir: ChangeInfo,
}

/// The result of RENAME: the change attributes of both directories, and the file that lost the target name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// Change attribute of the source directory.
    pub from: ChangeInfo,
    /// Change attribute of the target directory.
    pub to: ChangeInfo,
    /// The file that lost the target name, if the rename replaced an existing entry.
    pub replaced: Option<Replaced>,
}

/// The result of an operation that changes the attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Attributes of the file before the change.
    pub before: Attrs,
    /// Attributes of the file after the change. The operation was the only change between `before` and `after`.
    pub after: Attrs,
}

/// The entries of a directory that one READDIR returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadDir {
    /// Directory entries in ascending order of cookies.
    pub entries: Vec<DirEntry>,
    /// Whether the entries include the last entry of the directory.
    pub eof: bool,
}

/// Whether an extended attribute must exist before it is set (`setxattr_option4`, RFC 8276 §8.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetXattr {
    /// The operation sets the attribute whether or not it exists.
    Either,
    /// The operation fails if the attribute exists.
    Create,
    /// The operation fails if the attribute does not exist.
    Replace,
}

/// A doomed file: a deleted file whose objects may still exist on iods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doomed {
    /// Inode number of the file, which is part of the ids of the file's objects.
    pub id: FileId,
    /// Fencing generation of the file's objects.
    pub generation: Generation,
    /// Layout of the file's objects.
    pub layout: Layout,
}

/// Objects that a file does not use and that may exist on iods: during a swap of the layout the new objects, after the
/// swap the old objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unused {
    /// Inode number of the file, which may be deleted already.
    pub file: FileId,
    /// Fencing generation of the file when this record was written. No two records of unused objects of a file have the
    /// same generation.
    pub generation: Generation,
    /// Layout of the unused objects.
    pub layout: Layout,
}

/// The state of a regular file that a check compares with the file's objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileState {
    /// Inode number of the file.
    pub id: FileId,
    /// File size in bytes.
    pub size: u64,
    /// Offset after the last byte of the file that is known to be durable on an iod; 0 if none is known.
    pub written: u64,
    /// File length for which the mgr knows that every object durably has the required length; 0 if the mgr knows no
    /// such length. See [`FileInfo::whole`].
    pub whole: u64,
    /// Change attribute of the file.
    pub change: u64,
    /// Fencing generation of the file's objects.
    pub generation: Generation,
    /// The layout; `None` until the first layout is set.
    pub layout: Option<Layout>,
}

/// A directory entry: a name, its directory and its file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// Inode number of the directory.
    pub dir: FileId,
    /// The name of the directory entry.
    pub name: Bytes,
    /// Inode number of the file that the name refers to.
    pub child: FileId,
}

/// The result of one call of a search through all directory entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The directory entries that match the search.
    pub found: Vec<Name>,
    /// The position (directory and cookie) at which the next call continues; `None` at the end.
    pub next: Option<(FileId, u64)>,
}
