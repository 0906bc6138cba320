//! The API of the namespace, which runs operations on a store, commits their batches, and runs an operation again when
//! its batch conflicts.

mod numbers;
mod snapshot;
mod swaps;

pub use snapshot::{DumpError, DumpPart};

use crate::engine::{Batch, Broken, Engine, Outcome, RequestId, Standing, Unreadable, Value, Walk, Write};
use crate::ids::Ids;
use crate::ops::rename::End;
use crate::ops::{self, Answer, Plan};
use crate::schema::{
    self, Body, CookieKey, Core, Counts, FormatRecord, Intent, NextId, Noted, Record, Tail, XattrTally,
};
use crate::tx::{Settled, Tx};
use crate::{
    ChangeInfo, Changed, CheckMemory, Created, Doomed, Event, Fault, FileInfo, FileState, How, Layout, Made, Mended,
    Names, ReadDir, Removed, Renamed, Rights, SetXattr,
};
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{Attrs, Cred, FileId, FileKind, Fsid, Generation, Renaming, SetAttrs, Status, Timestamp, limits};

mod sizes;

/// How often an operation runs again before its caller gets [`Status::Delay`].
///
/// Of all conflicting operations in one window of the store, one succeeds. So an operation reaches this limit only if a
/// record is damaged.
const RUNS_MAX: usize = 10_000;

/// Number of low bits of a change attribute, below the number of the mgr's start. A single run makes fewer changes than
/// these bits can count.
const CHANGES_PER_START: u32 = 40;

/// Parameters of a new file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    /// Identity of the file system.
    pub fsid: Fsid,
    /// Creation time.
    pub now: Timestamp,
    /// Random bytes that become the secret key of directory cookies.
    pub cookie_key: [u8; 16],
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
}

/// Why a store cannot be used as a namespace.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's message says it
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

/// A namespace on a store.
///
/// Reading operations answer at once from a view. Changing operations complete when their batch is on stable storage,
/// unless their documentation says otherwise. After a caller drops the future of a change, the change may or may not
/// happen.
#[derive(Debug)]
pub struct Namespace<E> {
    shared: Arc<Shared<E>>,
    /// Whether changes complete before they are on stable storage, even durable ones: see [`Namespace::soon`].
    soon: bool,
}

/// State that all handles of one namespace share.
#[derive(Debug)]
struct Shared<E> {
    engine: E,
    format: FormatRecord,
    ids: Ids,
    requests: AtomicU64,
    /// Added to the change attribute of a record when the namespace reports it.
    since: AtomicU64,
    /// Whether the namespace gives out no inode numbers.
    held: AtomicBool,
}

impl<E: Engine> Namespace<E> {
    /// Creates an empty file system on an empty store.
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

    /// Opens the file system on a formatted store.
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

    /// Returns a handle to the same namespace, in which no change waits for the disk. A change is durable once a later
    /// call of [`Self::settle`], or a later change that waits for the disk, has completed. A crash loses only the
    /// latest changes: if it loses a change, it also loses all changes after it.
    pub fn soon(&self) -> Self {
        Namespace { shared: self.shared.clone(), soon: true }
    }

    /// Returns a handle to the same namespace, in which changes wait for the disk as usual.
    pub fn waiting(&self) -> Self {
        Namespace { shared: self.shared.clone(), soon: false }
    }

    /// Returns the identity of the file system.
    pub fn fsid(&self) -> Fsid {
        self.shared.format.fsid
    }

    /// Returns the creation time of the file system.
    pub fn created(&self) -> Timestamp {
        self.shared.format.created
    }

    /// Makes every change attribute larger than all that were reported before start number `start`, which must be
    /// larger than the number of any earlier start. So clients revalidate everything that they cached of files and
    /// directories.
    ///
    /// The mgr calls this before it reports any attribute. A power failure may have lost changes that no caller waited
    /// for. The new change attributes are above those of the lost changes.
    pub fn begin(&self, start: u32) {
        self.shared.since.store(u64::from(start) << CHANGES_PER_START, Ordering::Relaxed);
    }

    fn since(&self) -> u64 {
        self.shared.since.load(Ordering::Relaxed)
    }

    /// Completes when the store has failed permanently, and never otherwise. The daemon must then exit and be
    /// restarted.
    pub async fn failed(&self) -> Broken {
        self.shared.engine.failed().await
    }

    /// Returns the state of the store: its size and its counters.
    pub fn standing(&self) -> Standing {
        self.shared.engine.standing()
    }

    /// Completes when all changes that completed before are on stable storage, also those of [`Self::note_write`].
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
        // No reading operation looks at the clock.
        op(&Tx::new(&*view, (&self.shared.format.cookies, self.since()), cred, Timestamp::default()))
    }

    /// Runs the operation on a new view. Returns `None` as the batch if the operation changes nothing.
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
        // An operation that only reads needs no commit, because all its reads come from one view.
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

    /// Returns the attributes of the file that has the name `name` in `dir`. Needs search permission.
    pub fn lookup(&self, cred: &Cred, dir: FileId, name: &[u8]) -> Result<Attrs, Status> {
        self.read(cred, |tx| ops::lookup::read(tx, dir, name))
    }

    /// Returns the parent directory of `dir`; `NoEnt` for the root. Needs search permission.
    pub fn lookup_parent(&self, cred: &Cred, dir: FileId) -> Result<Attrs, Status> {
        self.read(cred, |tx| ops::lookup_parent::read(tx, dir))
    }

    /// Returns the attributes of a file, orphans included; `Stale` if the file is gone.
    pub fn getattr(&self, id: FileId) -> Result<Attrs, Status> {
        self.info(id).map(|info| info.attrs)
    }

    /// Returns the attributes, the layout and the generation of a file, orphans included; `Stale` if the file is gone.
    pub fn info(&self, id: FileId) -> Result<FileInfo, Status> {
        self.read(&Cred::root(), |tx| ops::info::read(tx, id))
    }

    /// Returns the regular files among the next `max` inodes after `after`, and where to continue (`None` at the end).
    pub fn files_after(&self, after: FileId, max: usize) -> Result<(Vec<FileState>, Option<FileId>), Status> {
        self.read(&Cred::root(), |tx| ops::files::read(tx, after, max))
    }

    /// Returns a regular file with everything that concerns its objects; `None` if the file is gone or cannot be read.
    pub fn file_state(&self, id: FileId) -> Result<Option<FileState>, Status> {
        self.read(&Cred::root(), |tx| ops::files::one(tx, id))
    }

    /// Raises the generation of a regular file to one that an iod already has. Returns whether the generation was
    /// lower.
    pub async fn raise_generation(&self, now: Timestamp, id: FileId, least: Generation) -> Result<bool, Status> {
        self.change(&Cred::root(), now, |tx| ops::raise_generation::plan(tx, id, least)).await
    }

    /// Returns the end of the bytes of a regular file that are known to be on an iod's disk; 0 if none are known.
    pub fn written(&self, id: FileId) -> Result<u64, Status> {
        self.read(&Cred::root(), |tx| Ok(tx.tail(id)?.written))
    }

    /// Returns what the permission bits of the file allow the caller.
    pub fn access(&self, cred: &Cred, id: FileId) -> Result<Rights, Status> {
        self.read(cred, |tx| ops::access::read(tx, id))
    }

    /// Returns up to `max` entries (at most [`limits::READDIR_MAX`]) after the cookie `after`, which is 0 at the start.
    /// Needs read permission.
    ///
    /// An entry that exists during a whole walk, from 0 to the end, is returned exactly once, whatever other entries
    /// are added or removed meanwhile.
    pub fn readdir(&self, cred: &Cred, dir: FileId, after: u64, max: usize) -> Result<ReadDir, Status> {
        self.read(cred, |tx| ops::readdir::read(tx, dir, after, max))
    }

    /// Returns the target of a symlink; `WrongType` for other kinds of files.
    pub fn readlink(&self, id: FileId) -> Result<Bytes, Status> {
        self.read(&Cred::root(), |tx| ops::readlink::read(tx, id))
    }

    /// Returns the value of an extended attribute; `NoXattr` if there is none. The name has no `user.` prefix.
    pub fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Result<Bytes, Status> {
        self.read(cred, |tx| ops::getxattr::read(tx, id, name))
    }

    /// Returns the names of all extended attributes, without `user.`, in order.
    pub fn listxattr(&self, id: FileId) -> Result<Vec<Bytes>, Status> {
        self.read(&Cred::root(), |tx| ops::listxattr::read(tx, id))
    }

    /// Returns the extended attributes of `dir` whose names begin with `prefix`, without a permission check: the
    /// effective policy of the directory.
    ///
    /// A new directory inherits the attributes of its parent whose names begin with `weir.`. So no directory above
    /// `dir` counts.
    pub fn effective_xattrs(&self, dir: FileId, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, Status> {
        self.read(&Cred::root(), |tx| ops::policy::read(tx, dir, prefix))
    }

    /// Looks at up to `max` names after `after` (directory and cookie; zeros at the start). Returns the names that
    /// stand for one of `ids`, in the directory `within` or in all directories. The cost is linear in the number of
    /// names.
    pub fn names_of(
        &self,
        ids: &HashSet<FileId>,
        within: Option<FileId>,
        after: (FileId, u64),
        max: usize,
    ) -> Result<Names, Status> {
        self.read(&Cred::root(), |tx| ops::names::read(tx, ids, within, after, max))
    }

    /// Returns the parent of `dir`, which for the root is the root itself; `NotDir` if `dir` is no directory.
    pub fn parent(&self, dir: FileId) -> Result<FileId, Status> {
        self.read(&Cred::root(), |tx| Tx::parent_in(&tx.core(dir)?))
    }

    /// Returns the number of files, the root and orphans included.
    pub fn files(&self) -> Result<u64, Status> {
        self.read(&Cred::root(), ops::statfs::read)
    }

    /// Returns up to `max` orphans with numbers above `after`: files without a name that are not yet reaped.
    pub fn orphans(&self, after: FileId, max: usize) -> Result<Vec<FileId>, Status> {
        self.read(&Cred::root(), |tx| ops::orphans::read(tx, after, max))
    }

    /// Returns up to `max` doomed files with numbers above `after`: deleted files whose objects may still exist.
    pub fn doomed(&self, after: FileId, max: usize) -> Result<Vec<Doomed>, Status> {
        self.read(&Cred::root(), |tx| ops::doomed::read(tx, after, max))
    }

    /// Returns up to `max` intents after `after`, ordered by file and kind.
    pub fn intents(&self, after: Option<Noted>, max: usize) -> Result<Vec<Noted>, Status> {
        self.read(&Cred::root(), |tx| ops::intents::read(tx, after, max))
    }

    /// Returns all intents of one file.
    pub fn intents_of(&self, file: FileId) -> Result<Vec<Intent>, Status> {
        self.read(&Cred::root(), |tx| ops::intents::of(tx, file))
    }

    /// Returns the registry record under `key`.
    pub fn registry(&self, key: &[u8]) -> Result<Option<Value>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::read(tx, key))
    }

    /// Returns up to `max` registry records whose keys begin with `prefix`, in order.
    pub fn registry_list(&self, prefix: &[u8], max: usize) -> Result<Vec<(Bytes, Value)>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::list(tx, prefix, max))
    }

    /// As [`Self::registry_list`], but also returns damaged records, without their values.
    pub fn registry_survey(&self, prefix: &[u8], max: usize) -> Result<Vec<(Bytes, Option<Value>)>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::survey(tx, prefix, max))
    }

    /// Creates a regular file, or finds the existing one if `how` allows that.
    ///
    /// `layout` is the layout of a new file; with `None`, [`Self::set_layout`] sets one later. An existing file is not
    /// changed and its permission bits are not checked: the caller opens and truncates the file.
    pub async fn create(
        &self,
        cred: &Cred,
        now: Timestamp,
        dir: FileId,
        name: &[u8],
        how: &How,
        layout: Option<&Layout>,
    ) -> Result<Created, Status> {
        let op = |tx: &mut Tx<'_>, id| ops::create::plan(tx, dir, name, how, (layout, true), id);
        self.make(cred, now, |made: &Created| made.file.attrs.id, op).await
    }

    /// As [`Self::create`], but the answer does not wait for the disk. The file is durable once a later call of
    /// [`Self::settle`], or a later change that waits for the disk, has completed. Earlier changes may not be on disk
    /// yet either.
    pub async fn create_soon(
        &self,
        cred: &Cred,
        now: Timestamp,
        dir: FileId,
        name: &[u8],
        how: &How,
        layout: Option<&Layout>,
    ) -> Result<Created, Status> {
        let op = |tx: &mut Tx<'_>, id| ops::create::plan(tx, dir, name, how, (layout, false), id);
        self.make(cred, now, |made: &Created| made.file.attrs.id, op).await
    }

    /// Creates a directory, which inherits the extended attributes `weir.*` of its parent.
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

    /// Creates a symlink.
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

    /// Creates a device node (superuser only), socket or named pipe; `BadType` for other kinds.
    #[allow(clippy::too_many_arguments)] // one for each thing that a request of this operation carries
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

    /// Adds a name to the file `id`.
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
    /// A regular file that loses its last name becomes an orphan in the same batch. The file remains usable by its
    /// number until [`Self::reap`].
    pub async fn remove(&self, cred: &Cred, now: Timestamp, dir: FileId, name: &[u8]) -> Result<Removed, Status> {
        self.remove_ending(cred, now, dir, name, |_| false).await
    }

    /// As [`Self::remove`], but may also end a regular file that loses its last name. If `ends` says that no client has
    /// the file open and none will open it, the file ends in the same batch as by [`Self::reap`]. `ends` may be called
    /// several times; the last call decides.
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

    /// Moves the name `from` (directory and name) to `to`. `how` says what happens to a file that already has the name
    /// `to`.
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

    /// Changes attributes; `writable` says that the caller has the file open for writing.
    ///
    /// A size is only recorded: the caller truncates the objects.
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

    /// As [`Self::setattr`], with a size to which objects may have to be truncated. The new attributes and the intent
    /// ([`Intent::Cut`]) are one change. The caller truncates the objects and then durably forgets the intent, before
    /// any client writes: a second truncation would lose the written bytes.
    pub async fn cut(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        set: &SetAttrs,
        writable: bool,
    ) -> Result<Changed, Status> {
        self.change(cred, now, |tx| ops::setattr::plan(tx, id, set, writable, true)).await
    }

    /// Gives a regular file its layout unless it has one, and returns the layout that the file then has. A layout for
    /// later, or of a file without objects, does not count as a layout.
    ///
    /// If the file is inline, the answer also has its bytes. The bytes are then in transit to the objects. The inline
    /// copy is valid until [`Self::arrived`], and only a truncate changes it. The attributes in the answer are those
    /// from before the operation.
    pub async fn set_layout(
        &self,
        now: Timestamp,
        id: FileId,
        layout: &Layout,
    ) -> Result<(FileInfo, Option<Bytes>), Status> {
        self.change(&Cred::root(), now, |tx| ops::set_layout::plan(tx, id, layout)).await
    }

    /// Removes the inline bytes that [`Self::set_layout`] returned, once they are durable in the objects of the file.
    pub async fn arrived(&self, now: Timestamp, id: FileId) -> Result<FileInfo, Status> {
        self.change(&Cred::root(), now, |tx| ops::set_layout::arrived(tx, id)).await
    }

    /// Writes into a regular file that has no objects. Returns `None` and changes nothing if the file has objects or
    /// would grow beyond `most` bytes. The write is visible when it completes. It is also durable if `durable` is set,
    /// otherwise as for [`Self::note_write`].
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

    /// Returns the bytes of an inline file, from offset 0 on, and the size of the file, whose remaining bytes are
    /// zeros. `None` if the objects have the bytes.
    pub fn read_inline(&self, id: FileId) -> Result<Option<(Bytes, u64)>, Status> {
        self.read(&Cred::root(), |tx| ops::read_inline::read(tx, id))
    }

    /// Raises the generation of a regular file's objects, so that iods can refuse rights that were granted before. An
    /// intent ([`Intent::Fence`]) remains until the caller has informed all iods.
    pub async fn fence(&self, now: Timestamp, id: FileId) -> Result<Generation, Status> {
        self.change(&Cred::root(), now, |tx| ops::fence::plan(tx, id)).await
    }

    /// Sets an extended attribute. The name has no `user.` prefix.
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

    /// Removes an extended attribute.
    pub async fn removexattr(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        name: &[u8],
    ) -> Result<ChangeInfo, Status> {
        self.change(cred, now, |tx| ops::removexattr::plan(tx, id, name)).await
    }

    /// Ends an orphan that no client has open any more: deletes its inode and dooms its objects in the same batch.
    ///
    /// `None` if the file is not an orphan (any more) or never had a layout.
    pub async fn reap(&self, now: Timestamp, id: FileId) -> Result<Option<Doomed>, Status> {
        self.change(&Cred::root(), now, |tx| ops::reap::plan(tx, id)).await
    }

    /// Checks one view of the store for damage and passes the findings to `sink`; see [`crate::check_into`].
    pub fn check_into(&self, memory: CheckMemory, sink: &mut dyn FnMut(Event) -> Walk) -> Result<(), Status> {
        Ok(crate::check_into(&*self.shared.engine.view()?, memory, sink)?)
    }

    /// Returns everything that is wrong in the store; see [`crate::check()`].
    pub fn check(&self) -> Result<Vec<Fault>, Status> {
        Ok(crate::check(&*self.shared.engine.view()?)?)
    }

    /// Repairs a fault that a check found in this store, if the fault still exists. The caller repairs each fault once.
    ///
    /// A file without a name gets one in `/lost+found`, which is created if necessary.
    pub async fn mend(&self, now: Timestamp, fault: &Fault) -> Result<Mended, Status> {
        let root = Cred::root();
        let lost = match fault {
            Fault::Nameless { .. } | Fault::Circle { .. } | Fault::NoDirectory { .. } => {
                Some(self.lost_and_found(now).await?)
            }
            _ => None,
        };
        if let Fault::NextId { .. } = fault {
            // Cached numbers may be in use too.
            self.shared.ids.clear();
        }
        self.change(&root, now, |tx| ops::repair::plan(tx, fault, lost)).await
    }

    /// Returns whether a fault that a check found still exists and can be repaired.
    pub fn would_mend(&self, fault: &Fault) -> Result<Mended, Status> {
        let root = Cred::root();
        // Any directory will do, because nothing is changed.
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
    pub async fn note(&self, now: Timestamp, noted: Noted) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::intents::plan(tx, noted)).await
    }

    /// Forgets intents that are finished. Unless `durable`, only a later durable change makes this durable: after a
    /// crash the intents may be listed again.
    pub async fn forget(&self, now: Timestamp, done: &[Noted], durable: bool) -> Result<(), Status> {
        for done in done.chunks(limits::BATCH_WRITES_MAX) {
            self.change(&Cred::root(), now, |tx| ops::intents::forget(tx, done, durable)).await?;
        }
        Ok(())
    }

    /// Forgets doomed files whose objects are gone from every iod. Only a later durable change makes this durable:
    /// after a crash the files may be listed again.
    pub async fn forget_doomed(&self, now: Timestamp, ids: &[FileId]) -> Result<(), Status> {
        for ids in ids.chunks(limits::BATCH_WRITES_MAX) {
            self.change(&Cred::root(), now, |tx| ops::forget_doomed::plan(tx, ids)).await?;
        }
        Ok(())
    }

    /// Sets the registry record under `key`, or removes it.
    pub async fn registry_put(&self, now: Timestamp, key: &[u8], value: Option<&Bytes>) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::registry::plan(tx, key, value)).await
    }
}
