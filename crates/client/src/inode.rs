//! The state of one open file that all its opens in a mount share, such as layout, size, and dirty data.

mod abandoned_requests;
mod commit;
mod copy;
mod delegation;
mod dirty;
mod known_size;
mod layout_state;
mod layouts;
mod locks;
mod open_states;
mod opens;
mod read;
mod seek;
mod sharing_state;
mod write;

pub use delegation::UpperCache;
pub(crate) use delegation::{Delegation, append_return};
use dirty::{DirtyData, Lane};
use known_size::KnownSize;
pub(crate) use known_size::Version;
use layouts::Layouts;
pub(crate) use layouts::{LayoutUse, layoutget};
pub use locks::HeldLock;
pub(crate) use locks::Waited;
pub(crate) use open_states::Open;
use open_states::OpenStates;
pub(crate) use seek::StatusOnly;
use sharing_state::SharingState;

use crate::compound::Caller;
use crate::effective_policy::OpenPolicy;
use crate::file::Appending;
use crate::lock_order::{AsyncMutex, AsyncRwLock, OrderedGuard, OrderedMutex, Rank};
use crate::mount::{Inner, OpenFlags, Times, usual};
use crate::{Error, Node, Result};
use layout::policy::{Policy, Settings, Sharing};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use types::{Attrs, ByteRange, Timestamp};
use wire::nfs4::stateid4;

/// An open file of a mount, shared by all its opens.
pub(crate) struct Inode {
    pub(crate) mount: Arc<Inner>,
    pub(crate) node: Node,
    state: OrderedMutex<State>,
    /// The file's own policy settings, from its extended attributes.
    own: OrderedMutex<Settings>,
    /// How often changes may have been lost because the mgr's machine lost power, as of the last fsync of this file.
    losses: AtomicU64,
    /// The delegation of the file that the client holds, if any.
    delegation: OrderedMutex<Delegation>,
    /// Locked while a task cleans up after a revoked delegation.
    revoking: OrderedMutex<()>,
    /// The layout of the file, and the number of requests that use it.
    layouts: Arc<Layouts>,
    /// Locked during LAYOUTGET, LAYOUTCOMMIT and LAYOUTRETURN, so that these operations do not overlap on the layout
    /// stateid.
    layout_turn: AsyncMutex<()>,
    /// Locked while the client opens the file again at the mgr.
    reopening: AsyncMutex<()>,
    /// Locked while a task appends to the file; contains the state of the append lock.
    appending: AsyncMutex<Appending>,
    /// Locked during a LOCK or LOCKU request, so that the recorded locks match the mgr's last reply.
    locking: AsyncMutex<()>,
    /// Notified when a byte-range lock that the mgr denied to this client may be free.
    lock_free: Notify,
    /// Locked while a task sends pending bytes to servers, so that overlapping writes are sent in the order of the
    /// calls.
    order: AsyncMutex<()>,
    /// Locked while a task sends bytes under a layout, or returns the layout: the client must not send bytes under a
    /// returned layout.
    leaving: AsyncMutex<()>,
    /// Whether a task is setting the size or other attributes of the file (SETATTR). The task holds [`Self::order`]
    /// until the mgr has replied.
    cutting: watch::Sender<bool>,
    /// Keeps the size report of a close from reaching the mgr after a SETATTR, because the report would overwrite the
    /// size and times that SETATTR set. A close holds this lock for reading until the mgr has the size report. A task
    /// that sets attributes holds the lock for writing.
    reporting: AsyncRwLock,
    /// For each server that receives bytes of the file, the locks for requests to this server.
    lanes: OrderedMutex<BTreeMap<Lane, Arc<LaneLocks>>>,
    /// Counts completed write requests, and wakes tasks that wait for the end of a write request.
    settled: watch::Sender<u64>,
}

/// The locks for the requests to one server (lane). A write request holds `sending` for reading; a task that sends
/// uncommitted bytes again holds it for writing. A COMMIT holds `committing`.
struct LaneLocks {
    sending: AsyncRwLock,
    committing: AsyncMutex<()>,
}

impl LaneLocks {
    fn new(lane: Lane) -> Self {
        let (commit, write) = match lane {
            Lane::Direct(_) => (Rank::CommitIod, Rank::WriteIod),
            Lane::Mgr => (Rank::CommitMgr, Rank::WriteMgr),
        };
        LaneLocks { sending: AsyncRwLock::new(write), committing: AsyncMutex::new(commit, ()) }
    }
}

/// The state of the open file that the inode's mutex protects.
#[derive(Default)]
struct State {
    /// The opens with their locks, and the errors that the client has yet to report through each open.
    opens: OpenStates,
    /// The size of the file, as far as the client knows it.
    size: KnownSize,
    /// The written bytes that are not durable, or that the client has not reported to the mgr.
    dirty: DirtyData,
    /// Whether the opens require coherence with other clients, and the delegations that the client got and lost.
    sharing: SharingState,
    /// How and when the client sends gathered bytes.
    sending: SendState,
    /// Whether a request that the client has given up may still reach an iod.
    abandoned: bool,
    /// Whether the mgr may still lose the creation of the file in a crash.
    unsynced: bool,
}

/// How and when the client sends gathered bytes, and which background tasks do so.
#[derive(Default)]
struct SendState {
    /// The policy of the open that wrote last. It controls when and on which path the client sends gathered bytes.
    open_policy: Option<Arc<OpenPolicy>>,
    /// The end of the last long write on the direct path. A write that begins at this file offset continues a
    /// sequential write, and takes the direct path too.
    streamed: Option<u64>,
    /// When the flush timer sends gathered bytes, and when it commits bytes that the client has sent.
    times: Times,
    /// Whether a background task is making all bytes durable because the write window is full.
    relieving: bool,
    /// Whether a background task is committing bytes early, so that the write window does not fill up.
    committing: bool,
}

impl Inode {
    /// Creates the state of a file that is about to be opened. Sizes that the client requested before the mount's
    /// logical time `stamp` may be outdated.
    pub(crate) fn new(mount: Arc<Inner>, node: Node, stamp: u64) -> Self {
        let losses = AtomicU64::new(mount.session.losses());
        let state = State { size: KnownSize::new(stamp), ..State::default() };
        Inode {
            mount,
            losses,
            node,
            state: OrderedMutex::new(Rank::InodeState, state),
            own: OrderedMutex::new(Rank::FileSettings, Settings::default()),
            delegation: OrderedMutex::new(Rank::Delegation, Delegation::None),
            revoking: OrderedMutex::new(Rank::Revocation, ()),
            layouts: Arc::default(),
            layout_turn: AsyncMutex::new(Rank::LayoutStateid, ()),
            reopening: AsyncMutex::new(Rank::Reopen, ()),
            appending: AsyncMutex::new(Rank::Append, Appending::default()),
            locking: AsyncMutex::new(Rank::ByteRangeLocks, ()),
            lock_free: Notify::new(),
            order: AsyncMutex::new(Rank::SendOrder, ()),
            leaving: AsyncMutex::new(Rank::SendUnderLayout, ()),
            cutting: watch::Sender::new(false),
            reporting: AsyncRwLock::new(Rank::Report),
            lanes: OrderedMutex::new(Rank::Lanes, BTreeMap::new()),
            settled: watch::Sender::new(0),
        }
    }

    fn state(&self) -> OrderedGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the file's own policy settings, from its extended attributes.
    pub(crate) fn own(&self) -> Settings {
        *self.own.lock()
    }

    /// Changes the file's own policy settings after its extended attributes changed.
    pub(crate) fn set_own(&self, change: impl FnOnce(&mut Settings)) {
        let mut own = self.own.lock();
        let before = *own;
        change(&mut own);
        if *own != before {
            self.mount.effective_policy.changed();
        }
    }

    /// Returns the effective policy of the open that has the policy settings `open_policy`.
    pub(crate) fn policy_by(&self, open_policy: &OpenPolicy) -> Policy {
        open_policy.policy(&self.mount.effective_policy, || self.own())
    }

    /// Returns the effective policy of the last writer.
    fn policy(&self) -> Policy {
        let open_policy = self.state().sending.open_policy.clone();
        open_policy.map_or_else(|| usual(&self.mount), |open_policy| self.policy_by(&open_policy))
    }

    /// Locks the append state: excludes other appenders of this mount until the guard is dropped.
    pub(crate) async fn appending(&self) -> tokio::sync::MutexGuard<'_, Appending> {
        self.appending.lock().await
    }

    fn lane(&self, lane: Lane) -> Arc<LaneLocks> {
        self.lanes().entry(lane).or_insert_with(|| Arc::new(LaneLocks::new(lane))).clone()
    }

    fn lanes(&self) -> OrderedGuard<'_, BTreeMap<Lane, Arc<LaneLocks>>> {
        self.lanes.lock()
    }

    /// Returns the size that the client knows, including its own unsent writes.
    pub(crate) fn size(&self) -> u64 {
        self.state().size.get()
    }

    /// Returns the mount's logical time, which increases with every event on this mount that may change a file size,
    /// such as a write. Callers take it before they request a size from the mgr, and so recognize an outdated reply.
    pub(crate) fn stamp(&self) -> u64 {
        self.mount.stamp()
    }

    /// Records the size that the mgr reported; the client requested it at logical time `stamp`. Returns the size
    /// including this client's bytes that the mgr does not know of.
    pub(crate) fn learn_size(&self, size: u64, stamp: u64) -> u64 {
        let shared = self.is_shared();
        let mut state = self.state();
        let own_end = state.dirty.own_end_of(|lane| !shared || lane != Lane::Mgr);
        if shared {
            state.size.learn_shared(size, stamp, own_end)
        } else {
            state.size.learn(size, stamp, own_end, Instant::now())
        }
    }

    /// Records attributes of this file from the reply to a LOOKUP, GETATTR or READDIR, which the client sent at logical
    /// time `stamp`. Returns the attributes with the size corrected for this client's writes.
    pub(crate) fn met(&self, mut attrs: Attrs, stamp: u64) -> Attrs {
        let known = {
            let shared = self.is_shared();
            let state = self.state();
            (!shared && state.size.is_newer_than(stamp)).then(|| state.size.get())
        };
        attrs.size = known.unwrap_or_else(|| self.learn_size(attrs.size, stamp));
        self.shown(attrs)
    }

    /// Returns the version of the contents that a read would return now; `None` if other clients may have changed the
    /// size.
    pub(crate) fn version(&self) -> Option<Version> {
        let shared = self.is_shared();
        let state = self.state();
        if shared { None } else { state.size.version() }
    }

    /// Returns whether other clients may have changed the size since the client learned it.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.state().size.is_doubtful()
    }

    /// Adds the effect of this client's writes to attributes from the mgr, which does not know all of these writes yet.
    pub(crate) fn shown(&self, attrs: Attrs) -> Attrs {
        let shared = self.is_shared();
        let state = self.state();
        // If all uncommitted bytes are at the mgr, the modification time from the mgr already includes these writes, so
        // keep the mgr's time.
        let told = shared && state.dirty.is_clean_but(Lane::Mgr);
        let written = state.dirty.written().filter(|_| !told && !state.dirty.is_clean());
        let later = |time: Timestamp| written.map_or(time, |written| time.max(written));
        let (mtime, ctime) = (later(attrs.mtime), later(attrs.ctime));
        let size = attrs.size.max(state.dirty.own_end_of(|lane| !shared || lane != Lane::Mgr));
        // Count bytes that the mgr does not know of as used space: programs that look for holes treat a file that uses
        // no space as empty.
        let used = attrs.used.saturating_add(size - attrs.size).min(size).next_multiple_of(512);
        Attrs { size, used, mtime, ctime, ..attrs }
    }

    /// Records the consistency (`sharing` of the policy) that a new open of the file requires.
    pub(crate) fn opened_under(&self, open_policy: &OpenPolicy, exclusive: bool) {
        let coherent = self.policy_by(open_policy).sharing == Sharing::Coherent;
        self.state().sharing.opened(coherent, exclusive);
    }

    /// Adds an open to the list of opens; `key` is the identifier of the open owner.
    pub(crate) fn add_open(&self, key: u64, caller: Caller, stateid: stateid4, flags: OpenFlags) {
        self.state().opens.add(Open::new(key, caller, stateid, (flags.read, flags.write)));
    }

    /// Removes an open from the list. Returns its stateid, and whether it was the last open.
    pub(crate) fn remove_open(&self, key: u64) -> (Option<stateid4>, bool) {
        let mut state = self.state();
        let stateid = state.opens.remove(key).map(|open| open.stateid);
        (stateid, state.opens.all().is_empty())
    }

    /// Returns all opens of the file on this mount.
    pub(crate) fn opens(&self) -> Vec<Open> {
        self.state().opens.all().to_vec()
    }

    /// Sets the stateid of an open after the client opened the file again at the mgr.
    pub(crate) fn reopened(&self, key: u64, stateid: stateid4) {
        self.state().opens.reopened(key, stateid);
    }

    /// Returns whether all bytes written on this client are durable, and the client has reported them to the mgr.
    pub(crate) fn is_clean(&self) -> bool {
        self.state().dirty.is_clean()
    }

    /// Returns whether the client has the file open for reading.
    pub(crate) fn is_open_for_reading(&self) -> bool {
        self.state().opens.may_read()
    }

    /// Returns whether the client has the file open for writing.
    pub(crate) fn is_open_for_writing(&self) -> bool {
        self.state().opens.may_write()
    }

    /// Waits until no write request that is in flight now overlaps `range`.
    async fn settle(&self, range: ByteRange) {
        let mut settled = self.settled.subscribe();
        let next = self.state().dirty.next_batch();
        while self.state().dirty.is_in_flight(range, next) {
            // Waiting for the end of a request cannot fail: the sender of the notification lives as long as this inode.
            let _ = settled.changed().await;
        }
    }

    /// Records the loss of written bytes. Each open for writing will report the error once.
    pub(crate) fn fail(&self, error: Error) {
        tracing::debug!(file = %self.node.id, "{error}");
        let mut state = self.state();
        state.dirty.became_unsure();
        state.opens.fail(&error);
    }

    /// Returns whether the client never dropped bytes that an iod may have received. If this is true and all bytes are
    /// committed, the objects on the iods contain exactly what programs wrote.
    pub(crate) fn is_sure(&self) -> bool {
        self.state().dirty.is_sure()
    }

    /// Returns the write error that an open has not reported yet, and clears it.
    pub(crate) fn take_error(&self, key: u64) -> Result<()> {
        self.state().opens.take_error(key)
    }

    /// Returns the unreported write error of an open like [`Inode::take_error`], but does not clear the error.
    pub(crate) fn see_error(&self, key: u64) -> Result<()> {
        self.state().opens.see_error(key)
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let (stamp, dropped) = {
            let mut state = self.state();
            (state.size.stamp(), state.dirty.give_up())
        };
        self.mount.closed(self.node.id, stamp);
        self.mount.window.release(dropped);
    }
}
