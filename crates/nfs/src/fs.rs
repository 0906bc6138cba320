//! The trait [`FileSystem`]: the interface of the NFS server to the store of names and bytes.

use crate::exports::{Place, Terms, View};
use bytes::Bytes;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;
use types::{Attrs, ByteRange, Cred, DirEntry, FileId, Fsid, Renaming, SetAttrs, StatFs, Status, Timestamp, Verifier};
use xdr::Segments;

/// The result of every method of [`FileSystem`].
pub type Result<T> = std::result::Result<T, Status>;

/// The context of a call: the caller, the time, and the protocol version.
#[derive(Clone, Debug, Default)]
pub struct Ctx {
    /// The credentials that permission checks use.
    pub cred: Cred,
    /// Which exports the caller sees.
    pub view: View,
    /// The export of the current filehandle.
    pub place: Place,
    /// The server's clock when the request arrived.
    pub now: Timestamp,
    /// The client id (`clientid4`) of the session that asks; 0 when none does (reaping, expiry).
    pub client: u64,
    /// Minor version of the request: 1 or 2.
    pub minor: u32,
    /// The current filehandle as the client sent it. A data server reads the client's rights from it; empty on other
    /// servers.
    pub handle: Bytes,
    /// Whether the server may reply before a change of names, attributes or inline data is on stable storage. The
    /// client then calls [`FileSystem::settle`] when a program asks for durability ([`SOON`]).
    pub soon: bool,
}

/// The tag of a COMPOUND whose sender does not wait for stable storage. Tags have no meaning in the protocol (RFC 8881
/// §16.2.3); they are for people.
pub const SOON: &[u8] = b"weir:soon";

/// Values that are the same for all files (fsinfo and pathconf attributes, RFC 8881 §5.6 to §5.12).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsInfo {
    /// Lease time in seconds (`lease_time`).
    pub lease_secs: u32,
    /// Largest file in bytes (`maxfilesize`).
    pub max_file_size: u64,
    /// Largest READ in bytes (`maxread`).
    pub max_read: u64,
    /// Largest WRITE in bytes (`maxwrite`).
    pub max_write: u64,
    /// Largest number of names of one file (`maxlink`).
    pub max_link: u32,
    /// Longest name in bytes (`maxname`).
    pub max_name: u32,
    /// Layout types offered, best first; empty if the server grants no layouts (`fs_layout_types`).
    pub layout_types: Vec<u32>,
    /// Preferred block size for layout I/O in bytes (`layout_blksize`).
    pub layout_block: u32,
    /// Whether the file system stores `user.` extended attributes (`xattr_support`, RFC 8276 §8.2).
    pub xattrs: bool,
    /// Whether [`FileSystem::threshold`] returns thresholds (`mdsthreshold`).
    pub thresholds: bool,
}

/// The change attribute of a directory before and after an operation (`change_info4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// The value before the operation.
    pub before: u64,
    /// The value after the operation.
    pub after: u64,
    /// Whether no other operation can have changed the directory between the two values.
    pub atomic: bool,
}

/// Permission bits of ACCESS (RFC 8881 §18.1, RFC 8276 §8.4.3), as [`FileSystem::access`] takes and returns them.
pub mod access {
    /// Read data, read a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite data, change entries.
    pub const MODIFY: u32 = 0x04;
    /// Write new data, add entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an entry of a directory.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// Read an extended attribute.
    pub const XAREAD: u32 = 0x40;
    /// Change an extended attribute.
    pub const XAWRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XALIST: u32 = 0x100;
    /// The bits for operations that change something.
    pub const CHANGES: u32 = MODIFY | EXTEND | DELETE | XAWRITE;
    /// All bits.
    pub const ALL: u32 = 0x1ff;
}

/// The kind of object that [`FileSystem::create`] creates; [`FileSystem::open_create`] creates regular files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CreateKind {
    /// A directory.
    Directory,
    /// A symbolic link with this target, 1 to `PATH_MAX` bytes.
    Symlink(Bytes),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block device node with major and minor number.
    Block(u32, u32),
    /// A character device node with major and minor number.
    Char(u32, u32),
}

/// A newly created object that is not a regular file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created {
    /// The attributes of the new file, with all requested attributes applied.
    pub attrs: Attrs,
    /// The change of the directory.
    pub change: Change,
}

/// How OPEN treats a name that exists (`createmode4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenHow {
    /// Open the existing file (UNCHECKED4).
    Unchecked,
    /// Refuse with `Exist` (GUARDED4).
    Guarded,
    /// Open the existing file only if it was created with this verifier, else `Exist` (EXCLUSIVE4 and EXCLUSIVE4_1).
    /// The verifier is stored durably with the new file until the file's attributes are next set (RFC 8881 §18.16.3).
    Exclusive(Verifier),
}

/// A regular file that OPEN created or found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The attributes of the file; an existing file keeps its attributes unchanged.
    pub attrs: Attrs,
    /// Whether this call created the file. A repeated exclusive create with the same verifier counts as created.
    pub created: bool,
    /// The change of the directory.
    pub change: Change,
}

/// Returns whether a regular file that loses its last name may be freed at once: no client has it open or will open it.
/// The file system may call this several times, for several files.
pub type Ends<'a> = &'a (dyn Fn(FileId) -> bool + Sync);

/// The result of removing a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The file that had the name.
    pub id: FileId,
    /// Whether it was the last name: the inode then stays until [`FileSystem::reap`].
    pub orphaned: bool,
    /// The change of the directory.
    pub change: Change,
}

/// The result of a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// The change of the source directory.
    pub from: Change,
    /// The change of the target directory.
    pub to: Change,
    /// The file whose name the rename replaced.
    pub replaced: Option<Replaced>,
}

/// A file whose name a rename replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// The id of the file.
    pub id: FileId,
    /// Whether it was the file's last name (see [`Removed::orphaned`]).
    pub orphaned: bool,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The free space of the disks in bytes; matters only for an orphan that has bytes.
    pub room: u64,
}

/// Some entries of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DirPage {
    /// Entries in the order of their cookies, neither `.` nor `..`.
    pub entries: Vec<DirEntry>,
    /// Whether no entries follow the last one of this page.
    pub eof: bool,
}

/// The result of a read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadOut {
    /// The bytes; fewer than requested only at the end of the file.
    pub data: Segments,
    /// Whether the file ends after these bytes.
    pub eof: bool,
}

/// How durable a write is (`stable_how4`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stability {
    /// May be lost by a crash until committed (UNSTABLE4).
    Unstable,
    /// The bytes and the size are on disk (DATA_SYNC4).
    DataSync,
    /// Bytes and all attributes are on disk (FILE_SYNC4).
    FileSync,
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteOut {
    /// Bytes accepted, from the front of the payload; 0 only if the payload was empty.
    pub count: u32,
    /// How durable they are: at least as durable as requested.
    pub stable: Stability,
    /// The write verifier of the server that holds the unstable bytes.
    pub verifier: Verifier,
}

/// How SETXATTR treats an attribute that exists (`setxattr_option4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrHow {
    /// Create or replace it.
    Either,
    /// Refuse with `Exist` if it exists.
    Create,
    /// Refuse with `NoXattr` if it does not exist.
    Replace,
}

/// What SEEK searches for (`data_content4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The next byte that lies in data.
    Data,
    /// The next byte that lies in a hole; the end of the file counts as a hole.
    Hole,
}

/// The result of SEEK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekOut {
    /// The position found.
    pub offset: u64,
    /// Whether the position is at the end of the file.
    pub eof: bool,
}

/// What a layout is for (`layoutiomode4` without ANY).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Iomode {
    /// Reading (LAYOUTIOMODE4_READ).
    Read,
    /// Reading and writing (LAYOUTIOMODE4_RW).
    ReadWrite,
}

/// The arguments of LAYOUTGET.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutAsk {
    /// The file.
    pub file: FileId,
    /// The layout type (`layouttype4`), one of [`FsInfo::layout_types`].
    pub kind: u32,
    /// The use of the layout.
    pub iomode: Iomode,
    /// Whether the client has the file open for reading. An open for writing only gives no right to read, not even
    /// through a layout for reading and writing.
    pub readable: bool,
    /// The bytes wanted; length `u64::MAX` reaches to the end of the file, even if it grows.
    pub range: ByteRange,
    /// The smallest length, from `range.offset`, that the client can use.
    pub min_len: u64,
    /// The largest size of the layout's body in bytes.
    pub max_body: usize,
}

/// A granted layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutOut {
    /// The bytes it covers; normally [`ByteRange::ALL`].
    pub range: ByteRange,
    /// The use: as requested, or `ReadWrite` instead of `Read`.
    pub iomode: Iomode,
    /// The layout type (`layouttype4`).
    pub kind: u32,
    /// The body (`lo_content.loc_body`), opaque here.
    pub body: Bytes,
    /// Whether the client must return the layout before its last CLOSE.
    pub return_on_close: bool,
}

/// Why a client no longer holds a layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LayoutGone {
    /// The client returned it.
    Returned {
        /// The layout type (`layouttype4`).
        kind: u32,
        /// The body (`lrf_body`).
        body: Bytes,
    },
    /// The layout ended with the client's last CLOSE, or with the client's lease while no other client wanted the file.
    Forgotten,
    /// The server revoked the layout: data servers must refuse I/O that still uses it (fencing).
    Revoked,
}

/// Limits under which a client sends I/O to this server instead of using its layout (RFC 8881 §3.3.22).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// The layout type that the limits apply to.
    pub kind: u32,
    /// File length in bytes below which the client reads through this server.
    pub read_size: Option<u64>,
    /// File length in bytes below which the client writes through this server.
    pub write_size: Option<u64>,
    /// Request length in bytes below which the client reads through this server.
    pub read_iosize: Option<u64>,
    /// Request length in bytes below which the client writes through this server.
    pub write_iosize: Option<u64>,
}

/// The policy of a file, as text that the NFS server forwards to the client (`docs/native-protocol.md`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// The server's settings for all files of an export.
    pub server: Bytes,
    /// The settings in the extended attributes of the file or directory.
    pub own: Bytes,
}

/// The durable record of a client, which lets it reclaim state after a restart (RFC 8881 §8.4.2.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientRecord {
    /// `co_ownerid`, 1 to 1024 bytes: the key.
    pub owner: Bytes,
    /// The client id under which the client was last confirmed.
    pub clientid: u64,
}

/// A file system that the server exports: names, attributes, bytes and layouts.
///
/// Permissions: methods that take names or attributes check them against `ctx.cred` themselves. For READ, WRITE,
/// COMMIT, SEEK, ALLOCATE and layouts the caller checks them (an open or [`FileSystem::access`]); the methods do not
/// check again. Names arrive as the client sent them; the methods refuse bad names with `Inval` (empty), `BadName` or
/// `NameTooLong`. Every method returns `Stale` for a file that no longer exists.
pub trait FileSystem: Send + Sync + 'static {
    /// Returns the identity of the file system: the server scope, and the `fsid` attribute of the export of the root
    /// directory.
    fn fsid(&self) -> Fsid;

    /// Returns the `fsid` attribute of an export, which differs from that of every other export (RFC 8881 §7.7).
    fn fsid_in(&self, _place: Place) -> Fsid {
        self.fsid()
    }

    /// Returns the root directory (PUTROOTFH) for this caller, and the export that it belongs to.
    fn root(&self, view: View) -> (FileId, Place);

    /// Returns the values that hold for every file of an export. Must be cheap, as many requests call it.
    fn info(&self, place: Place) -> FsInfo;

    /// Returns every layout type that this server knows, whether it offers the type at the moment or not. Other types
    /// get their own error (UNKNOWN_LAYOUTTYPE), which makes writes of the Linux client fail.
    fn layout_types(&self) -> Vec<u32>;

    /// Returns the filehandle of a file: at most `FILEHANDLE_MAX` bytes, and constant for a file in a place.
    fn encode_handle(&self, file: FileId, place: Place) -> Bytes;

    /// Returns the file of a filehandle and the export through which the client reached it. `BadHandle` if this server
    /// never issued these bytes; `Stale` if the file no longer exists or is no longer in that export; `Access` if the
    /// caller may not see the export. The server calls this for every filehandle that a client sends.
    fn decode_handle(&self, view: View, handle: &[u8]) -> Result<(FileId, Place)>;

    /// Returns the terms of an export. Must be cheap, as the server calls it for every filehandle.
    fn terms(&self, _place: Place) -> Terms {
        Terms::default()
    }

    /// Returns the current place for one that may stem from before a change of the exports ([`Place::epoch`]).
    fn reached_now(&self, place: Place) -> Place {
        place
    }

    /// Returns the place of `child`, found in a directory of `ctx.place`: the same place, or another export that begins
    /// at `child`. `Access` if the caller may not see that export.
    fn descend(&self, ctx: &Ctx, _child: FileId) -> Result<Place> {
        Ok(ctx.place)
    }

    /// Returns the place of the parent of `dir`, a directory of `ctx.place`.
    fn ascend(&self, ctx: &Ctx, _dir: FileId) -> Result<Place> {
        Ok(ctx.place)
    }

    /// Returns the attributes of a file; needs no permission.
    fn getattr(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Attrs>> + Send;

    /// Returns whether [`Self::getattr`] may know newer attributes of a file than its directory entry, because clients
    /// write to the data servers without this server.
    fn is_written_elsewhere(&self, _ctx: &Ctx, _file: FileId) -> bool {
        false
    }

    /// Corrects the used space of those files that may have holes (`space_used`, RFC 8881 §5.8.2.35). This asks more
    /// than [`Self::getattr`] does, so only requests for `space_used` call it. Values that the file system cannot learn
    /// soon stay as they are.
    fn correct_space(&self, _files: &mut [&mut Attrs]) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Changes attributes and returns all attributes after the change. `opened` means that the caller holds the file
    /// open for writing, which permits a new size whatever the mode says.
    fn setattr(
        &self,
        ctx: &Ctx,
        file: FileId,
        set: SetAttrs,
        opened: bool,
    ) -> impl Future<Output = Result<Attrs>> + Send;

    /// Returns the subset of the [`access`] bits `asked` that the caller has on a file.
    fn access(&self, ctx: &Ctx, file: FileId, asked: u32) -> impl Future<Output = Result<u32>> + Send;

    /// Looks up a name in a directory. `NotDir` or `Symlink` if `dir` is not a directory.
    fn lookup(&self, ctx: &Ctx, dir: FileId, name: &Bytes) -> impl Future<Output = Result<Attrs>> + Send;

    /// Returns the parent of a directory; `NoEnt` at the root.
    fn lookup_parent(&self, ctx: &Ctx, dir: FileId) -> impl Future<Output = Result<Attrs>> + Send;

    /// Returns entries with cookies above `after` (0: from the start), at most `max`. It may return fewer, but at least
    /// one unless none is left. Cookies are stable, above 2, and need no verifier.
    fn readdir(&self, ctx: &Ctx, dir: FileId, after: u64, max: usize) -> impl Future<Output = Result<DirPage>> + Send;

    /// Creates an object that is not a regular file.
    fn create(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        kind: CreateKind,
        set: SetAttrs,
    ) -> impl Future<Output = Result<Created>> + Send;

    /// Creates a regular file, or returns the existing object with that name. An existing object may be of any kind;
    /// the call applies nothing of `set` to it and checks no permission on it. The result is durable when the call
    /// returns, except that a file created `unsynced` becomes durable with the next [`Self::commit`] or stable
    /// [`Self::write`] of the file.
    fn open_create(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        how: OpenHow,
        set: SetAttrs,
        unsynced: bool,
    ) -> impl Future<Output = Result<Opened>> + Send;

    /// Removes the name of a file or of an empty directory. If `ends` returns true for a file that loses its last name,
    /// the file is freed too, as by [`FileSystem::reap`], and is not an orphan; otherwise it becomes an orphan.
    fn remove(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        ends: Ends<'_>,
    ) -> impl Future<Output = Result<Removed>> + Send;

    /// Renames; each name comes with its directory. Replaces the target's name if POSIX allows it, unless `how` says
    /// otherwise.
    fn rename(
        &self,
        ctx: &Ctx,
        from: (FileId, &Bytes),
        to: (FileId, &Bytes),
        how: Renaming,
    ) -> impl Future<Output = Result<Renamed>> + Send;

    /// Adds a name to a file.
    fn link(&self, ctx: &Ctx, file: FileId, dir: FileId, name: &Bytes) -> impl Future<Output = Result<Change>> + Send;

    /// Returns the target of a symbolic link; `Inval` for any other object.
    fn readlink(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Bytes>> + Send;

    /// Returns up to `len` bytes from `offset`; no bytes and `eof` beyond the end.
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

    /// Copies the front of a range of one file to offset `target` of another file as an unstable write, at least one
    /// byte. The bytes do not pass through this server. `None` if that is impossible: the caller then reads and writes
    /// instead.
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

    /// Makes unstable writes of a range durable; the verifier must equal the verifier of the writes that it covers.
    fn commit(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<Verifier>> + Send;

    /// Frees inode and bytes of an orphan that no client has open. Called at most once per orphan, possibly long after
    /// its removal.
    fn reap(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<()>> + Send;

    /// Reports that a client is about to release a byte-range lock: the next holder must see the data written under the
    /// lock.
    fn unlocking(&self, _ctx: &Ctx, _file: FileId) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Reports that one client has closed a file; `wrote` if the open allowed writing. The implementation can learn the
    /// final size now.
    fn closed(&self, _ctx: &Ctx, _file: FileId, _wrote: bool) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns the capacity of the file system.
    fn statfs(&self, ctx: &Ctx) -> impl Future<Output = Result<StatFs>> + Send;

    /// Returns the value of an extended attribute (name without `user.`); `NoXattr` if absent.
    fn getxattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> impl Future<Output = Result<Bytes>> + Send;

    /// Sets an extended attribute. Returns the change of the file.
    fn setxattr(
        &self,
        ctx: &Ctx,
        file: FileId,
        name: &Bytes,
        value: Bytes,
        how: XattrHow,
    ) -> impl Future<Output = Result<Change>> + Send;

    /// Returns all names of extended attributes, in a stable order, without `user.`.
    fn listxattrs(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Vec<Bytes>>> + Send;

    /// Removes an extended attribute; `NoXattr` if absent. Returns the change of the file.
    fn removexattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> impl Future<Output = Result<Change>> + Send;

    /// Returns the first position at or after `offset` with this content. `NxIo` if `offset` is at or beyond the end,
    /// or if no data follows.
    fn seek(&self, ctx: &Ctx, file: FileId, offset: u64, what: Content)
    -> impl Future<Output = Result<SeekOut>> + Send;

    /// Reserves space for a range, and extends the file if it is shorter.
    fn allocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<()>> + Send;

    /// Extends a file at least to `end`, as an unstable write of no bytes. It never shortens the file, even if another
    /// client extends it at the same time. The verifier of COMMIT covers it.
    fn extend(&self, ctx: &Ctx, file: FileId, end: u64) -> impl Future<Output = Result<()>> + Send;

    /// Makes a range read as zeros and frees its space; the size does not change.
    fn deallocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<()>> + Send;

    /// Grants a layout to a client (`ctx.client`). `NoLayout` if the client must send I/O to this server instead;
    /// `Delay` if it must retry.
    fn layout_get(&self, ctx: &Ctx, ask: LayoutAsk) -> impl Future<Output = Result<LayoutOut>> + Send;

    /// Returns the address of a device, the body of `device_addr4` for this layout type; `NoEnt` if unknown.
    fn device_info(&self, ctx: &Ctx, device: [u8; 16], kind: u32) -> impl Future<Output = Result<Bytes>> + Send;

    /// Applies a client's report (LAYOUTCOMMIT) of its writes through its layout: the layout type with its own body,
    /// the offset of the last byte written, and the time if given. Never shrinks the file. Returns the new size if it
    /// changed.
    fn layout_commit(
        &self,
        ctx: &Ctx,
        file: FileId,
        body: (u32, Bytes),
        last_byte: Option<u64>,
        mtime: Option<Timestamp>,
    ) -> impl Future<Output = Result<Option<u64>>> + Send;

    /// Reports that a client no longer holds a layout of this range and mode. `client` may differ from `ctx.client`, as
    /// another client's request can cause this.
    fn layout_gone(
        &self,
        ctx: &Ctx,
        client: u64,
        file: FileId,
        iomode: Iomode,
        range: ByteRange,
        why: LayoutGone,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reports that `count` operations of a client on a file failed at data servers, and the first of these errors.
    fn layout_faults(&self, _ctx: &Ctx, _file: FileId, _first: &dyn Debug, _count: usize) {}

    /// Returns when a client sends I/O to this server instead of using its layout of a file that it has just opened;
    /// `dir` is the directory of the name, if known. The server calls it only if [`FsInfo::thresholds`] is set.
    fn threshold(
        &self,
        _ctx: &Ctx,
        _file: FileId,
        _dir: Option<FileId>,
    ) -> impl Future<Output = Result<Option<Threshold>>> + Send {
        async { Ok(None) }
    }

    /// Returns the policy settings that apply to a file or directory: the server's and its own.
    fn policy(&self, _ctx: &Ctx, _file: FileId) -> Result<Option<Told>> {
        Ok(None)
    }

    /// Waits until every change that was answered before is on stable storage. Returns a number that changes once an
    /// answered but unsettled change may have been lost. `None` if the server never answers before a change is durable.
    fn settle(&self) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(None) }
    }

    /// Returns how long requests currently wait in the queue.
    fn queue_delay(&self) -> Option<Duration> {
        None
    }

    /// Receives the client's hints about its coming I/O: bit `n` of `hints` is `io_advise_type4` value n (RFC 7862
    /// §15.5). Returns the hints that the server honours.
    fn advise(
        &self,
        _ctx: &Ctx,
        _file: FileId,
        _range: ByteRange,
        _hints: u32,
    ) -> impl Future<Output = Result<u32>> + Send {
        async { Ok(0) }
    }

    /// Stores a client's record durably, before the server answers the client's first OPEN or LAYOUTGET.
    fn persist_client(&self, record: ClientRecord) -> impl Future<Output = Result<()>> + Send;

    /// Deletes the record of a client (`co_ownerid`); not an error if there is none.
    fn forget_client(&self, owner: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Returns all stored records: the clients that may reclaim after a restart.
    fn clients(&self) -> impl Future<Output = Result<Vec<ClientRecord>>> + Send;
}
