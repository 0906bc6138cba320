//! The door to the file system: what the server half needs from whoever keeps names and bytes.

use crate::exports::{Place, Terms, View};
use bytes::Bytes;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;
use types::{Attrs, ByteRange, Cred, DirEntry, FileId, Fsid, Renaming, SetAttrs, StatFs, Status, Timestamp, Verifier};
use xdr::Segments;

/// Outcome of every call through this door.
pub type Result<T> = std::result::Result<T, Status>;

/// Who asks, when, and over which protocol version.
#[derive(Clone, Debug, Default)]
pub struct Ctx {
    /// Whose permissions count.
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
    /// The current filehandle as the client sent it, for data servers: there it says what is allowed. Empty otherwise.
    pub handle: Bytes,
    /// Whether names, attributes and what is kept with them may be answered for before they are on stable storage: the client sees to
    /// that by [`FileSystem::settle`] when somebody asks for it ([`SOON`]).
    pub soon: bool,
}

/// The tag of a COMPOUND whose sender does not want to wait for stable storage. Of no meaning in the standard (RFC 8881 §16.2.3), where tags are
/// for people.
pub const SOON: &[u8] = b"weir:soon";

/// What does not change from file to file (fsinfo and pathconf attributes, RFC 8881 §5.6 to §5.12).
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
    /// Most names of one file (`maxlink`).
    pub max_link: u32,
    /// Longest name in bytes (`maxname`).
    pub max_name: u32,
    /// Layout types offered, best first; empty when no layout is ever given (`fs_layout_types`).
    pub layout_types: Vec<u32>,
    /// Preferred block size for layout I/O in bytes (`layout_blksize`).
    pub layout_block: u32,
    /// Whether `user.` extended attributes are kept (`xattr_support`, RFC 8276 §8.2).
    pub xattrs: bool,
    /// Whether [`FileSystem::threshold`] has answers (`mdsthreshold`).
    pub thresholds: bool,
}

/// The change attribute of a directory around an operation (`change_info4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Before the operation.
    pub before: u64,
    /// After it.
    pub after: u64,
    /// Whether nothing else can have changed the directory between the two.
    pub atomic: bool,
}

/// Permission bits of ACCESS (RFC 8881 §18.1, RFC 8276 §8.4.3), as [`FileSystem::access`] takes and gives them.
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
    /// Those that are about changes.
    pub const CHANGES: u32 = MODIFY | EXTEND | DELETE | XAWRITE;
    /// Every bit there is.
    pub const ALL: u32 = 0x1ff;
}

/// What [`FileSystem::create`] makes; regular files are made by [`FileSystem::open_create`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CreateKind {
    /// A directory.
    Directory,
    /// A symbolic link to this text, 1 to `PATH_MAX` bytes.
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

/// A new object that is not a regular file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created {
    /// Its attributes, all that were asked for applied.
    pub attrs: Attrs,
    /// What the creation did to the directory.
    pub change: Change,
}

/// How OPEN treats a name that exists (`createmode4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenHow {
    /// Take it (UNCHECKED4).
    Unchecked,
    /// Refuse with `Exist` (GUARDED4).
    Guarded,
    /// Take it only if it was made with this very verifier, else `Exist` (EXCLUSIVE4 and EXCLUSIVE4_1). The verifier
    /// is stored with the new file, durably, until the file's attributes are next set (RFC 8881 §18.16.3).
    Exclusive(Verifier),
}

/// A regular file that OPEN made or found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its attributes; a file that was there already is returned as it is, nothing applied.
    pub attrs: Attrs,
    /// Whether this call made it. An exclusive create met again counts as made.
    pub created: bool,
    /// What happened to the directory.
    pub change: Change,
}

/// Asked of a regular file that loses its last name: whether it may be freed at once, as nobody has it open, nor will. May be
/// asked several times, of several files.
pub type Ends<'a> = &'a (dyn Fn(FileId) -> bool + Sync);

/// A name taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// What it named.
    pub id: FileId,
    /// Whether that was the last name: the inode stays until [`FileSystem::reap`].
    pub orphaned: bool,
    /// What happened to the directory.
    pub change: Change,
}

/// A name moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// What happened to the directory left.
    pub from: Change,
    /// What happened to the directory entered.
    pub to: Change,
    /// The file whose name was taken over.
    pub replaced: Option<Replaced>,
}

/// A file whose name another one took over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// Its number.
    pub id: FileId,
    /// Whether that was its last name (see [`Removed::orphaned`]).
    pub orphaned: bool,
    /// How many bytes it has.
    pub bytes: u64,
    /// How many bytes the disks have room for; matters only for an orphan with bytes.
    pub room: u64,
}

/// Some entries of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DirPage {
    /// Entries in the order of their cookies, neither `.` nor `..`.
    pub entries: Vec<DirEntry>,
    /// Whether the last entry of the directory is among them, or none is left.
    pub eof: bool,
}

/// Bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadOut {
    /// The bytes; fewer than asked only at the end of the file.
    pub data: Segments,
    /// Whether the file ends with them.
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

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteOut {
    /// Bytes taken, from the front of the payload; never 0 unless the payload was empty.
    pub count: u32,
    /// How durable they are: at least what was asked.
    pub stable: Stability,
    /// The write verifier of whoever keeps unstable bytes.
    pub verifier: Verifier,
}

/// How SETXATTR treats a name that exists (`setxattr_option4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrHow {
    /// Make it or replace it.
    Either,
    /// Refuse with `Exist` if it exists.
    Create,
    /// Refuse with `NoXattr` if it does not exist.
    Replace,
}

/// What SEEK looks for (`data_content4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The next byte that is stored.
    Data,
    /// The next byte that is not stored; the end of the file counts as one.
    Hole,
}

/// Where SEEK ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekOut {
    /// The position found.
    pub offset: u64,
    /// Whether it is at the end of the file.
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

/// What LAYOUTGET asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutAsk {
    /// The file.
    pub file: FileId,
    /// The layout type (`layouttype4`), one of [`FsInfo::layout_types`].
    pub kind: u32,
    /// What for.
    pub iomode: Iomode,
    /// Whether the client has the file open for reading: an open for writing alone lets nobody read, not even by a
    /// layout for reading and writing.
    pub readable: bool,
    /// The bytes wanted; length `u64::MAX` reaches to the end of the file, whatever it will be.
    pub range: ByteRange,
    /// The least length that is of use, from `range.offset`.
    pub min_len: u64,
    /// Most bytes that the layout's body may take.
    pub max_body: usize,
}

/// A layout given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutOut {
    /// The bytes it covers; normally [`ByteRange::ALL`].
    pub range: ByteRange,
    /// What for: what was asked, or `ReadWrite` instead of `Read`.
    pub iomode: Iomode,
    /// Its type (`layouttype4`).
    pub kind: u32,
    /// The body (`lo_content.loc_body`), opaque here.
    pub body: Bytes,
    /// Whether the client must return it before its last CLOSE.
    pub return_on_close: bool,
}

/// Why a layout is no longer held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LayoutGone {
    /// The client returned it, with this body (`lrf_body`).
    Returned(Bytes),
    /// It went with the client's last CLOSE, or with its lease while nobody else wanted the file.
    Forgotten,
    /// It was taken away: I/O that still uses it must be refused from now on (fencing).
    Revoked,
}

/// Limits under which a client sends I/O to this server instead of using its layout (RFC 8881 §3.3.22).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// The layout type they are for.
    pub kind: u32,
    /// File length in bytes below which reads come here.
    pub read_size: Option<u64>,
    /// File length in bytes below which writes come here.
    pub write_size: Option<u64>,
    /// Request length in bytes below which reads come here.
    pub read_iosize: Option<u64>,
    /// Request length in bytes below which writes come here.
    pub write_iosize: Option<u64>,
}

/// How files are to be used, as text that the server half passes on (`docs/native-protocol.md`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// What the server says, for all files of an export.
    pub server: Bytes,
    /// What the extended attributes of the file or directory say.
    pub own: Bytes,
}

/// What must survive a restart about a client, so that it may reclaim (RFC 8881 §8.4.2.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientRecord {
    /// `co_ownerid`, 1 to 1024 bytes: the key.
    pub owner: Bytes,
    /// The client id it was last confirmed with.
    pub clientid: u64,
}

/// A file system to serve: names, attributes, bytes and layouts.
///
/// Permissions: methods that take names or attributes check them against `ctx.cred` themselves. READ, WRITE, COMMIT,
/// SEEK, ALLOCATE and layouts are checked by the caller (an open or [`FileSystem::access`]) and not again here.
/// Names arrive as the peer sent them; unacceptable ones are refused with `Inval` (empty), `BadName`, `NameTooLong`.
/// A file that is gone is `Stale` in every method.
pub trait FileSystem: Send + Sync + 'static {
    /// Identity of the file system: server scope, and `fsid` attribute of the export of everything.
    fn fsid(&self) -> Fsid;

    /// The `fsid` attribute of an export: different from those of all others (RFC 8881 §7.7).
    fn fsid_in(&self, _place: Place) -> Fsid {
        self.fsid()
    }

    /// The root directory (PUTROOTFH), and what it is part of for this caller.
    fn root(&self, view: View) -> (FileId, Place);

    /// What holds for every file of an export. Cheap: called for many requests.
    fn info(&self, place: Place) -> FsInfo;

    /// Every layout type that means anything here, offered at the moment or not: for others there is an error of its own
    /// (UNKNOWN_LAYOUTTYPE), which makes the writes of Linux fail.
    fn layout_types(&self) -> Vec<u32>;

    /// The filehandle of a file: at most `FILEHANDLE_MAX` bytes, always the same for the same file in the same place.
    fn encode_handle(&self, file: FileId, place: Place) -> Bytes;

    /// The file of a handle and where it was reached; `BadHandle` for bytes this server never gave out, `Stale` if known
    /// to be gone or not to be in that export any more, `Access` for what the caller may not see. Every handle that a client sends comes by here.
    fn decode_handle(&self, view: View, handle: &[u8]) -> Result<(FileId, Place)>;

    /// What holds in an export. Cheap: called for every filehandle.
    fn terms(&self, _place: Place) -> Terms {
        Terms::default()
    }

    /// The place of what is reached now from a place that may have been reached before exports changed ([`Place::epoch`]).
    fn reached_now(&self, place: Place) -> Place {
        place
    }

    /// Where `child` is that was found in a directory of `ctx.place`: there too, or where another export begins. `Access`
    /// where one begins that the caller may not see.
    fn descend(&self, ctx: &Ctx, _child: FileId) -> Result<Place> {
        Ok(ctx.place)
    }

    /// Where the parent of `dir`, a directory of `ctx.place`, is.
    fn ascend(&self, ctx: &Ctx, _dir: FileId) -> Result<Place> {
        Ok(ctx.place)
    }

    /// Attributes of a file; no permission is needed.
    fn getattr(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Attrs>> + Send;

    /// Whether [`Self::getattr`] might tell newer attributes of a file than an entry of a directory has, as other clients write past the server.
    fn is_written_elsewhere(&self, _ctx: &Ctx, _file: FileId) -> bool {
        false
    }

    /// Corrects how much room is used by those of these files that may have holes, which is more to ask than [`Self::getattr`]
    /// does: for whoever wants to know (`space_used`, RFC 8881 §5.8.2.35). What cannot be learnt soon stays as it is.
    fn correct_space(&self, _files: &mut [&mut Attrs]) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Changes attributes and returns all of them as they are then. `opened` says that the caller holds the file open
    /// for writing, which permits a new size whatever the mode says.
    fn setattr(
        &self,
        ctx: &Ctx,
        file: FileId,
        set: SetAttrs,
        opened: bool,
    ) -> impl Future<Output = Result<Attrs>> + Send;

    /// Which of the [`access`] bits `asked` the caller has on a file.
    fn access(&self, ctx: &Ctx, file: FileId, asked: u32) -> impl Future<Output = Result<u32>> + Send;

    /// What a name of a directory names. `NotDir` or `Symlink` if `dir` is no directory.
    fn lookup(&self, ctx: &Ctx, dir: FileId, name: &Bytes) -> impl Future<Output = Result<Attrs>> + Send;

    /// The parent of a directory; `NoEnt` at the root.
    fn lookup_parent(&self, ctx: &Ctx, dir: FileId) -> impl Future<Output = Result<Attrs>> + Send;

    /// Entries with cookies above `after` (0: from the start), at most `max` of them, fewer at will but at least one
    /// unless none is left. Cookies are stable, above 2, and need no verifier.
    fn readdir(&self, ctx: &Ctx, dir: FileId, after: u64, max: usize) -> impl Future<Output = Result<DirPage>> + Send;

    /// Makes anything but a regular file.
    fn create(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        kind: CreateKind,
        set: SetAttrs,
    ) -> impl Future<Output = Result<Created>> + Send;

    /// Makes a regular file, or finds what has the name already. What is found may be of any kind; nothing of `set` is
    /// applied to it and no permission on it is checked. All of it is durable then; what is made `unsynced` is so after the next
    /// [`Self::commit`] or stable [`Self::write`] of the file.
    fn open_create(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        how: OpenHow,
        set: SetAttrs,
        unsynced: bool,
    ) -> impl Future<Output = Result<Opened>> + Send;

    /// Takes a name away, of a file or an empty directory. A file of which `ends` says so goes with it as by
    /// [`FileSystem::reap`], and is no orphan; others stay.
    fn remove(
        &self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        ends: Ends<'_>,
    ) -> impl Future<Output = Result<Removed>> + Send;

    /// Moves a name (each with its directory), taking over the target's if POSIX allows it; `how` may want that otherwise.
    fn rename(
        &self,
        ctx: &Ctx,
        from: (FileId, &Bytes),
        to: (FileId, &Bytes),
        how: Renaming,
    ) -> impl Future<Output = Result<Renamed>> + Send;

    /// Gives a file one more name.
    fn link(&self, ctx: &Ctx, file: FileId, dir: FileId, name: &Bytes) -> impl Future<Output = Result<Change>> + Send;

    /// The target of a symbolic link; `Inval` for anything else.
    fn readlink(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Bytes>> + Send;

    /// Up to `len` bytes from `offset`; beyond the end nothing and `eof`.
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

    /// Copies the front of a range of one file to `target` of another one, without the bytes passing this server, as an unstable
    /// write; at least one byte. `None` when that cannot be: the caller reads and writes instead.
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

    /// Makes unstable writes of a range durable; the verifier must equal that of the writes it covers.
    fn commit(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<Verifier>> + Send;

    /// No open of this orphan is left: frees inode and bytes. Called at most once per orphan, possibly long after.
    fn reap(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<()>> + Send;

    /// A client is about to give a byte-range lock back: whoever gets it next is to find what was written under it.
    fn unlocking(&self, _ctx: &Ctx, _file: FileId) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// One client has closed a file; `wrote` if the open allowed writing. The moment to learn its final size.
    fn closed(&self, _ctx: &Ctx, _file: FileId, _wrote: bool) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Capacity.
    fn statfs(&self, ctx: &Ctx) -> impl Future<Output = Result<StatFs>> + Send;

    /// The value of an extended attribute (name without `user.`); `NoXattr` if absent.
    fn getxattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> impl Future<Output = Result<Bytes>> + Send;

    /// Sets an extended attribute. The change is that of the file.
    fn setxattr(
        &self,
        ctx: &Ctx,
        file: FileId,
        name: &Bytes,
        value: Bytes,
        how: XattrHow,
    ) -> impl Future<Output = Result<Change>> + Send;

    /// All names of extended attributes, in a stable order, without `user.`.
    fn listxattrs(&self, ctx: &Ctx, file: FileId) -> impl Future<Output = Result<Vec<Bytes>>> + Send;

    /// Removes an extended attribute; `NoXattr` if absent. The change is that of the file.
    fn removexattr(&self, ctx: &Ctx, file: FileId, name: &Bytes) -> impl Future<Output = Result<Change>> + Send;

    /// The first position at or after `offset` with this content; `NxIo` if `offset` is at or beyond the end or no data
    /// follow.
    fn seek(&self, ctx: &Ctx, file: FileId, offset: u64, what: Content)
    -> impl Future<Output = Result<SeekOut>> + Send;

    /// Reserves room for a range, growing the file if it ends before.
    fn allocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<()>> + Send;

    /// Lets a file reach at least to `end`, as an unstable write of nothing: it never becomes shorter by this, whoever makes it
    /// longer at the same time. The verifier of COMMIT covers it.
    fn extend(&self, ctx: &Ctx, file: FileId, end: u64) -> impl Future<Output = Result<()>> + Send;

    /// Makes a range read as zeros and frees its room; the size stays.
    fn deallocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> impl Future<Output = Result<()>> + Send;

    /// A layout for a client (`ctx.client`). `NoLayout` when it shall use this server instead; `Delay` when later.
    fn layout_get(&self, ctx: &Ctx, ask: LayoutAsk) -> impl Future<Output = Result<LayoutOut>> + Send;

    /// The address of a device, the body of `device_addr4` for this layout type; `NoEnt` if unknown.
    fn device_info(&self, ctx: &Ctx, device: [u8; 16], kind: u32) -> impl Future<Output = Result<Bytes>> + Send;

    /// Takes over what a client wrote through its layout: the offset of the last byte written and the time, if told, and
    /// the layout type's own body. Never shrinks. Returns the new size if it changed.
    fn layout_commit(
        &self,
        ctx: &Ctx,
        file: FileId,
        last_byte: Option<u64>,
        mtime: Option<Timestamp>,
        body: Bytes,
    ) -> impl Future<Output = Result<Option<u64>>> + Send;

    /// A client (`client`, not `ctx.client`: it may be another's doing) holds no layout of this range and mode any more.
    fn layout_gone(
        &self,
        ctx: &Ctx,
        client: u64,
        file: FileId,
        iomode: Iomode,
        range: ByteRange,
        why: LayoutGone,
    ) -> impl Future<Output = Result<()>> + Send;

    /// A client says that so many operations on a file failed at data servers, the first one so.
    fn layout_faults(&self, _ctx: &Ctx, _file: FileId, _first: &dyn Debug, _count: usize) {}

    /// When a client should prefer this server to its layout of a file, which it has just opened by a name in `dir` if that is
    /// known; asked only with [`FsInfo::thresholds`].
    fn threshold(
        &self,
        _ctx: &Ctx,
        _file: FileId,
        _dir: Option<FileId>,
    ) -> impl Future<Output = Result<Option<Threshold>>> + Send {
        async { Ok(None) }
    }

    /// What is said about how files are to be used: here, and by this file or directory itself.
    fn policy(&self, _ctx: &Ctx, _file: FileId) -> Result<Option<Told>> {
        Ok(None)
    }

    /// Returns when everything is on stable storage that was answered before; with a number that is another one once anything may be
    /// lost that was answered, and not settled. `None` where nothing is ever answered before.
    fn settle(&self) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(None) }
    }

    /// How long requests wait at present before they are worked on.
    fn queue_delay(&self) -> Option<Duration> {
        None
    }

    /// What a client says about its coming I/O: bit `n` of `hints` is `io_advise_type4` value n (RFC 7862 §15.5).
    /// Returns the hints that will be honoured.
    fn advise(
        &self,
        _ctx: &Ctx,
        _file: FileId,
        _range: ByteRange,
        _hints: u32,
    ) -> impl Future<Output = Result<u32>> + Send {
        async { Ok(0) }
    }

    /// Stores a client's record durably; called before its first OPEN or layout is answered.
    fn persist_client(&self, record: ClientRecord) -> impl Future<Output = Result<()>> + Send;

    /// Forgets the record of a client (`co_ownerid`); not an error if there is none.
    fn forget_client(&self, owner: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// All records stored: who may reclaim after a restart.
    fn clients(&self) -> impl Future<Output = Result<Vec<ClientRecord>>> + Send;
}
