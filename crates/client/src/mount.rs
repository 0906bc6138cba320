//! A mounted file system: its session, its open files, and the state that they share.

mod attrs;
mod deferred_close;
mod dirs;
mod flush_timer;
mod held_state;
pub(crate) mod names;
mod negative;
mod open;
mod path_expectations;
mod policy;

pub use attrs::XattrMode;
pub use dirs::{Entry, ReadDir};
use flush_timer::FlushTimer;
pub(crate) use flush_timer::{Due, Times};
pub(crate) use open::CURRENT;
pub use open::{CreateOptions, OpenFlags, OpenOptions};
pub use path_expectations::PathExpectation;

use crate::compound::{Caller, Compound};
use crate::counters::Tally;
use crate::devices::Devices;
use crate::drivers::Drivers;
use crate::effective_policy::EffectivePolicy;
use crate::inode::{Inode, UpperCache};
use crate::lock_order::{OrderedGuard, OrderedMutex, Rank};
use crate::session::Session;
use crate::write_window::WriteWindow;
use crate::{Counters, Error, Options, Result, Target, effective_policy};
use bytes::Bytes;
use deferred_close::DeferredCloses;
pub(crate) use deferred_close::{DeferredClose, Queued};
use layout::Origin;
use nfs::client::fattr;
use policy::Timing;
pub(crate) use policy::usual;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use tokio::runtime::Handle;
use tokio::sync::{RwLock, Semaphore};
use types::limits::{PAYLOAD_MAX, READ_AHEAD_BYTES};
use types::{Cred, FileId, StatFs};
use wire::nfs4::*;

/// A mounted file system. All clones of a mount share one session and all open files.
#[derive(Clone)]
pub struct Mount {
    pub(crate) inner: Arc<Inner>,
    /// The credentials of the user for whom this mount sends requests.
    pub(crate) caller: Caller,
    /// The path expectations that the mgr checks before operations by name.
    walks: Option<Arc<[PathExpectation]>>,
}

/// A file of any type, identified by its filehandle. The node stays valid after a rename, and is stale after the
/// removal of the file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// The inode number of the file.
    pub id: FileId,
    /// The filehandle that the mgr issued for the file.
    pub handle: Bytes,
}

/// The state that all clones of a mount share.
pub(crate) struct Inner {
    pub(crate) session: Session,
    pub(crate) options: Options,
    pub(crate) tally: Arc<Tally>,
    pub(crate) window: WriteWindow,
    /// The free buffer space for read-ahead, in bytes.
    pub(crate) read_ahead: Arc<Semaphore>,
    /// The policy settings that apply to all files of this mount.
    pub(crate) effective_policy: EffectivePolicy,
    /// Measured service times of servers, which the automatic write threshold depends on.
    timing: Mutex<Timing>,
    pub(crate) drivers: Drivers,
    /// The runtime for background tasks, such as the close of a dropped file.
    pub(crate) runtime: Handle,
    root: Node,
    pub(crate) inodes: Arc<Inodes>,
    /// The cache above this mount, such as the kernel's page cache, if any.
    pub(crate) upper_cache: OnceLock<Arc<dyn UpperCache>>,
    /// The number that will identify the next open owner of this mount.
    owners: AtomicU64,
    /// The logical time: a counter that increases with every event on this mount that may change a file size, such as a
    /// write.
    stamps: AtomicU64,
    opening: OrderedMutex<OpensInFlight>,
    behind: FlushTimer,
    /// A lock that each task holds for reading while it closes a dropped file. A disconnect acquires the lock for
    /// writing, and so waits for all these tasks.
    pub(crate) dropped: Arc<RwLock<()>>,
    /// The number of possible losses of changes (power losses of the mgr's machine) that [`Mount::sync_names`] has
    /// already reported.
    losses: AtomicU64,
}

/// The OPENs that the mgr has not answered yet, and the files that the client closed while an OPEN was unanswered.
#[derive(Default)]
struct OpensInFlight {
    /// Number of OPENs that the client has sent (`asked`), and the sequence numbers of the unanswered OPENs.
    asked: u64,
    unanswered: BTreeSet<u64>,
    /// For each logical time at which the client sent OPENs that are still unanswered, the number of these OPENs.
    sent: BTreeMap<u64, usize>,
    /// Files that this mount closed after it had sent the oldest unanswered OPEN. Each file has the logical time at
    /// which this mount last changed the file's size. The reply to the oldest OPEN may contain the size from before
    /// this change.
    closed: HashMap<FileId, u64>,
}

/// An OPEN that waits for the reply of the mgr. Dropping this value marks the OPEN as answered.
pub(crate) struct OpenInFlight<'a> {
    mount: &'a Inner,
    /// The logical time of the mount ([`Inode::stamp`]) when the client sent the OPEN.
    pub(crate) stamp: u64,
    /// The epoch of the session when the client sent the OPEN.
    pub(crate) epoch: u64,
    /// Sequence number of the OPEN: the number of OPENs that the client sent before this OPEN.
    pub(crate) number: u64,
}

impl Drop for OpenInFlight<'_> {
    fn drop(&mut self) {
        let mut opening = self.mount.opening();
        let OpensInFlight { sent, closed, unanswered, .. } = &mut *opening;
        unanswered.remove(&self.number);
        if let Some(count) = sent.get_mut(&self.stamp) {
            *count -= 1;
            if *count == 0 {
                sent.remove(&self.stamp);
            }
        }
        let oldest = sent.first_key_value().map_or(u64::MAX, |(stamp, _)| *stamp);
        closed.retain(|_, stamp| *stamp > oldest);
    }
}

/// The open files of a mount, its negative-lookup cache, and its deferred closes.
pub(crate) struct Inodes {
    table: OrderedMutex<HashMap<FileId, Weak<Inode>>>,
    /// The negative-lookup cache.
    pub(crate) names: negative::Names,
    /// Opens whose CLOSE is deferred.
    pub(crate) deferred_closes: DeferredCloses,
}

impl Default for Inodes {
    fn default() -> Self {
        let table = OrderedMutex::new(Rank::InodeTable, HashMap::new());
        Inodes { table, names: negative::Names::default(), deferred_closes: DeferredCloses::default() }
    }
}

impl Inodes {
    fn table(&self) -> OrderedGuard<'_, HashMap<FileId, Weak<Inode>>> {
        self.table.lock()
    }

    /// Returns all open files.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.table().values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the open file with this inode number.
    pub(crate) fn get(&self, file: FileId) -> Option<Arc<Inode>> {
        self.table().get(&file).and_then(Weak::upgrade)
    }

    /// Returns the open file with this filehandle.
    pub(crate) fn by_handle(&self, handle: &[u8]) -> Option<Arc<Inode>> {
        self.all().into_iter().find(|inode| inode.node.handle == handle)
    }
}

impl Mount {
    /// Returns whether `self` and `other` belong to the same mount, so that
    /// [`File::copy_range`](crate::File::copy_range) can copy between their files.
    pub fn is_same(&self, other: &Mount) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Mounts the file system of `target`; ignores the path in `target`. The background tasks of the mount run in the
    /// current tokio runtime. The methods of the mount may be awaited in another runtime.
    pub async fn connect(target: &Target, options: Options) -> Result<Mount> {
        let tally = Arc::new(Tally::default());
        let inodes = Arc::new(Inodes::default());
        let session = Session::connect(target, options.clone(), tally.clone(), inodes.clone()).await?;
        let mut compound = Compound::new(format!("mounting weir://{}/", target.address()));
        compound.void(OP_PUTROOTFH).getfh().getattr_of(fattr::OPENING);
        let mut results = session.call(compound).await?;
        results.done(&[OP_PUTROOTFH])?;
        let handle = results.handle()?;
        let (attrs, told) = results.attrs_and_policy()?;
        let root = Node { id: attrs.id, handle };
        let net = session.net_counters();
        let source = Arc::new(session.clone());
        let devices = Arc::new(Devices::new(source, options.clone(), tally.clone(), net)?);
        let drivers = Drivers::new(devices, tally.clone());
        let window = WriteWindow::new(options.window_bytes());
        let read_ahead = Arc::new(Semaphore::new(READ_AHEAD_BYTES));
        let (owners, stamps) = (AtomicU64::new(0), AtomicU64::new(0));
        let (opening, timing) = (OrderedMutex::new(Rank::Opening, OpensInFlight::default()), Mutex::default());
        let effective_policy = EffectivePolicy::new(options.driver, options.policy, options.environment);
        if let Some(told) = &told {
            let settings = effective_policy::parse_settings(told, Origin::Directory);
            effective_policy.record_server_settings(settings.0);
            effective_policy.record_directory_settings(root.id, settings);
        }
        let runtime = Handle::current();
        let inner = Inner {
            session,
            options,
            tally,
            window,
            read_ahead,
            effective_policy,
            timing,
            drivers,
            runtime,
            root,
            inodes,
            upper_cache: OnceLock::new(),
            owners,
            stamps,
            opening,
            behind: FlushTimer::default(),
            dropped: Arc::default(),
            losses: AtomicU64::new(0),
        };
        let inner = Arc::new(inner);
        inner.names().belong_to(&inner);
        Ok(Mount { inner, caller: None, walks: None })
    }

    /// Returns a handle of the same mount that sends requests with the credentials `cred`. All I/O on a file that is
    /// opened through the returned handle carries these credentials, even if another user uses the file. Only the
    /// servers check permissions. The client sends at most 16 groups (RFC 5531 §8.2).
    pub fn acting_as(&self, cred: &Cred) -> Mount {
        let auth = crate::session::auth_of(&self.inner.options, cred);
        Mount { inner: self.inner.clone(), caller: Some(Arc::new(auth)), walks: None }
    }

    /// Begins a COMPOUND with the credentials of this mount's caller.
    pub(crate) fn compound(&self, what: impl Into<String>) -> Compound {
        Compound::new(what).by(&self.caller)
    }

    /// Closes dropped files and ends the session. Bytes that are not durable at the end of the session are lost, so the
    /// caller should first close all files that it has written.
    pub async fn disconnect(self) -> Result<()> {
        // Wait for the tasks that close dropped files. Without their CLOSEs, the mgr would keep removed files and their
        // space until the lease expires.
        drop(self.inner.dropped.write().await);
        self.inner.close_deferred().await;
        self.inner.leave_names().await;
        let settled = self.sync_names().await;
        self.inner.session.end().await.and(settled)
    }

    /// Returns the root directory.
    pub fn root(&self) -> Node {
        self.inner.root.clone()
    }

    /// Returns the capacity and the free space of the file system.
    pub async fn statfs(&self) -> Result<StatFs> {
        let what = "asking for the capacity";
        let mut compound = Compound::new(what);
        compound.putfh(&self.inner.root.handle);
        compound.op(OP_GETATTR, &GETATTR4args { attr_request: nfs::attrs::STATFS.to_bitmap() });
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let got: GETATTR4resok = results.take(OP_GETATTR)?;
        let values = nfs::attrs::decode(&got.obj_attributes).map_err(|e| Error::protocol(format!("{what}: {e}")))?;
        values.statfs().ok_or_else(|| Error::protocol(format!("{what}: the mgr's answer lacks an attribute")))
    }

    /// Returns the status of the mgr and of its cluster, as groups of named values for display.
    pub async fn status(&self) -> Result<wire::admin::Status> {
        self.inner.session.status().await
    }

    /// Returns a copy of this mount's counters.
    pub fn counters(&self) -> Counters {
        self.inner.tally.snapshot()
    }
}

impl Inner {
    /// Returns the open files whose creation is not durable yet; see [`crate::CreateOptions::unsynced`].
    pub(crate) fn unsynced(&self) -> Vec<Arc<Inode>> {
        let all = self.inodes.all();
        all.into_iter().filter(|inode| inode.is_unsynced()).collect()
    }

    fn opening(&self) -> OrderedGuard<'_, OpensInFlight> {
        self.opening.lock()
    }

    /// Registers an OPEN that the client is about to send.
    pub(crate) fn ask(&self) -> OpenInFlight<'_> {
        let stamp = self.stamp();
        let mut opening = self.opening();
        *opening.sent.entry(stamp).or_default() += 1;
        let number = opening.asked;
        opening.asked += 1;
        opening.unanswered.insert(number);
        OpenInFlight { mount: self, stamp, epoch: self.session.epoch(), number }
    }

    /// Returns the number of OPENs that the client has sent, and the sequence number of the oldest unanswered OPEN. If
    /// every OPEN is answered, the two values are equal.
    pub(crate) fn opens_asked(&self) -> (u64, u64) {
        let opening = self.opening();
        (opening.asked, opening.unanswered.first().copied().unwrap_or(opening.asked))
    }

    /// Records that this mount has closed its last open of a file. `stamp` is the logical time at which this mount last
    /// changed the file's size.
    pub(crate) fn closed(&self, id: FileId, stamp: u64) {
        let mut opening = self.opening();
        if opening.sent.first_key_value().is_some_and(|(oldest, _)| *oldest < stamp) {
            opening.closed.insert(id, stamp);
        }
    }

    /// Returns the number that identifies a new open owner of this mount.
    pub(crate) fn next_owner(&self) -> u64 {
        self.owners.fetch_add(1, Relaxed)
    }

    /// Returns the current logical time of the mount, see [`Inode::stamp`].
    pub(crate) fn stamp(&self) -> u64 {
        self.stamps.load(SeqCst)
    }

    /// Increases the logical time of the mount, and returns the new logical time.
    pub(crate) fn next_stamp(&self) -> u64 {
        self.stamps.fetch_add(1, SeqCst) + 1
    }

    /// Returns the state of a file; creates it if the file is not open on this mount.
    pub(crate) fn inode(self: &Arc<Self>, node: &Node) -> Arc<Inode> {
        let mut table = self.inodes.table();
        if let Some(inode) = table.get(&node.id).and_then(Weak::upgrade) {
            return inode;
        }
        if table.len() >= 64 && table.len().is_power_of_two() {
            table.retain(|_, inode| inode.strong_count() > 0);
        }
        let stamp = self.opening().closed.get(&node.id).copied().unwrap_or(0);
        let inode = Arc::new(Inode::new(self.clone(), node.clone(), stamp));
        table.insert(node.id, Arc::downgrade(&inode));
        inode
    }

    /// Returns the state of a file if it is open on this mount.
    pub(crate) fn open_inode(&self, id: FileId) -> Option<Arc<Inode>> {
        self.inodes.table().get(&id).and_then(Weak::upgrade)
    }

    /// Removes a file from the table of open files, if it has no opens.
    pub(crate) fn forget(&self, id: FileId) {
        let mut table = self.inodes.table();
        if table.get(&id).is_some_and(|inode| inode.strong_count() == 0) {
            table.remove(&id);
        }
    }

    /// Starts to make the written bytes of all files durable in the background. A caller uses this method when the
    /// write window is full.
    pub(crate) fn relieve(&self) {
        self.inodes.all().iter().for_each(Inode::relieve);
    }

    /// Calls [`Inner::relieve`] if the write window has no space for one more payload of the maximum size.
    pub(crate) fn relieve_if_full(&self) {
        if self.window.try_take(PAYLOAD_MAX) {
            self.window.release(PAYLOAD_MAX as u64);
        } else {
            self.relieve();
        }
    }
}
