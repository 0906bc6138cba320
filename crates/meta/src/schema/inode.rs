//! The two records of an inode. The core record (type, owner, layout) seldom changes, and batches have preconditions
//! on its value. The tail record (size, times, change attribute) changes often, and batches change the tail record by
//! merge operations.

use super::{Record, get_option, get_time, put_option, put_time};
use crate::Layout;
use bytes::Bytes;
use types::{Attrs, FileId, FileKind, Generation, Timestamp, leaves_hole, limits};
use xdr::{Malformed, Reader, Writer, Xdr};

/// The core record of an inode, with the attributes that seldom change.
///
/// An operation that depends on the core record adds a precondition on the record's value to its batch. So a change
/// that other operations must notice has to change the value of the core record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Core {
    /// Permission bits, including set-user-id, set-group-id and sticky bit.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the file.
    pub gid: u32,
    /// Link count. For a directory this is 1, and [`Tail::subdirs`] counts the links of its subdirectories.
    pub names: u32,
    /// Time at which the inode was created.
    pub btime: Timestamp,
    /// Totals of the file's extended attributes.
    pub xattrs: XattrTally,
    /// File kind, with the fields of that kind.
    pub body: Body,
}

/// Totals of the extended attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XattrTally {
    /// Number of extended attributes.
    pub count: u32,
    /// Total length of the names and values of all extended attributes, in bytes.
    pub bytes: u32,
    /// Number of changes of the extended attributes. Because of this counter, every such change also changes the core
    /// record.
    pub changes: u64,
}

/// The fields of an inode that depend on its file kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// A regular file.
    Regular {
        /// Fencing generation of the file's objects.
        generation: Generation,
        /// The layout, which says where the bytes of the file are; `None` until the first layout is set.
        layout: Option<Layout>,
        /// Verifier of the exclusive create that created the file, if any.
        verifier: Option<[u8; 8]>,
    },
    /// A directory.
    Directory {
        /// Inode number of the parent directory; the root is its own parent.
        parent: FileId,
    },
    /// A symbolic link.
    Symlink {
        /// Target path; the namespace does not interpret it.
        target: Bytes,
    },
    /// A block device node with major and minor number.
    Block(u32, u32),
    /// A character device node with major and minor number.
    Char(u32, u32),
    /// A Unix socket.
    Socket,
    /// A named pipe.
    Fifo,
}

/// The tail record of an inode, with the attributes that each write or new directory entry changes. Batches change the
/// tail record by merge operations, so concurrent batches do not conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Change attribute of the file, which grows with every change.
    pub change: u64,
    /// File size in bytes; for a directory, the number of entries.
    pub size: u64,
    /// For regular files: offset after the last byte that is known to be durable on an iod; 0 if none is known. The
    /// object that should have the byte before this offset must exist.
    pub written: u64,
    /// For regular files: a file length in bytes. The mgr knows that every object durably has the length that a file
    /// of this length requires; 0 if the mgr knows no such file length. An object that is shorter than required has
    /// lost bytes.
    pub whole: u64,
    /// Number of subdirectories of a directory.
    pub subdirs: u32,
    /// For regular files: whether the file may have holes. If so, the mgr must query the iods for the allocated space.
    pub holes: bool,
    /// Time of the last access to the file's content.
    pub atime: Timestamp,
    /// Time of the last change of the file's content.
    pub mtime: Timestamp,
    /// Time of the last change of the file's content or attributes.
    pub ctime: Timestamp,
}

impl Core {
    /// Returns the kind of the file.
    pub fn kind(&self) -> FileKind {
        match self.body {
            Body::Regular { .. } => FileKind::Regular,
            Body::Directory { .. } => FileKind::Directory,
            Body::Block(..) => FileKind::Block,
            Body::Char(..) => FileKind::Char,
            Body::Symlink { .. } => FileKind::Symlink,
            Body::Socket => FileKind::Socket,
            Body::Fifo => FileKind::Fifo,
        }
    }

    /// Returns the attributes of the inode `id` from its core record and its tail record.
    pub fn attrs(&self, id: FileId, tail: &Tail) -> Attrs {
        let kind = self.kind();
        Attrs {
            id,
            kind,
            mode: self.mode,
            nlink: if kind == FileKind::Directory { tail.subdirs.saturating_add(2) } else { self.names },
            uid: self.uid,
            gid: self.gid,
            size: tail.size,
            used: if kind == FileKind::Regular { tail.size.next_multiple_of(512) } else { 0 },
            holes: kind == FileKind::Regular && tail.holes,
            atime: tail.atime,
            mtime: tail.mtime,
            ctime: tail.ctime,
            btime: self.btime,
            change: tail.change,
            rdev: match self.body {
                Body::Block(major, minor) | Body::Char(major, minor) => (major, minor),
                _ => (0, 0),
            },
        }
    }
}

impl Tail {
    /// Flag in the stored number of subdirectories; says that the file may have holes ([`Tail::holes`]).
    const HOLES: u32 = 1 << 31;

    /// Returns the tail record of an inode of `size` bytes that is created at `now`.
    pub fn new(now: Timestamp, size: u64) -> Self {
        Tail {
            change: 1,
            size,
            written: 0,
            whole: 0,
            subdirs: 0,
            holes: leaves_hole(0, size),
            atime: now,
            mtime: now,
            ctime: now,
        }
    }
}

impl Tail {
    /// Returns the tail record with the change attribute that clients see, which exceeds every value that the mgr
    /// returned before its restart.
    ///
    /// A power failure loses changes that were not durable, and later changes then give the stored change attribute the
    /// same values again. The function adds `since`, which grows with each start of the mgr. So these values differ
    /// from the values that clients have cached.
    pub(crate) fn told(self, since: u64) -> Self {
        Tail { change: self.change.wrapping_add(since), ..self }
    }
}

impl Record for Core {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.mode);
        out.u32(self.uid);
        out.u32(self.gid);
        out.u32(self.names);
        put_time(out, self.btime);
        out.u32(self.xattrs.count);
        out.u32(self.xattrs.bytes);
        out.u64(self.xattrs.changes);
        out.u32(self.kind() as u32);
        match &self.body {
            Body::Regular { generation, layout, verifier } => {
                out.u32(generation.0);
                put_option(out, layout.as_ref(), |out, layout| layout.encode(out));
                put_option(out, verifier.as_ref(), |out, verifier| out.fixed(verifier));
            }
            Body::Directory { parent } => out.u64(parent.0),
            Body::Symlink { target } => out.opaque(target),
            Body::Block(major, minor) | Body::Char(major, minor) => {
                out.u32(*major);
                out.u32(*minor);
            }
            Body::Socket | Body::Fifo => {}
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let mode = input.u32()?;
        if mode > 0o7777 {
            return Err(Malformed::BadValue { what: "mode", value: mode });
        }
        let (uid, gid, names) = (input.u32()?, input.u32()?, input.u32()?);
        let btime = get_time(input)?;
        let xattrs = XattrTally { count: input.u32()?, bytes: input.u32()?, changes: input.u64()? };
        let value = input.u32()?;
        let body = match FileKind::from_number(value) {
            Some(FileKind::Regular) => Body::Regular {
                generation: Generation(input.u32()?),
                layout: get_option(input, Xdr::decode)?,
                verifier: get_option(input, Reader::fixed)?,
            },
            Some(FileKind::Directory) => Body::Directory { parent: FileId(input.u64()?) },
            Some(FileKind::Symlink) => Body::Symlink { target: input.opaque(limits::PATH_MAX)? },
            Some(FileKind::Block) => Body::Block(input.u32()?, input.u32()?),
            Some(FileKind::Char) => Body::Char(input.u32()?, input.u32()?),
            Some(FileKind::Socket) => Body::Socket,
            Some(FileKind::Fifo) => Body::Fifo,
            None => return Err(Malformed::BadValue { what: "file kind", value }),
        };
        Ok(Core { mode, uid, gid, names, btime, xattrs, body })
    }
}

impl Record for Tail {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.change);
        out.u64(self.size);
        out.u64(self.written);
        // The highest bit of the stored number is the holes flag. So store at most the largest subdirectory count
        // that leaves this bit free.
        out.u32(self.subdirs.min(Self::HOLES - 1) | if self.holes { Self::HOLES } else { 0 });
        put_time(out, self.atime);
        put_time(out, self.mtime);
        put_time(out, self.ctime);
        // The field `whole` is optional, because records of older versions and of directories do not have it.
        if self.whole > 0 {
            out.u64(self.whole);
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let (change, size, written, word) = (input.u64()?, input.u64()?, input.u64()?, input.u32()?);
        let (subdirs, holes) = (word & !Self::HOLES, word & Self::HOLES != 0);
        if size > limits::FILE_SIZE_MAX {
            return Err(Malformed::Invalid("size beyond the largest file"));
        }
        if written > size {
            return Err(Malformed::Invalid("written beyond the end of the file"));
        }
        let (atime, mtime, ctime) = (get_time(input)?, get_time(input)?, get_time(input)?);
        let whole = if input.remaining() > 0 { input.u64()? } else { 0 };
        if whole > size {
            return Err(Malformed::Invalid("whole beyond the end of the file"));
        }
        Ok(Tail { change, size, written, whole, subdirs, holes, atime, mtime, ctime })
    }
}
