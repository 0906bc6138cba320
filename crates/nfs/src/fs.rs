//! The trait [`FileSystem`]: the interface between the NFS server and the store of names, attributes and file bytes.

use crate::exports::{Place, Terms, View};
use bytes::Bytes;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;
use types::{Attrs, ByteRange, Cred, DirEntry, FileId, Fsid, Renaming, SetAttrs, StatFs, Status, Timestamp, Verifier};
use xdr::Segments;

/// The result of the methods of [`FileSystem`]; the server converts a [`Status`] to an NFS error.
pub type Result<T> = std::result::Result<T, Status>;

/// The context of a call to [`FileSystem`]: the caller's credentials, the time, and the protocol version.
#[derive(Clone, Debug, Default)]
pub struct Ctx {
    /// The caller's credentials for permission checks, after the export has mapped them.
    pub cred: Cred,
    /// The exports that the caller sees.
    pub view: View,
    /// The export of the current filehandle.
    pub place: Place,
    /// The time at which the request arrived, by the server's clock.
    pub now: Timestamp,
    /// The client id (`clientid4`) of the session that sent the request; 0 for work of the server itself, such as
    /// freeing orphans and ending expired leases.
    pub client: u64,
    /// The NFSv4 minor version of the request: 1 or 2.
    pub minor: u32,
    /// The current filehandle as the client sent it. A data server reads the client's rights from this filehandle.
    /// Empty on other servers.
    pub handle: Bytes,
    /// Whether the server may reply before a change of names, attributes or inline data is durable. The client
    /// permits this with the COMPOUND tag [`SOON`]. When a program asks for durability, the client sends a request
    /// for which the server calls [`FileSystem::settle`].
    pub soon: bool,
}

/// The COMPOUND tag by which Weir's client permits the server to reply before changes are durable. The protocol gives
/// tags no meaning (RFC 8881 §16.2.3).
pub const SOON: &[u8] = b"weir:soon";

/// Attributes with one value for all files of an export: limits and capabilities (RFC 8881 §5.6 to §5.12).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsInfo {
    /// Lease time in seconds (attribute `lease_time`).
    pub lease_secs: u32,
    /// Largest file size in bytes (attribute `maxfilesize`).
    pub max_file_size: u64,
    /// Largest READ payload in bytes (attribute `maxread`).
    pub max_read: u64,
    /// Largest WRITE payload in bytes (attribute `maxwrite`).
    pub max_write: u64,
    /// Largest number of hard links of one file (attribute `maxlink`).
    pub max_link: u32,
    /// Longest file name in bytes (attribute `maxname`).
    pub max_name: u32,
    /// Layout types that the server grants, best type first; empty if the server grants no layouts (attribute
    /// `fs_layout_types`).
    pub layout_types: Vec<u32>,
    /// Preferred block size for I/O under a layout, in bytes (attribute `layout_blksize`).
    pub layout_block: u32,
    /// Whether the file system stores `user.` extended attributes (attribute `xattr_support`, RFC 8276 §8.2).
    pub xattrs: bool,
    /// Whether [`FileSystem::threshold`] returns thresholds, so that the server supports the attribute `mdsthreshold`.
    pub thresholds: bool,
}

/// The change attribute of a file or directory before and after an operation (`change_info4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// The change attribute before the operation.
    pub before: u64,
    /// The change attribute after the operation.
    pub after: u64,
    /// Whether `before` and `after` are from one atomic operation, so that no other change happened between them.
    pub atomic: bool,
}

/// Permission bits of ACCESS (RFC 8881 §18.1, RFC 8276 §8.5). [`FileSystem::access`] takes and returns sets of these
/// bits.
pub mod access {
    /// ACCESS4_READ: read file data, or read a directory.
    pub const READ: u32 = 0x01;
    /// ACCESS4_LOOKUP: look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// ACCESS4_MODIFY: overwrite file data, or change directory entries.
    pub const MODIFY: u32 = 0x04;
    /// ACCESS4_EXTEND: write new file data, or add directory entries.
    pub const EXTEND: u32 = 0x08;
    /// ACCESS4_DELETE: delete a directory entry.
    pub const DELETE: u32 = 0x10;
    /// ACCESS4_EXECUTE: execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// ACCESS4_XAREAD: read the value of an extended attribute.
    pub const XAREAD: u32 = 0x40;
    /// ACCESS4_XAWRITE: set or remove an extended attribute.
    pub const XAWRITE: u32 = 0x80;
    /// ACCESS4_XALIST: list extended attributes.
    pub const XALIST: u32 = 0x100;
    /// All ACCESS bits that permit changes.
    pub const CHANGES: u32 = MODIFY | EXTEND | DELETE | XAWRITE;
    /// All ACCESS bits.
    pub const ALL: u32 = 0x1ff;
}

/// The type of object that [`FileSystem::create`] creates. [`FileSystem::open_create`] creates regular files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CreateKind {
    /// A directory (NF4DIR).
    Directory,
    /// A symbolic link (NF4LNK) with its target, 1 to `PATH_MAX` bytes.
    Symlink(Bytes),
    /// A named pipe (NF4FIFO).
    Fifo,
    /// A socket (NF4SOCK).
    Socket,
    /// A block device node (NF4BLK) with major and minor number.
    Block(u32, u32),
    /// A character device node (NF4CHR) with major and minor number.
    Char(u32, u32),
}

/// The result of creating an object that is not a regular file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created {
    /// The attributes of the new object, with all requested attributes applied.
    pub attrs: Attrs,
    /// The change attribute of the parent directory before and after the creation.
    pub change: Change,
}

/// What an OPEN that requests creation does with an existing file (`createmode4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenHow {
    /// UNCHECKED4: open the file if it exists.
    Unchecked,
    /// GUARDED4: fail with `Exist` if the file exists.
    Guarded,
    /// EXCLUSIVE4 and EXCLUSIVE4_1: open the existing file only if it was created with this verifier; otherwise fail
    /// with `Exist`. The file system stores the verifier durably, until a SETATTR changes the new file's attributes
    /// (RFC 8881 §18.16.3).
    Exclusive(Verifier),
}

/// The result of an OPEN with creation: the new or the existing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The attributes of the file. The OPEN does not change the attributes of an existing file.
    pub attrs: Attrs,
    /// Whether this OPEN created the file. A repeated exclusive create with the same verifier counts as created.
    pub created: bool,
    /// The change attribute of the parent directory before and after the OPEN.
    pub change: Change,
}

/// A function of the server, which the file system calls when a regular file loses its last name. The function returns
/// whether the file system may free the file at once, because no client has the file open or is about to open the file.
/// One REMOVE or RENAME may call the function for several files.
pub type Ends<'a> = &'a (dyn Fn(FileId) -> bool + Sync);

/// The result of [`FileSystem::remove`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The file whose name was removed.
    pub id: FileId,
    /// Whether the file has lost its last name and is now an orphan, which keeps its inode until [`FileSystem::reap`].
    pub orphaned: bool,
    /// The change attribute of the directory before and after the removal.
    pub change: Change,
}

/// The result of [`FileSystem::rename`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// The change attribute of the source directory before and after the rename.
    pub from: Change,
    /// The change attribute of the target directory before and after the rename.
    pub to: Change,
    /// The file that had the target name before the rename, if there was such a file.
    pub replaced: Option<Replaced>,
}

/// A file that lost a name because a rename replaced its directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// The id of the file.
    pub id: FileId,
    /// Whether the file has lost its last name and is now an orphan (see [`Removed::orphaned`]).
    pub orphaned: bool,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The free space of the iods in bytes, from which the server computes how many bytes of replaced files it keeps.
    /// The server uses this value only if the file is an orphan and not empty.
    pub room: u64,
}

/// A page of directory entries, the result of [`FileSystem::readdir`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DirPage {
    /// The entries in ascending order of their cookies, without `.` and `..`.
    pub entries: Vec<DirEntry>,
    /// Whether the page contains the last entry of the directory.
    pub eof: bool,
}

/// The result of [`FileSystem::read`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadOut {
    /// The bytes read; fewer than requested only at the end of the file.
    pub data: Segments,
    /// Whether the read has reached the end of the file.
    pub eof: bool,
}

/// The durability of a write (`stable_how4`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stability {
    /// UNSTABLE4: a crash may lose the bytes until the next COMMIT.
    Unstable,
    /// DATA_SYNC4: the bytes and the file size are durable.
    DataSync,
    /// FILE_SYNC4: the bytes and all attributes are durable.
    FileSync,
}

/// The result of [`FileSystem::write`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteOut {
    /// Number of bytes written, from the front of the payload; 0 only if the payload was empty.
    pub count: u32,
    /// The durability of the written bytes, at least as strong as requested.
    pub stable: Stability,
    /// The write verifier of the server that holds the unstable bytes (RFC 8881 §18.3).
    pub verifier: Verifier,
}

/// What SETXATTR does with an existing extended attribute (`setxattr_option4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrHow {
    /// SETXATTR4_EITHER: create the extended attribute or replace its value.
    Either,
    /// SETXATTR4_CREATE: fail with `Exist` if the extended attribute exists.
    Create,
    /// SETXATTR4_REPLACE: fail with `NoXattr` if the extended attribute does not exist.
    Replace,
}

/// What SEEK searches for: data or a hole (`data_content4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The next byte that is not in a hole (NFS4_CONTENT_DATA).
    Data,
    /// The next byte in a hole (NFS4_CONTENT_HOLE); the end of the file counts as a hole.
    Hole,
}

/// The result of [`FileSystem::seek`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekOut {
    /// The offset of the byte found.
    pub offset: u64,
    /// Whether the offset is at the end of the file.
    pub eof: bool,
}

/// Whether a layout is for reading only, or for reading and writing (`layoutiomode4` without ANY).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Iomode {
    /// LAYOUTIOMODE4_READ: the layout is for reading only.
    Read,
    /// LAYOUTIOMODE4_RW: the layout is for reading and writing.
    ReadWrite,
}

/// The arguments of LAYOUTGET, for [`FileSystem::layout_get`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutAsk {
    /// The file whose layout the client requests.
    pub file: FileId,
    /// The requested layout type (`layouttype4`), one of [`FsInfo::layout_types`].
    pub kind: u32,
    /// The requested iomode.
    pub iomode: Iomode,
    /// Whether the client has the file open for reading. An open only for writing gives no right to read, not even
    /// under a layout for reading and writing.
    pub readable: bool,
    /// The requested byte range. Length `u64::MAX` reaches to the end of the file, even if the file grows.
    pub range: ByteRange,
    /// The smallest length, from `range.offset`, that the client can use (`loga_minlength`).
    pub min_len: u64,
    /// The largest layout body that the client accepts, in bytes (`loga_maxcount`).
    pub max_body: usize,
}

/// A layout that the file system grants, the result of [`FileSystem::layout_get`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutOut {
    /// The byte range that the layout covers; normally [`ByteRange::ALL`].
    pub range: ByteRange,
    /// The iomode of the layout: as requested, or `ReadWrite` although the client requested `Read`.
    pub iomode: Iomode,
    /// The layout type (`layouttype4`).
    pub kind: u32,
    /// The layout body (`loc_body`), which the NFS server does not interpret.
    pub body: Bytes,
    /// Whether the client must return the layout before its last CLOSE (`logr_return_on_close`).
    pub return_on_close: bool,
}

/// Why a client no longer holds a layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LayoutGone {
    /// The client sent LAYOUTRETURN for the layout.
    Returned {
        /// The layout type (`layouttype4`).
        kind: u32,
        /// The body of LAYOUTRETURN (`lrf_body`).
        body: Bytes,
    },
    /// The layout ended and needs no fence. There are four cases: the client closed the file; the client answered a
    /// recall with NFS4ERR_NOMATCHING_LAYOUT; the client restarted and the layout was only for reading; the server
    /// freed the file.
    Forgotten,
    /// The server revoked the layout. The file system must fence the layout, so that data servers refuse further I/O
    /// under it.
    Revoked,
}

/// Thresholds for file and request sizes, below which a client sends I/O to this server and not to the data servers
/// (attribute `mdsthreshold`, RFC 8881 §3.3.22).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// The layout type that the thresholds apply to.
    pub kind: u32,
    /// File size threshold for reads, in bytes. The client reads smaller files through this server.
    pub read_size: Option<u64>,
    /// File size threshold for writes, in bytes. The client writes smaller files through this server.
    pub write_size: Option<u64>,
    /// Request size threshold for reads, in bytes. The client sends smaller READs to this server.
    pub read_iosize: Option<u64>,
    /// Request size threshold for writes, in bytes. The client sends smaller WRITEs to this server.
    pub write_iosize: Option<u64>,
}

/// The policy of a file as text. The NFS server sends the text to the client without interpreting the text
/// (`docs/native-protocol.md`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PolicyText {
    /// The policy settings of the server for all files of an export.
    pub server: Bytes,
    /// The policy settings in the extended attributes of the file or directory.
    pub own: Bytes,
}

/// The durable record of a client, which permits the client to reclaim its state after a server restart (RFC 8881
/// §8.4.2.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientRecord {
    /// The client owner (`co_ownerid`), 1 to 1024 bytes; the key of the record.
    pub owner: Bytes,
    /// The client id that the last confirming CREATE_SESSION of this client owner used.
    pub clientid: u64,
}

/// A file system that the NFS server exports: names, attributes, bytes and layouts.
///
/// Methods that take names or attributes check the permissions of `ctx.cred`. For READ, WRITE, COMMIT, SEEK, ALLOCATE
/// and layouts, the server checks permissions before the call, by an open or by [`FileSystem::access`].
///
/// The server passes names as the client sent them. A method refuses a bad name with `Inval` (empty), `BadName` or
/// `NameTooLong`. Every method returns `Stale` for a file that no longer exists.
pub trait FileSystem: Send + Sync + 'static {
    /// Returns the identity of the file system. The server uses this identity as server scope, and as `fsid` of the
    /// export of the root directory.
    fn fsid(&self) -> Fsid;

    /// Returns the attribute `fsid` of an export. No two exports have the same value (RFC 8881 §7.7).
    fn fsid_in(&self, _place: Place) -> Fsid {
        self.fsid()
    }

    /// Returns the root directory that this caller sees (PUTROOTFH), and the export of the directory.
    fn root(&self, view: View) -> (FileId, Place);

    /// Returns the attributes that have one value for all files of an export. Many requests call this method, so it
    /// must be cheap.
    fn info(&self, place: Place) -> FsInfo;

    /// Returns every layout type that this server implements, even if it grants no such layout now. The server refuses
    /// other types with UNKNOWN_LAYOUTTYPE, an error that makes writes of the Linux client fail.
    fn layout_types(&self) -> Vec<u32>;

    /// Returns the filehandle of a file: at most `FILEHANDLE_MAX` bytes. A file always has the same filehandle in one
    /// export.
    fn encode_handle(&self, file: FileId, place: Place) -> Bytes;

    /// Returns the file of a filehandle, and the export through which the client reached the file. The server calls
    /// this for every filehandle that a client sends.
    ///
    /// # Errors
    /// `BadHandle` if this server never issued these bytes, `Stale` if the file no longer exists or has left the
    /// export, `Access` if the caller may not see the export.
    fn decode_handle(&self, view: View, handle: &[u8]) -> Result<(FileId, Place)>;

    /// Returns the access conditions of an export. The server calls this method for every filehandle, so it must be
    /// cheap.
    fn terms(&self, _place: Place) -> Terms {
        Terms::default()
    }

    /// Returns the export `place` with its current export epoch ([`Place::epoch`]). The epoch in `place` may be older,
    /// because it comes from a filehandle that the client may have got before the list of exports changed.
    fn reached_now(&self, place: Place) -> Place {
        place
    }

    /// Returns the export through which a client reaches `child`, an entry of a directory in the export `ctx.place`:
    /// another export if `child` is its root directory, otherwise `ctx.place`. Fails with `Access` if the caller may
    /// not see the other export.
    fn descend(&self, ctx: &Ctx, _child: FileId) -> Result<Place> {
        Ok(ctx.place)
    }

    /// Returns the export through which the parent directory of `dir` is reached. `ctx.place` is the export of `dir`.
    fn ascend(&self, ctx: &Ctx, _dir: FileId) -> Result<Place> {
        Ok(ctx.place)
    }

    /// Returns the attributes of a file. The caller needs no permission.
    fn getattr(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Attrs>> + Send;

    /// Returns whether the attributes in the directory entry may be out of date, because clients write the file on the
    /// data servers. [`Self::getattr`] then returns newer attributes.
    fn is_written_elsewhere(&self, _ctx: &Ctx, _file: FileId) -> bool {
        false
    }

    /// Corrects the attribute `space_used` (RFC 8881 §5.8.2.35) in `_files` for each file that may have holes. The
    /// call queries the iods, so the server makes the call only if a client requests `space_used`. If an iod does not
    /// reply soon, the attribute of files on this iod stays unchanged.
    fn correct_space(&self, _files: &mut [&mut Attrs]) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Changes attributes of a file, and returns all its attributes after the change. `opened` means that the caller
    /// holds the file open for writing, so the caller may set the size even if the mode of the file does not permit
    /// writing.
    fn setattr(
        &self,
        ctx: &Ctx,
        file: FileId,
        set: SetAttrs,
        opened: bool,
    ) -> impl Future<Output = Result<Attrs>> + Send;

    /// Returns the subset of the [`access`] bits `asked` that the caller has on a file.
    fn access(&self, ctx: &Ctx, file: FileId, asked: u32) -> impl Future<Output = Result<u32>> + Send;

    /// Looks up a name in a directory. Fails with `NotDir` or `Symlink` if `dir` is not a directory.
    fn lookup(&self, ctx: &Ctx, dir: FileId, name: &Bytes) -> impl Future<Output = Result<Attrs>> + Send;

    /// Returns the attributes of the parent directory of `dir`; `NoEnt` for the root directory.
    fn lookup_parent(&self, ctx: &Ctx, dir: FileId) -> impl Future<Output = Result<Attrs>> + Send;

    /// Returns at most `max` entries whose cookies are greater than `after` (0: from the first entry). Returns at least
    /// one entry, unless the directory has no more entries. Cookies are stable and greater than 2, and need no cookie
    /// verifier.
    fn readdir(&self, ctx: &Ctx, dir: FileId, after: u64, max: usize) -> impl Future<Output = Result<DirPage>> + Send;

    /// Creates an object that is not a regular file, and sets its attributes.
    fn create(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        kind: CreateKind,
        set: SetAttrs,
    ) -> impl Future<Output = Result<Created>> + Send;

    /// Creates a regular file, or returns the existing object of this name, of any type. For an existing object, the
    /// call ignores `set` and checks no permission.
    ///
    /// A new file is durable when the call returns. A new file with `unsynced` becomes durable with its next
    /// [`Self::commit`] or stable [`Self::write`].
    fn open_create(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        how: OpenHow,
        set: SetAttrs,
        unsynced: bool,
    ) -> impl Future<Output = Result<Opened>> + Send;

    /// Removes a name of a file, or an empty directory. If a file loses its last name and the function `ends` returns
    /// true for the file, the call frees the file at once, as [`FileSystem::reap`] does. Otherwise the file without a
    /// name becomes an orphan.
    fn remove(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        ends: Ends<'_>,
    ) -> impl Future<Output = Result<Removed>> + Send;

    /// Renames a directory entry. The rename replaces an existing target if POSIX permits it, unless `how` (the flags
    /// of renameat2(2)) says otherwise.
    fn rename(
        &self,
        ctx: &Ctx,
        from: (FileId, &Bytes),
        to: (FileId, &Bytes),
        how: Renaming,
    ) -> impl Future<Output = Result<Renamed>> + Send;

    /// Adds a hard link `name` in `dir` to a file.
    fn link(&self, ctx: &Ctx, file: FileId, dir: FileId, name: &Bytes) -> impl Future<Output = Result<Change>> + Send;

    /// Returns the target of a symbolic link; `Inval` for any other object.
    fn readlink(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Bytes>> + Send;

    /// Reads up to `len` bytes from `offset`. If `offset` is at or beyond the end of the file, returns no bytes and
    /// sets `eof`.
    fn read(&self, ctx: &Ctx, file: FileId, offset: u64, len: u32) -> impl Future<Output = Result<ReadOut>> + Send;

    /// Writes `data` at `offset`, at least as durably as `stable`.
    fn write(
        &self,
        ctx: &Ctx,
        file: FileId,
        offset: u64,
        data: Bytes,
        stable: Stability,
    ) -> impl Future<Output = Result<WriteOut>> + Send;

    /// Copies the first bytes of `_range`, at least one byte, to offset `_target` of another file, as an unstable
    /// write. The iods copy the bytes without this server. Returns `None` if the iods cannot copy the bytes; the NFS
    /// server then reads and writes the bytes itself.
    fn copy(
        &self,
        _ctx: &Ctx,
        _from: FileId,
        _range: ByteRange,
        _to: FileId,
        _target: u64,
    ) -> impl Future<Output = Result<Option<WriteOut>>> + Send {
        async { Ok(None) }
    }

    /// Makes unstable writes of a range durable, and returns the write verifier. If this verifier differs from the
    /// verifier that an unstable write returned, the written data may be lost (RFC 8881 §18.3).
    fn commit(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<Verifier>> + Send;

    /// Frees the inode and the bytes of an orphan that no client has open. The server calls this at most once for
    /// each orphan, possibly long after the file lost its last name.
    fn reap(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<()>> + Send;

    /// Informs the file system that a client is about to release a byte-range lock. The next lock holder must see the
    /// data that this client wrote under the lock.
    fn unlocking(&self, _ctx: &Ctx, _file: FileId) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Informs the file system that a client has closed a file; `_wrote` says whether the open permitted writing. The
    /// file system can now query the data servers for the final file size.
    fn closed(&self, _ctx: &Ctx, _file: FileId, _wrote: bool) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns the capacity of the file system: bytes and inodes, free and in total.
    fn statfs(&self, ctx: &Ctx) -> impl Future<Output = Result<StatFs>> + Send;

    /// Returns the value of an extended attribute. The name comes without the prefix `user.`; `NoXattr` if the
    /// attribute does not exist.
    fn getxattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> impl Future<Output = Result<Bytes>> + Send;

    /// Sets an extended attribute, and returns the file's change attribute before and after the operation.
    fn setxattr(
        &self,
        ctx: &Ctx,
        file: FileId,
        name: &Bytes,
        value: Bytes,
        how: XattrHow,
    ) -> impl Future<Output = Result<Change>> + Send;

    /// Returns the names of all extended attributes, without the prefix `user.`, in a stable order.
    fn listxattrs(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Vec<Bytes>>> + Send;

    /// Removes an extended attribute, and returns the file's change attribute before and after the operation. `NoXattr`
    /// if the attribute does not exist.
    fn removexattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> impl Future<Output = Result<Change>> + Send;

    /// Returns the first offset at or after `offset` where the file has data or a hole; `what` says which of the two.
    /// `NxIo` if `offset` is at or beyond the end of the file, or if no data follows.
    fn seek(&self, ctx: &Ctx, file: FileId, offset: u64, what: Content)
    -> impl Future<Output = Result<SeekOut>> + Send;

    /// Reserves disk space for a range, and extends a shorter file to the end of the range.
    fn allocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<()>> + Send;

    /// Extends a file to at least `end` bytes, as an unstable write of no bytes. The call never shortens the file, even
    /// if another client extends the file at the same time. A later COMMIT makes the size durable, unless the write
    /// verifier has changed by then.
    fn extend(&self, ctx: &Ctx, file: FileId, end: u64) -> impl Future<Output = Result<()>> + Send;

    /// Punches a hole: the range reads as zeros, and the iods free its space. The file size does not change.
    fn deallocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<()>> + Send;

    /// Grants a layout to a client (`ctx.client`). `NoLayout` if the client must send its I/O to this server instead;
    /// `Delay` if the client must retry.
    fn layout_get(&self, ctx: &Ctx, ask: LayoutAsk) -> impl Future<Output = Result<LayoutOut>> + Send;

    /// Returns the address of a data server: the body of `device_addr4` for this layout type. `NoEnt` if the device id
    /// is unknown.
    fn device_info(&self, ctx: &Ctx, device: [u8; 16], kind: u32) -> impl Future<Output = Result<Bytes>> + Send;

    /// Applies a LAYOUTCOMMIT, in which a client states the extent and time of its writes under a layout. `body`
    /// contains the layout type and the body of the layout update (`layoutupdate4`); `last_byte` is the offset of the
    /// last byte written. A LAYOUTCOMMIT never shortens the file. Returns the new file size if the size changed.
    fn layout_commit(
        &self,
        ctx: &Ctx,
        file: FileId,
        body: (u32, Bytes),
        last_byte: Option<u64>,
        mtime: Option<Timestamp>,
    ) -> impl Future<Output = Result<Option<u64>>> + Send;

    /// Informs the file system that `client` no longer holds a layout of this range and iomode. `client` may differ
    /// from `ctx.client`, because a request of another client can make the server revoke the layout.
    fn layout_gone(
        &self,
        ctx: &Ctx,
        client: u64,
        file: FileId,
        iomode: Iomode,
        range: ByteRange,
        why: LayoutGone,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Informs the file system that `_count` operations of a client on a file failed at data servers; `_first` is the
    /// first of these errors.
    fn layout_faults(&self, _ctx: &Ctx, _file: FileId, _first: &dyn Debug, _count: usize) {}

    /// Returns the size thresholds of a file that the client has just opened, below which the client sends I/O to this
    /// server. `_dir` is the directory of the file's name, if known. The server calls this only if
    /// [`FsInfo::thresholds`] is set.
    fn threshold(
        &self,
        _ctx: &Ctx,
        _file: FileId,
        _dir: Option<FileId>,
    ) -> impl Future<Output = Result<Option<Threshold>>> + Send {
        async { Ok(None) }
    }

    /// Returns the policy settings of the server and the policy settings of the file or directory itself. Returns
    /// `None` if the file system has no policies.
    fn policy(&self, _ctx: &Ctx, _file: FileId) -> Result<Option<PolicyText>> {
        Ok(None)
    }

    /// Waits until every change to which the server has already replied is durable (durability barrier). Returns an
    /// epoch number. If the number differs from the number of an earlier call, the server may have lost changes to
    /// which it had already replied. Returns `None` if the server always makes a change durable before it replies.
    fn settle(&self) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(None) }
    }

    /// Returns the current queueing delay of requests on this server; `None` if the server does not measure the delay.
    fn queue_delay(&self) -> Option<Duration> {
        None
    }

    /// Receives a client's IO_ADVISE hints: bit `n` of `hints` is the `io_advise_type4` value `n` (RFC 7862 §15.5).
    /// Returns the hints that the server follows.
    fn advise(
        &self,
        _ctx: &Ctx,
        _file: FileId,
        _range: ByteRange,
        _hints: u32,
    ) -> impl Future<Output = Result<u32>> + Send {
        async { Ok(0) }
    }

    /// Stores a client record durably. The server waits until the record is durable before it replies to the client's
    /// first OPEN or LAYOUTGET.
    fn persist_client(&self, record: ClientRecord) -> impl Future<Output = Result<()>> + Send;

    /// Deletes the record of a client owner (`co_ownerid`). A missing record is no error.
    fn forget_client(&self, owner: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Returns all stored client records: the clients that may reclaim their state after a restart of the server.
    fn clients(&self) -> impl Future<Output = Result<Vec<ClientRecord>>> + Send;
}
