//! The API of the namespace. It runs an operation on a view of the store and commits the resulting batch. If the batch
//! conflicts with another batch, the namespace runs the operation again on a new view.

mod numbers;
mod snapshot;
mod swaps;

pub use snapshot::{DumpError, DumpPart};

use crate::engine::{Batch, Broken, Engine, Outcome, RequestId, StoreStatus, Unreadable, Value, Walk, Write};
use crate::ids::Ids;
use crate::ops::rename::End;
use crate::ops::{self, Answer, Plan};
use crate::schema::{
    self, Body, CookieKey, Core, Counts, FileIntent, FormatRecord, Intent, NextId, Record, Tail, XattrTally,
};
use crate::tx::{Settled, Tx};
use crate::{
    ChangeInfo, Changed, CheckMemory, CreateMode, Created, Doomed, Event, Fault, FileInfo, FileState, Layout, Made,
    Mended, Names, ReadDir, Removed, Renamed, Rights, SetXattr,
};
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{Attrs, Cred, FileId, FileKind, Fsid, Generation, Renaming, SetAttrs, Status, Timestamp, limits};

mod sizes;

/// Maximum number of attempts of an operation whose batches conflict; the caller then gets [`Status::Delay`].
///
/// Of several conflicting batches, one succeeds in each commit group of the store, so an operation normally needs
/// only a few attempts.
const RUNS_MAX: usize = 10_000;

/// Number of low bits of a change attribute that count changes. The high bits are the epoch (number of the mgr's
/// start). Within one epoch, the mgr never makes more changes to a file than the low bits can count.
const CHANGES_PER_START: u32 = 40;

/// Parameters of a new file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    /// Id of the new file system.
    pub fsid: Fsid,
    /// Creation time of the file system and its root directory.
    pub now: Timestamp,
    /// Random key for the hash that maps names to directory cookies; must stay secret.
    pub cookie_key: [u8; 16],
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
}

/// The reason why a store cannot be opened or formatted as a namespace.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)] // the error text documents each variant
pub enum OpenError {
    #[error(
        "the metadata store has no file system; if `weir mkfs` was interrupted, remove the store and run `weir mkfs` again"
    )]
    NotFormatted,
    #[error("the metadata store already contains a file system")]
    Formatted,
    #[error(
        "the metadata store has format version {found}, this program reads version {}; use the version of weir that made it",
        FormatRecord::VERSION
    )]
    WrongVersion { found: u32 },
    #[error("the database is not a metadata store of weir")]
    Foreign,
    #[error("the format record of the metadata store is damaged; restore the store from a dump with `weir restore`")]
    Damaged,
    #[error("no space left in the metadata store; free space on its disk")]
    Full,
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl From<Unreadable> for OpenError {
    fn from(cause: Unreadable) -> Self {
        match cause {
            Unreadable::Corrupt(_) => OpenError::Damaged,
            Unreadable::Broken(broken) => broken.into(),
        }
    }
}

/// A handle to a namespace in a store.
///
/// An operation that only reads returns at once. An operation that changes the namespace completes when its batch is
/// durable, unless its documentation says otherwise. If the caller drops the future of such an operation, the change
/// may or may not happen.
#[derive(Debug)]
pub struct Namespace<E> {
    shared: Arc<Shared<E>>,
    /// Whether operations of this handle complete before their changes are durable; see [`Namespace::soon`].
    soon: bool,
}

/// State that all handles to one namespace share.
#[derive(Debug)]
struct Shared<E> {
    engine: E,
    format: FormatRecord,
    ids: Ids,
    requests: AtomicU64,
    /// The epoch (number of the mgr's start), shifted left by `CHANGES_PER_START` bits. The namespace adds this value
    /// to every change attribute that it returns.
    since: AtomicU64,
    /// Whether the namespace refuses to allocate inode numbers; see [`Namespace::hold_numbers`].
    held: AtomicBool,
}

impl<E: Engine> Namespace<E> {
    /// Creates an empty file system in an empty store.
    pub async fn format(engine: E, format: Format) -> Result<Self, OpenError> {
        if engine.view()?.get(schema::FORMAT)?.is_some() {
            return Err(OpenError::Formatted);
        }
        let record = FormatRecord { fsid: format.fsid, created: format.now, cookies: CookieKey(format.cookie_key) };
        let root = Core {
            mode: format.root_mode & 0o7777,
            uid: format.root_uid,
            gid: format.root_gid,
            names: 1,
            btime: format.now,
            xattrs: XattrTally::default(),
            body: Body::Directory { parent: FileId::ROOT },
        };
        let first = FileId::ROOT.0 + 1;
        let writes = [
            (schema::FORMAT.to_vec(), record.to_value()),
            (schema::NEXT_ID.to_vec(), NextId(first).to_value()),
            (schema::COUNTS.to_vec(), Counts { files: 1 }.to_value()),
            (schema::core_key(FileId::ROOT), root.to_value()),
            (schema::tail_key(FileId::ROOT), Tail::new(format.now, 0).to_value()),
        ];
        let batch = Batch {
            expects: vec![crate::engine::Expect::Absent(schema::FORMAT.to_vec())],
            writes: writes.into_iter().map(|(key, value)| (key, Write::Put(value))).collect(),
            durable: true,
            ..Batch::default()
        };
        match engine.submit(batch).await {
            Outcome::Committed { .. } => Self::open(engine),
            Outcome::Conflict(_) => Err(OpenError::Formatted),
            Outcome::Full | Outcome::TooLarge => Err(OpenError::Full),
            Outcome::Corrupt(_) => Err(OpenError::Damaged),
            Outcome::Unknown(broken) => Err(broken.into()),
        }
    }

    /// Opens the file system in a formatted store.
    pub fn open(engine: E) -> Result<Self, OpenError> {
        let value = engine.view()?.get(schema::FORMAT)?.ok_or(OpenError::NotFormatted)?;
        let found = FormatRecord::version_of(&value).ok_or(OpenError::Foreign)?;
        if found != FormatRecord::VERSION {
            return Err(OpenError::WrongVersion { found });
        }
        let format = FormatRecord::from_value(value).map_err(|_| OpenError::Damaged)?;
        let (ids, requests, since, held) = Default::default();
        Ok(Namespace { shared: Arc::new(Shared { engine, format, ids, requests, since, held }), soon: false })
    }

    /// Returns a handle to the same namespace whose operations do not wait until their changes are durable. A change
    /// becomes durable with a later [`Self::settle`], or with a later change that another handle waits for. A crash
    /// loses a suffix of the history: if it loses a change, it loses all later changes too.
    pub fn soon(&self) -> Self {
        Namespace { shared: self.shared.clone(), soon: true }
    }

    /// Returns a handle to the same namespace whose operations wait until their changes are durable, which is the
    /// default.
    pub fn waiting(&self) -> Self {
        Namespace { shared: self.shared.clone(), soon: false }
    }

    /// Returns the id of the file system.
    pub fn fsid(&self) -> Fsid {
        self.shared.format.fsid
    }

    /// Returns the creation time of the file system.
    pub fn created(&self) -> Timestamp {
        self.shared.format.created
    }

    /// Makes all change attributes larger than those that the mgr returned before its restart, so that clients
    /// revalidate everything that they cached. `start` is the epoch (number of the mgr's start), and must exceed every
    /// earlier epoch.
    ///
    /// The mgr calls this function before it returns attributes to clients. A power failure may have lost changes
    /// that were not durable yet. Without the larger values, a later change could get the change attribute of a lost
    /// change.
    pub fn begin(&self, start: u32) {
        self.shared.since.store(u64::from(start) << CHANGES_PER_START, Ordering::Relaxed);
    }

    fn since(&self) -> u64 {
        self.shared.since.load(Ordering::Relaxed)
    }

    /// Completes only if the store fails permanently. The daemon must then exit and be restarted.
    pub async fn failed(&self) -> Broken {
        self.shared.engine.failed().await
    }

    /// Returns the state of the store for status reports: its size, its counters, and its failure if it has failed.
    pub fn status(&self) -> StoreStatus {
        self.shared.engine.status()
    }

    /// Completes when all changes that completed before this call are durable, including the changes of
    /// [`Self::record_write`].
    pub async fn settle(&self) -> Result<(), Status> {
        self.outcome(self.shared.engine.settle().await).map(drop)
    }

    fn outcome(&self, outcome: Outcome) -> Result<Option<Settled>, Status> {
        match outcome {
            Outcome::Committed { merged, .. } => Ok(Some(Settled { merged, since: self.since() })),
            Outcome::Conflict(_) => Ok(None),
            Outcome::TooLarge => Err(Status::TooBig),
            Outcome::Full => Err(Status::NoSpc),
            Outcome::Corrupt(_) => Err(Status::Corrupt),
            Outcome::Unknown(_) => Err(Status::Io),
        }
    }

    fn read<T>(&self, cred: &Cred, op: impl FnOnce(&Tx<'_>) -> Result<T, Status>) -> Result<T, Status> {
        let view = self.shared.engine.view()?;
        // Operations that only read do not use the current time, so pass zero.
        op(&Tx::new(&*view, (&self.shared.format.cookies, self.since()), cred, Timestamp::default()))
    }

    /// Runs the operation on a new view. Returns the closure that computes the operation's result, and the batch to
    /// commit. The batch is `None` if the operation changes nothing.
    fn plan<T>(
        &self,
        cred: &Cred,
        now: Timestamp,
        op: &impl Fn(&mut Tx<'_>) -> Plan<T>,
    ) -> Result<(Answer<T>, Option<Batch>), Status> {
        let view = self.shared.engine.view()?;
        let mut tx = Tx::new(&*view, (&self.shared.format.cookies, self.since()), cred, now);
        let answer = op(&mut tx)?;
        let mut batch = tx.into_batch();
        batch.durable &= !self.soon;
        batch.id = RequestId(self.shared.requests.fetch_add(1, Ordering::Relaxed));
        // A batch without changes needs no commit: the operation has read everything from one view, so its result is
        // consistent.
        Ok((answer, (!batch.writes.is_empty()).then_some(batch)))
    }

    async fn change<T>(&self, cred: &Cred, now: Timestamp, op: impl Fn(&mut Tx<'_>) -> Plan<T>) -> Result<T, Status> {
        for _ in 0..RUNS_MAX {
            let (answer, batch) = self.plan(cred, now, &op)?;
            let Some(batch) = batch else { return answer(&Settled::default()) };
            let id = batch.id;
            if let Some(settled) = self.outcome(self.shared.engine.submit(batch).await)? {
                return answer(&settled);
            }
            tracing::debug!(request = id.0, "conflicting requests: running the operation again");
        }
        tracing::error!("an operation failed: each of its attempts conflicted with other requests");
        Err(Status::Delay)
    }

    /// Returns the attributes of the file `name` in `dir`. The caller needs search permission on `dir`.
    pub fn lookup(&self, cred: &Cred, dir: FileId, name: &[u8]) -> Result<Attrs, Status> {
        self.read(cred, |tx| ops::lookup::read(tx, dir, name))
    }

    /// Returns the attributes of the parent directory of `dir`; `NoEnt` for the root. The caller needs search
    /// permission on `dir`.
    pub fn lookup_parent(&self, cred: &Cred, dir: FileId) -> Result<Attrs, Status> {
        self.read(cred, |tx| ops::lookup_parent::read(tx, dir))
    }

    /// Returns the attributes of a file, which may be an orphan; `Stale` if the file does not exist.
    pub fn getattr(&self, id: FileId) -> Result<Attrs, Status> {
        self.info(id).map(|info| info.attrs)
    }

    /// Returns the attributes, the layout and the generation of a file, which may be an orphan. `Stale` if the file
    /// does not exist.
    pub fn info(&self, id: FileId) -> Result<FileInfo, Status> {
        self.read(&Cred::root(), |tx| ops::info::read(tx, id))
    }

    /// Returns the regular files among the `max` inodes that follow the inode number `after`. Also returns the inode
    /// number after which the next call continues; `None` at the end.
    pub fn files_after(&self, after: FileId, max: usize) -> Result<(Vec<FileState>, Option<FileId>), Status> {
        self.read(&Cred::root(), |tx| ops::files::read(tx, after, max))
    }

    /// Returns the state of a regular file that `weir fsck` compares with the file's objects. `None` if the file does
    /// not exist, is not a regular file, or is damaged.
    pub fn file_state(&self, id: FileId) -> Result<Option<FileState>, Status> {
        self.read(&Cred::root(), |tx| ops::files::one(tx, id))
    }

    /// Raises the fencing generation of a regular file to `least`, a generation that an iod has reported. Returns
    /// whether the recorded generation was lower.
    pub async fn raise_generation(&self, now: Timestamp, id: FileId, least: Generation) -> Result<bool, Status> {
        self.change(&Cred::root(), now, |tx| ops::raise_generation::plan(tx, id, least)).await
    }

    /// Returns the offset after the last byte of a regular file that is known to be durable on an iod; 0 if none is
    /// known.
    pub fn written(&self, id: FileId) -> Result<u64, Status> {
        self.read(&Cred::root(), |tx| Ok(tx.tail(id)?.written))
    }

    /// Returns the rights that the permission bits of a file give the caller.
    pub fn access(&self, cred: &Cred, id: FileId) -> Result<Rights, Status> {
        self.read(cred, |tx| ops::access::read(tx, id))
    }

    /// Returns up to `max` entries of a directory (at most [`limits::READDIR_MAX`]) that follow the cookie `after`; 0
    /// means the start. The caller needs read permission on `dir`.
    ///
    /// Calls that read the whole directory return each entry exactly once if the entry exists during all of these
    /// calls, even if other entries are added or removed meanwhile.
    pub fn readdir(&self, cred: &Cred, dir: FileId, after: u64, max: usize) -> Result<ReadDir, Status> {
        self.read(cred, |tx| ops::readdir::read(tx, dir, after, max))
    }

    /// Returns the target of a symbolic link; `WrongType` for other kinds of files.
    pub fn readlink(&self, id: FileId) -> Result<Bytes, Status> {
        self.read(&Cred::root(), |tx| ops::readlink::read(tx, id))
    }

    /// Returns the value of an extended attribute; `NoXattr` if the file has no such attribute. `name` has no `user.`
    /// prefix.
    pub fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Result<Bytes, Status> {
        self.read(cred, |tx| ops::getxattr::read(tx, id, name))
    }

    /// Returns the names of all extended attributes of a file, in key order and without the `user.` prefix.
    pub fn listxattr(&self, id: FileId) -> Result<Vec<Bytes>, Status> {
        self.read(&Cred::root(), |tx| ops::listxattr::read(tx, id))
    }

    /// Returns the extended attributes of `dir` whose names begin with `prefix`, such as its policy. Permissions are
    /// not checked.
    ///
    /// A new directory copies the attributes of its parent that begin with `weir.`, so the policy of `dir` does not
    /// depend on the directories above it.
    pub fn effective_xattrs(&self, dir: FileId, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, Status> {
        self.read(&Cred::root(), |tx| ops::policy::read(tx, dir, prefix))
    }

    /// Searches up to `max` directory entries after the position `after` (directory and cookie; zeros at the start).
    /// Returns the entries that refer to a file in `ids`. If `within` is given, returns only entries of this
    /// directory. The cost is linear in the number of entries searched.
    pub fn names_of(
        &self,
        ids: &HashSet<FileId>,
        within: Option<FileId>,
        after: (FileId, u64),
        max: usize,
    ) -> Result<Names, Status> {
        self.read(&Cred::root(), |tx| ops::names::read(tx, ids, within, after, max))
    }

    /// Returns the parent of `dir`; the root is its own parent. `NotDir` if `dir` is not a directory.
    pub fn parent(&self, dir: FileId) -> Result<FileId, Status> {
        self.read(&Cred::root(), |tx| Tx::parent_in(&tx.core(dir)?))
    }

    /// Returns the number of inodes, including the root and orphans.
    pub fn files(&self) -> Result<u64, Status> {
        self.read(&Cred::root(), ops::statfs::read)
    }

    /// Returns up to `max` orphans with inode numbers above `after`. An orphan is a regular file without a name that is
    /// not yet deleted, because a client may have it open.
    pub fn orphans(&self, after: FileId, max: usize) -> Result<Vec<FileId>, Status> {
        self.read(&Cred::root(), |tx| ops::orphans::read(tx, after, max))
    }

    /// Returns up to `max` doomed files with inode numbers above `after`. A doomed file is deleted, but its objects may
    /// still exist.
    pub fn doomed(&self, after: FileId, max: usize) -> Result<Vec<Doomed>, Status> {
        self.read(&Cred::root(), |tx| ops::doomed::read(tx, after, max))
    }

    /// Returns up to `max` intents after the intent `after`, in the order of files and intent kinds.
    pub fn intents(&self, after: Option<FileIntent>, max: usize) -> Result<Vec<FileIntent>, Status> {
        self.read(&Cred::root(), |tx| ops::intents::read(tx, after, max))
    }

    /// Returns all intents of a file.
    pub fn intents_of(&self, file: FileId) -> Result<Vec<Intent>, Status> {
        self.read(&Cred::root(), |tx| ops::intents::of(tx, file))
    }

    /// Returns the value of the registry record `key`; `None` if there is none.
    pub fn registry(&self, key: &[u8]) -> Result<Option<Value>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::read(tx, key))
    }

    /// Returns up to `max` registry records whose keys begin with `prefix`, in the order of their keys.
    pub fn registry_list(&self, prefix: &[u8], max: usize) -> Result<Vec<(Bytes, Value)>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::list(tx, prefix, max))
    }

    /// Returns up to `max` registry records as [`Self::registry_list`] does, but also damaged records, with `None` as
    /// value.
    pub fn registry_survey(&self, prefix: &[u8], max: usize) -> Result<Vec<(Bytes, Option<Value>)>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::survey(tx, prefix, max))
    }

    /// Creates a regular file, or returns the existing file if `how` allows it.
    ///
    /// `layout` is the layout of a new file; with `None`, [`Self::set_layout`] sets the layout later. An existing file
    /// stays unchanged, and its permission bits are not checked. The caller checks the permissions and truncates the
    /// file if necessary.
    pub async fn create(
        &self,
        cred: &Cred,
        now: Timestamp,
        dir: FileId,
        name: &[u8],
        how: &CreateMode,
        layout: Option<&Layout>,
    ) -> Result<Created, Status> {
        let op = |tx: &mut Tx<'_>, id| ops::create::plan(tx, dir, name, how, (layout, true), id);
        self.make(cred, now, |made: &Created| made.file.attrs.id, op).await
    }

    /// Creates or finds a regular file as [`Self::create`] does, but does not wait until the change is durable. The
    /// file becomes durable with a later [`Self::settle`], or with a later change that a caller waits for. On
    /// completion, changes of earlier calls may not be durable yet either.
    pub async fn create_soon(
        &self,
        cred: &Cred,
        now: Timestamp,
        dir: FileId,
        name: &[u8],
        how: &CreateMode,
        layout: Option<&Layout>,
    ) -> Result<Created, Status> {
        let op = |tx: &mut Tx<'_>, id| ops::create::plan(tx, dir, name, how, (layout, false), id);
        self.make(cred, now, |made: &Created| made.file.attrs.id, op).await
    }

    /// Creates a directory. The directory copies the extended attributes of its parent that begin with `weir.` (its
    /// policy).
    pub async fn mkdir(
        &self,
        cred: &Cred,
        now: Timestamp,
        dir: FileId,
        name: &[u8],
        set: &SetAttrs,
    ) -> Result<Made, Status> {
        self.make(cred, now, |made: &Made| made.attrs.id, |tx, id| ops::mkdir::plan(tx, dir, name, set, id)).await
    }

    /// Creates the symbolic link `name` in `dir`, with the path `target`.
    pub async fn symlink(
        &self,
        cred: &Cred,
        now: Timestamp,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttrs,
    ) -> Result<Made, Status> {
        self.make(cred, now, |made: &Made| made.attrs.id, |tx, id| ops::symlink::plan(tx, dir, name, target, set, id))
            .await
    }

    /// Creates a device node, a socket or a named pipe; `BadType` for other kinds. Only the superuser may create device
    /// nodes.
    #[allow(clippy::too_many_arguments)] // one argument for each field of the request
    pub async fn mknod(
        &self,
        cred: &Cred,
        now: Timestamp,
        dir: FileId,
        name: &[u8],
        kind: FileKind,
        rdev: (u32, u32),
        set: &SetAttrs,
    ) -> Result<Made, Status> {
        self.make(cred, now, |made: &Made| made.attrs.id, |tx, id| ops::mknod::plan(tx, dir, name, kind, rdev, set, id))
            .await
    }

    /// Adds the name `name` in `dir` to the file `id` (hard link).
    pub async fn link(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        dir: FileId,
        name: &[u8],
    ) -> Result<Made, Status> {
        self.change(cred, now, |tx| ops::link::plan(tx, id, dir, name)).await
    }

    /// Removes the name of a file or of an empty directory.
    ///
    /// A regular file that loses its last name becomes an orphan in the same batch. It stays accessible by its inode
    /// number until [`Self::reap`] deletes it.
    pub async fn remove(&self, cred: &Cred, now: Timestamp, dir: FileId, name: &[u8]) -> Result<Removed, Status> {
        self.remove_ending(cred, now, dir, name, |_| false).await
    }

    /// Removes a name as [`Self::remove`] does, and may also delete a regular file that loses its last name. The file
    /// is deleted in the same batch if `ends` returns true, which means that no client has the file open and no client
    /// will open it. The namespace may call `ends` several times; the last result counts.
    pub async fn remove_ending(
        &self,
        cred: &Cred,
        now: Timestamp,
        dir: FileId,
        name: &[u8],
        ends: impl Fn(FileId) -> bool,
    ) -> Result<Removed, Status> {
        self.change(cred, now, |tx| ops::remove::plan(tx, dir, name, &ends)).await
    }

    /// Renames the directory entry `from` (directory and name) to `to`. `how` says what happens if the name `to`
    /// exists.
    pub async fn rename(
        &self,
        cred: &Cred,
        now: Timestamp,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        how: Renaming,
    ) -> Result<Renamed, Status> {
        let (from, to) = (End { dir: from.0, name: from.1 }, End { dir: to.0, name: to.1 });
        self.change(cred, now, |tx| ops::rename::plan(tx, from, to, how)).await
    }

    /// Changes attributes of a file. `writable` means that the caller has the file open for writing.
    ///
    /// A new size only changes the inode: the caller must truncate the objects of the file.
    pub async fn setattr(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        set: &SetAttrs,
        writable: bool,
    ) -> Result<Changed, Status> {
        self.change(cred, now, |tx| ops::setattr::plan(tx, id, set, writable, false)).await
    }

    /// Changes attributes as [`Self::setattr`] does, for a truncate that may affect objects. The same batch changes the
    /// attributes and stores the intent [`Intent::Truncate`]. The caller then truncates the objects and durably removes
    /// the intent before any client writes. Otherwise the mgr repeats the truncate after a crash and destroys new data.
    pub async fn truncate(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        set: &SetAttrs,
        writable: bool,
    ) -> Result<Changed, Status> {
        self.change(cred, now, |tx| ops::setattr::plan(tx, id, set, writable, true)).await
    }

    /// Sets the layout of a regular file, unless the file already has objects or its inline bytes are being moved to
    /// objects. Returns the layout that the file has after this operation.
    ///
    /// If the file is inline, the result also contains the inline bytes, which the caller must write to the objects.
    /// The inline bytes remain the valid copy and do not change until [`Self::arrived`] removes them. The returned
    /// attributes are the attributes of the file before the operation.
    pub async fn set_layout(
        &self,
        now: Timestamp,
        id: FileId,
        layout: &Layout,
    ) -> Result<(FileInfo, Option<Bytes>), Status> {
        self.change(&Cred::root(), now, |tx| ops::set_layout::plan(tx, id, layout)).await
    }

    /// Removes the inline bytes of a file after the caller has made them durable in the file's objects (see
    /// [`Self::set_layout`]).
    pub async fn arrived(&self, now: Timestamp, id: FileId) -> Result<FileInfo, Status> {
        self.change(&Cred::root(), now, |tx| ops::set_layout::arrived(tx, id)).await
    }

    /// Writes to a regular file that has no objects. If the file has objects, or the write extends the file beyond
    /// `most` bytes, changes nothing and returns `None`. The write is visible on completion. If `durable` is set, the
    /// write is also durable on completion; otherwise the write becomes durable only with a later [`Self::settle`] or a
    /// later durable change.
    pub async fn write_inline(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        (offset, data, most): (u64, &[u8], u64),
        durable: bool,
    ) -> Result<Option<Changed>, Status> {
        let op = |tx: &mut Tx<'_>| {
            if !durable {
                tx.not_durable();
            }
            ops::write_inline::plan(tx, id, offset, data, most)
        };
        self.change(cred, now, op).await
    }

    /// Returns the first bytes of an inline file and the file size. All bytes of the file after the returned bytes are
    /// zeros. `None` if the bytes of the file are in objects.
    pub fn read_inline(&self, id: FileId) -> Result<Option<(Bytes, u64)>, Status> {
        self.read(&Cred::root(), |tx| ops::read_inline::read(tx, id))
    }

    /// Raises the fencing generation of a regular file. Iods that have received the new generation refuse
    /// capabilities of older generations. The intent [`Intent::Fence`] remains until the caller has sent the
    /// generation to all iods.
    pub async fn fence(&self, now: Timestamp, id: FileId) -> Result<Generation, Status> {
        self.change(&Cred::root(), now, |tx| ops::fence::plan(tx, id)).await
    }

    /// Sets an extended attribute. `name` has no `user.` prefix.
    pub async fn setxattr(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<ChangeInfo, Status> {
        self.change(cred, now, |tx| ops::setxattr::plan(tx, id, name, value, how)).await
    }

    /// Removes an extended attribute. `name` has no `user.` prefix.
    pub async fn removexattr(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        name: &[u8],
    ) -> Result<ChangeInfo, Status> {
        self.change(cred, now, |tx| ops::removexattr::plan(tx, id, name)).await
    }

    /// Deletes an orphan that no client has open. The same batch deletes the inode and adds the file's objects to the
    /// list of doomed files.
    ///
    /// Returns `None` if the file is not an orphan or has no objects.
    pub async fn reap(&self, now: Timestamp, id: FileId) -> Result<Option<Doomed>, Status> {
        self.change(&Cred::root(), now, |tx| ops::reap::plan(tx, id)).await
    }

    /// Checks one view of the store for damage and passes each fault to `sink`; see [`crate::check_into`].
    pub fn check_into(&self, memory: CheckMemory, sink: &mut dyn FnMut(Event) -> Walk) -> Result<(), Status> {
        Ok(crate::check_into(&*self.shared.engine.view()?, memory, sink)?)
    }

    /// Checks one view of the store and returns all faults; see [`crate::check()`].
    pub fn check(&self) -> Result<Vec<Fault>, Status> {
        Ok(crate::check(&*self.shared.engine.view()?)?)
    }

    /// Repairs a fault that `weir fsck` found, if the fault still exists. The caller must repair each fault only once,
    /// because the repair of the inode count adds a difference to the stored count.
    ///
    /// A file without a name gets a name in `/lost+found`, which is created if necessary.
    pub async fn mend(&self, now: Timestamp, fault: &Fault) -> Result<Mended, Status> {
        let root = Cred::root();
        let lost = match fault {
            Fault::Nameless { .. } | Fault::Circle { .. } | Fault::NoDirectory { .. } => {
                Some(self.lost_and_found(now).await?)
            }
            _ => None,
        };
        if let Fault::NextId { .. } = fault {
            // The store's counter of inode numbers was wrong, so files may already use the numbers in the cache.
            // Discard these numbers.
            self.shared.ids.clear();
        }
        self.change(&root, now, |tx| ops::repair::plan(tx, fault, lost)).await
    }

    /// Returns whether a repair of `fault` would succeed, without changing anything.
    pub fn would_mend(&self, fault: &Fault) -> Result<Mended, Status> {
        let root = Cred::root();
        // The caller discards the batch, so use the root directory instead of `/lost+found`, which may not exist.
        let (answer, _) = self.plan(&root, Timestamp::default(), &|tx| {
            ops::repair::plan(tx, fault, Some(FileId::ROOT)).or_else(|e| match e {
                Status::Exist => ops::known(Mended::Yes),
                e => Err(e),
            })
        })?;
        answer(&Settled::default())
    }

    async fn lost_and_found(&self, now: Timestamp) -> Result<FileId, Status> {
        let (root, name) = (Cred::root(), ops::repair::LOST_AND_FOUND);
        match self.lookup(&root, FileId::ROOT, name) {
            Ok(found) if found.kind == FileKind::Directory => return Ok(found.id),
            Ok(_) => return Err(Status::NotDir),
            Err(Status::NoEnt) => {}
            Err(e) => return Err(e),
        }
        let set = SetAttrs { mode: Some(0o700), ..SetAttrs::default() };
        Ok(self.mkdir(&root, now, FileId::ROOT, name, &set).await?.attrs.id)
    }

    /// Durably stores an intent of a regular file.
    pub async fn record_intent(&self, now: Timestamp, intent: FileIntent) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::intents::plan(tx, intent)).await
    }

    /// Removes finished intents. Unless `durable` is set, the removal becomes durable only with a later durable change,
    /// so the intents may reappear after a crash.
    pub async fn remove_intents(&self, now: Timestamp, done: &[FileIntent], durable: bool) -> Result<(), Status> {
        for done in done.chunks(limits::BATCH_WRITES_MAX) {
            self.change(&Cred::root(), now, |tx| ops::intents::remove(tx, done, durable)).await?;
        }
        Ok(())
    }

    /// Removes files from the list of doomed files (deleted files whose objects may still exist), after the mgr has
    /// removed their objects from every iod. The removal becomes durable only with a later durable change, so the files
    /// may reappear in the list after a crash.
    pub async fn forget_doomed(&self, now: Timestamp, ids: &[FileId]) -> Result<(), Status> {
        for ids in ids.chunks(limits::BATCH_WRITES_MAX) {
            self.change(&Cred::root(), now, |tx| ops::forget_doomed::plan(tx, ids)).await?;
        }
        Ok(())
    }

    /// Sets the registry record `key` to `value`, or removes the record if `value` is `None`.
    pub async fn registry_put(&self, now: Timestamp, key: &[u8], value: Option<&Bytes>) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::registry::plan(tx, key, value)).await
    }
}
