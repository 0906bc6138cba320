//! The driver: runs operations on a store, commits what they plan, and runs them again when they conflict.

mod numbers;
mod snapshot;

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

/// How often an operation is run again before its caller is told to come back later.
///
/// Of all that conflict in one window of the store one gets through, so this is out of reach unless a record is damaged.
const RUNS_MAX: usize = 10_000;

/// Bits of a change attribute below the number of the start: more changes than there are in one.
const CHANGES_PER_START: u32 = 40;

/// What a new file system starts with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    /// Its identity.
    pub fsid: Fsid,
    /// The time of its making.
    pub now: Timestamp,
    /// Random bytes: the secret key of directory cookies.
    pub cookie_key: [u8; 16],
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
}

/// Why a store is not a namespace that can be used.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's message says it
pub enum OpenError {
    #[error(
        "the metadata store was never formatted: if `weir mkfs` was interrupted, remove the store and run it again"
    )]
    NotFormatted,
    #[error("the metadata store holds a file system already")]
    Formatted,
    #[error(
        "the metadata store has format version {found}, this program speaks {}: use the version of weir that made it",
        FormatRecord::VERSION
    )]
    WrongVersion { found: u32 },
    #[error("this is not a metadata store of weir")]
    Foreign,
    #[error("the format record of the metadata store is damaged")]
    Damaged,
    #[error("the metadata store has no room left")]
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
/// Reading operations answer at once from a view. Changing ones complete when their batch is on stable storage, unless
/// they say otherwise; dropping their future leaves open whether they happen.
#[derive(Debug)]
pub struct Namespace<E> {
    shared: Arc<Shared<E>>,
    /// Changes complete before they are on stable storage, whatever they say: see [`Namespace::soon`].
    soon: bool,
}

/// What all views of one namespace share.
#[derive(Debug)]
struct Shared<E> {
    engine: E,
    format: FormatRecord,
    ids: Ids,
    requests: AtomicU64,
    /// What is added to the change attributes of records to tell them.
    since: AtomicU64,
    /// Whether no inode number is given out.
    held: AtomicBool,
}

impl<E: Engine> Namespace<E> {
    /// Makes an empty file system on an empty store.
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

    /// The same namespace, in which no change waits for the disk. It is there to stay once [`Self::settle`], or anything that
    /// waits, was begun afterwards and has completed; what a crash takes is the end of all that was changed, never something
    /// before what it leaves.
    pub fn soon(&self) -> Self {
        Namespace { shared: self.shared.clone(), soon: true }
    }

    /// The same namespace, in which changes wait for the disk as ever.
    pub fn waiting(&self) -> Self {
        Namespace { shared: self.shared.clone(), soon: false }
    }

    /// Identity of the file system.
    pub fn fsid(&self) -> Fsid {
        self.shared.format.fsid
    }

    /// When the file system was made.
    pub fn created(&self) -> Timestamp {
        self.shared.format.created
    }

    /// From now on no change attribute is told that was told before `start`, a number larger than at any earlier start:
    /// what clients keep of files and directories counts as old.
    ///
    /// To be called before anything is told. A power cut may have taken changes that nobody waited for; this is above all
    /// of them.
    pub fn begin(&self, start: u32) {
        self.shared.since.store(u64::from(start) << CHANGES_PER_START, Ordering::Relaxed);
    }

    fn since(&self) -> u64 {
        self.shared.since.load(Ordering::Relaxed)
    }

    /// Completes when the store has failed for good, and never otherwise: the daemon must end, and be started again.
    pub async fn failed(&self) -> Broken {
        self.shared.engine.failed().await
    }

    /// How the store stands: its size and what it has done.
    pub fn standing(&self) -> Standing {
        self.shared.engine.standing()
    }

    /// Completes when everything that completed before is on stable storage, [`Self::note_write`] included.
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

    /// Runs the operation on a fresh view; `None` for the batch if there is nothing to change.
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
        // What was only read was read from one view, which is as good as a commit.
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
            tracing::debug!(request = id.0, "conflict, run again");
        }
        tracing::error!("an operation conflicts without end");
        Err(Status::Delay)
    }

    /// The file that `name` stands for in `dir`. Needs search permission.
    pub fn lookup(&self, cred: &Cred, dir: FileId, name: &[u8]) -> Result<Attrs, Status> {
        self.read(cred, |tx| ops::lookup::read(tx, dir, name))
    }

    /// The directory that `dir` is in; `NoEnt` for the root. Needs search permission.
    pub fn lookup_parent(&self, cred: &Cred, dir: FileId) -> Result<Attrs, Status> {
        self.read(cred, |tx| ops::lookup_parent::read(tx, dir))
    }

    /// The attributes of a file, orphans included; `Stale` if it is gone.
    pub fn getattr(&self, id: FileId) -> Result<Attrs, Status> {
        self.info(id).map(|info| info.attrs)
    }

    /// Attributes, layout and generation of a file, orphans included; `Stale` if it is gone.
    pub fn info(&self, id: FileId) -> Result<FileInfo, Status> {
        self.read(&Cred::root(), |tx| ops::info::read(tx, id))
    }

    /// The regular files among up to `max` inodes behind `after`, and where to go on (`None` at the end).
    pub fn files_after(&self, after: FileId, max: usize) -> Result<(Vec<FileState>, Option<FileId>), Status> {
        self.read(&Cred::root(), |tx| ops::files::read(tx, after, max))
    }

    /// A regular file with everything that concerns its objects; `None` if it is gone or cannot be read.
    pub fn file_state(&self, id: FileId) -> Result<Option<FileState>, Status> {
        self.read(&Cred::root(), |tx| ops::files::one(tx, id))
    }

    /// Raises the generation of a regular file to one that an iod already has; whether it was lower.
    pub async fn raise_generation(&self, now: Timestamp, id: FileId, least: Generation) -> Result<bool, Status> {
        self.change(&Cred::root(), now, |tx| ops::raise::plan(tx, id, least)).await
    }

    /// One past the last byte of a regular file that is known to be on the disk of an iod; 0 if none is.
    pub fn written(&self, id: FileId) -> Result<u64, Status> {
        self.read(&Cred::root(), |tx| Ok(tx.tail(id)?.written))
    }

    /// What the caller may do with the file by its permission bits.
    pub fn access(&self, cred: &Cred, id: FileId) -> Result<Rights, Status> {
        self.read(cred, |tx| ops::access::read(tx, id))
    }

    /// Up to `max` entries (at most [`limits::READDIR_MAX`]) behind the cookie `after`, 0 for the start. Needs read
    /// permission.
    ///
    /// An entry that is there throughout a walk from 0 to the end is shown exactly once, whatever comes and goes
    /// meanwhile.
    pub fn readdir(&self, cred: &Cred, dir: FileId, after: u64, max: usize) -> Result<ReadDir, Status> {
        self.read(cred, |tx| ops::readdir::read(tx, dir, after, max))
    }

    /// The target of a symlink; `WrongType` for anything else.
    pub fn readlink(&self, id: FileId) -> Result<Bytes, Status> {
        self.read(&Cred::root(), |tx| ops::readlink::read(tx, id))
    }

    /// The value of an extended attribute, whose name comes without `user.`; `NoXattr` if there is none.
    pub fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Result<Bytes, Status> {
        self.read(cred, |tx| ops::getxattr::read(tx, id, name))
    }

    /// The names of all extended attributes, without `user.`, in order.
    pub fn listxattr(&self, id: FileId) -> Result<Vec<Bytes>, Status> {
        self.read(&Cred::root(), |tx| ops::listxattr::read(tx, id))
    }

    /// The extended attributes of `dir` whose names begin with `prefix`, unchecked: the policy that holds there.
    ///
    /// A new directory gets those of its parent whose names begin with `weir.`, so nothing further up counts.
    pub fn effective_xattrs(&self, dir: FileId, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, Status> {
        self.read(&Cred::root(), |tx| ops::policy::read(tx, dir, prefix))
    }

    /// Looks at up to `max` names behind `after` (directory and cookie; zeros for the start) for those that stand for one
    /// of `ids`: in the directory `within`, or in all of them. Costs as much as there are names.
    pub fn names_of(
        &self,
        ids: &HashSet<FileId>,
        within: Option<FileId>,
        after: (FileId, u64),
        max: usize,
    ) -> Result<Names, Status> {
        self.read(&Cred::root(), |tx| ops::names::read(tx, ids, within, after, max))
    }

    /// The directory that `dir` is in, itself for the root; `NotDir` for anything else.
    pub fn parent(&self, dir: FileId) -> Result<FileId, Status> {
        self.read(&Cred::root(), |tx| Tx::parent_in(&tx.core(dir)?))
    }

    /// The number of files, the root and orphans included.
    pub fn files(&self) -> Result<u64, Status> {
        self.read(&Cred::root(), ops::statfs::read)
    }

    /// Up to `max` orphans with numbers above `after`: files without a name, not yet reaped.
    pub fn orphans(&self, after: FileId, max: usize) -> Result<Vec<FileId>, Status> {
        self.read(&Cred::root(), |tx| ops::orphans::read(tx, after, max))
    }

    /// Up to `max` doomed files with numbers above `after`: gone, but objects may remain.
    pub fn doomed(&self, after: FileId, max: usize) -> Result<Vec<Doomed>, Status> {
        self.read(&Cred::root(), |tx| ops::doomed::read(tx, after, max))
    }

    /// Up to `max` notes behind `after` of what is still to be done about files, by file and kind.
    pub fn intents(&self, after: Option<Noted>, max: usize) -> Result<Vec<Noted>, Status> {
        self.read(&Cred::root(), |tx| ops::intents::read(tx, after, max))
    }

    /// Everything that is noted about one file.
    pub fn intents_of(&self, file: FileId) -> Result<Vec<Intent>, Status> {
        self.read(&Cred::root(), |tx| ops::intents::of(tx, file))
    }

    /// The registry record under `key`.
    pub fn registry(&self, key: &[u8]) -> Result<Option<Value>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::read(tx, key))
    }

    /// Up to `max` registry records whose keys begin with `prefix`, in order.
    pub fn registry_list(&self, prefix: &[u8], max: usize) -> Result<Vec<(Bytes, Value)>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::list(tx, prefix, max))
    }

    /// As [`Self::registry_list`], with damaged records shown without their values.
    pub fn registry_survey(&self, prefix: &[u8], max: usize) -> Result<Vec<(Bytes, Option<Value>)>, Status> {
        self.read(&Cred::root(), |tx| ops::registry::survey(tx, prefix, max))
    }

    /// Makes a regular file, or finds the one that is there as far as `how` allows.
    ///
    /// `layout` is where a new file's bytes are to live, `None` to decide later by [`Self::set_layout`]. An existing
    /// file is not changed and its permission bits are not looked at: opening and truncating are the caller's.
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

    /// As [`Self::create`], but the answer does not wait for the disk: the file is there to stay once [`Self::settle`], or anything
    /// that waits for the disk, was begun afterwards and has completed. What was there before may still be about to reach the disk, too.
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

    /// Makes a directory, which inherits the extended attributes `weir.*` of its parent.
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

    /// Makes a symlink.
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

    /// Makes a device node (superuser only), socket or pipe; `BadType` for other kinds.
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

    /// Gives the file `id` one more name.
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

    /// Removes a name: of a file, or of an empty directory.
    ///
    /// A regular file that loses its last name becomes an orphan, in the same batch: it can be used by number until
    /// [`Self::reap`].
    pub async fn remove(&self, cred: &Cred, now: Timestamp, dir: FileId, name: &[u8]) -> Result<Removed, Status> {
        self.remove_ending(cred, now, dir, name, |_| false).await
    }

    /// As [`Self::remove`], and where `ends` says of a regular file that loses its last name that nobody has it open, nor will,
    /// it ends in the same batch as by [`Self::reap`]. It may be asked several times, the last time when it counts.
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

    /// Moves the name `from` (directory and name) to `to`; `how` says what becomes of a file that has that name already.
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

    /// Changes attributes; `writable` if the caller has the file open for writing.
    ///
    /// A size is only recorded: cutting the objects is the caller's.
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

    /// As [`Self::setattr`] with a size below which objects may have to be cut: the new attributes and a note of the cut
    /// ([`Intent::Cut`]) are one change. Whoever calls cuts the objects and forgets the note, durably, before
    /// anything is written: to cut once more would lose that.
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

    /// Gives a regular file its layout unless it has one (one for later, or of a file without objects, is none); answers with the
    /// one it has then.
    ///
    /// If bytes of it are kept here the answer has them as well. They are on their way then: they count until
    /// [`Self::arrived`], and nothing changes them but a cut. The attributes in the answer are as they were when the operation
    /// began.
    pub async fn set_layout(
        &self,
        now: Timestamp,
        id: FileId,
        layout: &Layout,
    ) -> Result<(FileInfo, Option<Bytes>), Status> {
        self.change(&Cred::root(), now, |tx| ops::set_layout::plan(tx, id, layout)).await
    }

    /// The bytes that [`Self::set_layout`] answered with are durable in the objects of the file: they are kept here no longer.
    pub async fn arrived(&self, now: Timestamp, id: FileId) -> Result<FileInfo, Status> {
        self.change(&Cred::root(), now, |tx| ops::set_layout::arrived(tx, id)).await
    }

    /// Writes into a regular file that has no objects; `None`, and nothing is changed, if it has, or would have more than `most`
    /// bytes. Visible when it completes; durable too if asked for, else as [`Self::note_write`] is.
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

    /// The bytes of a regular file that are kept here, from its first on, and its size, whose rest is zeros. `None` if its objects
    /// have them.
    pub fn read_inline(&self, id: FileId) -> Result<Option<(Bytes, u64)>, Status> {
        self.read(&Cred::root(), |tx| ops::read_inline::read(tx, id))
    }

    /// Raises the generation of a regular file's objects, so that iods can refuse what was granted before. A note
    /// ([`Intent::Fence`]) stays until whoever calls has told all of them.
    pub async fn fence(&self, now: Timestamp, id: FileId) -> Result<Generation, Status> {
        self.change(&Cred::root(), now, |tx| ops::fence::plan(tx, id)).await
    }

    /// Sets an extended attribute, whose name comes without `user.`.
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

    /// Ends an orphan that nobody has open any more: its inode goes, its objects are doomed in the same batch.
    ///
    /// `None` if it is no orphan (any more) or never had a layout.
    pub async fn reap(&self, now: Timestamp, id: FileId) -> Result<Option<Doomed>, Status> {
        self.change(&Cred::root(), now, |tx| ops::reap::plan(tx, id)).await
    }

    /// Looks for damage in one view of the store, telling `sink` what it finds; see [`crate::check_into`].
    pub fn check_into(&self, memory: CheckMemory, sink: &mut dyn FnMut(Event) -> Walk) -> Result<(), Status> {
        Ok(crate::check_into(&*self.shared.engine.view()?, memory, sink)?)
    }

    /// Everything that is wrong in the store; see [`crate::check()`].
    pub fn check(&self) -> Result<Vec<Fault>, Status> {
        Ok(crate::check(&*self.shared.engine.view()?)?)
    }

    /// Mends a fault that a check found in this store: looks first whether it is still there. Each is to be mended once.
    ///
    /// What has no name gets one in `/lost+found`, which is made if need be.
    pub async fn mend(&self, now: Timestamp, fault: &Fault) -> Result<Mended, Status> {
        let root = Cred::root();
        let lost = match fault {
            Fault::Nameless { .. } | Fault::Circle { .. } | Fault::NoDirectory { .. } => {
                Some(self.lost_and_found(now).await?)
            }
            _ => None,
        };
        if let Fault::NextId { .. } = fault {
            // Numbers in hand may be in use too.
            self.shared.ids.clear();
        }
        self.change(&root, now, |tx| ops::mend::plan(tx, fault, lost)).await
    }

    /// Whether a fault that a check found is still there, and can be mended.
    pub fn would_mend(&self, fault: &Fault) -> Result<Mended, Status> {
        let root = Cred::root();
        // Any directory will do: nothing is changed.
        let (answer, _) = self.plan(&root, Timestamp::default(), &|tx| {
            ops::mend::plan(tx, fault, Some(FileId::ROOT)).or_else(|e| match e {
                Status::Exist => ops::known(Mended::Yes),
                e => Err(e),
            })
        })?;
        answer(&Settled::default())
    }

    async fn lost_and_found(&self, now: Timestamp) -> Result<FileId, Status> {
        let (root, name) = (Cred::root(), ops::mend::LOST_AND_FOUND);
        match self.lookup(&root, FileId::ROOT, name) {
            Ok(found) if found.kind == FileKind::Directory => return Ok(found.id),
            Ok(_) => return Err(Status::NotDir),
            Err(Status::NoEnt) => {}
            Err(e) => return Err(e),
        }
        let set = SetAttrs { mode: Some(0o700), ..SetAttrs::default() };
        Ok(self.mkdir(&root, now, FileId::ROOT, name, &set).await?.attrs.id)
    }

    /// Notes, durably, what is still to be done about a regular file.
    pub async fn note(&self, now: Timestamp, noted: Noted) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::intents::plan(tx, noted)).await
    }

    /// Forgets notes of what has been done. Unless `durable`, a later durable change makes it so: after a crash they may
    /// be listed once more.
    pub async fn forget(&self, now: Timestamp, done: &[Noted], durable: bool) -> Result<(), Status> {
        for done in done.chunks(limits::BATCH_WRITES_MAX) {
            self.change(&Cred::root(), now, |tx| ops::intents::forget(tx, done, durable)).await?;
        }
        Ok(())
    }

    /// Forgets doomed files whose objects are gone from every iod. Durable only by a later durable change: after a
    /// crash they may be listed once more.
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
