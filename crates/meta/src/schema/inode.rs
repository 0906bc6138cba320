//! The two records of an inode: the core, which seldom changes and is expected by value, and the tail, which changes
//! often and by merges.

use super::{Record, get_option, get_time, put_option, put_time};
use crate::Layout;
use bytes::Bytes;
use types::{Attrs, FileId, FileKind, Generation, Timestamp, leaves_hole, limits};
use xdr::{Malformed, Reader, Writer, Xdr};

/// The half of an inode that seldom changes.
///
/// An operation that relies on the core expects it to have the same value at the commit. So the value must differ after
/// every change that an operation may rely on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Core {
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; 1 for a directory, whose other links are counted in the [`Tail`].
    pub names: u32,
    /// Creation time.
    pub btime: Timestamp,
    /// Totals of its extended attributes.
    pub xattrs: XattrTally,
    /// Kind of the file, with the fields of that kind.
    pub body: Body,
}

/// Totals of the extended attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XattrTally {
    /// Number of attributes.
    pub count: u32,
    /// Bytes of names and values.
    pub bytes: u32,
    /// How often the attributes were changed.
    pub changes: u64,
}

/// The fields that only one kind of file has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// Regular file.
    Regular {
        /// Fencing generation of its objects.
        generation: Generation,
        /// Layout, which says where its bytes are.
        layout: Option<Layout>,
        /// Verifier of the exclusive create that created the file.
        verifier: Option<[u8; 8]>,
    },
    /// Directory.
    Directory {
        /// Parent directory; the root is its own parent.
        parent: FileId,
    },
    /// Symbolic link.
    Symlink {
        /// Target path, never interpreted.
        target: Bytes,
    },
    /// Block device node.
    Block(u32, u32),
    /// Character device node.
    Char(u32, u32),
    /// Socket node.
    Socket,
    /// Named pipe.
    Fifo,
}

/// The half of an inode that every write or added name changes, by merging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Change attribute.
    pub change: u64,
    /// Length in bytes; of a directory, its number of entries.
    pub size: u64,
    /// Regular files: the byte before this offset was written and is on an iod's disk; 0 while nothing is known. So the
    /// object that holds this byte must exist.
    pub written: u64,
    /// Regular files: every object is as long on its disk as a file of this length requires. A shorter object has lost
    /// bytes. 0 while nothing is known.
    pub whole: u64,
    /// Number of subdirectories.
    pub subdirs: u32,
    /// Regular files: whether the file may have holes, so that the mgr must ask the iods how much space it takes.
    pub holes: bool,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes.
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

    /// Returns the attributes of the file whose tail is `tail`.
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
    /// Flag in the stored number of subdirectories, which is smaller: the file may have holes.
    const HOLES: u32 = 1 << 31;

    /// Returns the tail of a file created at `now` with this length.
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
    /// Returns the tail as clients see it: its change attribute is above every one reported by an earlier start of the
    /// mgr.
    ///
    /// A power failure loses changes that did not wait for the disk. Later changes then count up to the same numbers
    /// again. Clients must not take the new numbers for those that they saw before.
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
        // Larger numbers do not fit and are stored as the largest one.
        out.u32(self.subdirs.min(Self::HOLES - 1) | if self.holes { Self::HOLES } else { 0 });
        put_time(out, self.atime);
        put_time(out, self.mtime);
        put_time(out, self.ctime);
        // Records of older stores end before this field, and records of directories too.
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
