//! One open file of a mount: the state that all opens of this file in the mount share, such as layout, size, and unsent
//! bytes.

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

pub use delegation::Keeper;
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
use crate::effective_policy::Ruling;
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

/// One open file.
pub(crate) struct Inode {
    pub(crate) mount: Arc<Inner>,
    pub(crate) node: Node,
    state: OrderedMutex<State>,
    /// The file's own policy settings, from its extended attributes.
    own: OrderedMutex<Settings>,
    /// Number of lost changes already reported to fsync callers.
    losses: AtomicU64,
    /// The delegation that the mgr has granted.
    delegation: OrderedMutex<Delegation>,
    /// Held while a revoked delegation is cleaned up.
    revoking: OrderedMutex<()>,
    /// The layout, and the requests that use it.
    layouts: Arc<Layouts>,
    /// Held during LAYOUTGET, LAYOUTCOMMIT and LAYOUTRETURN: it orders operations on the layout's stateid.
    layout_turn: AsyncMutex<()>,
    /// Held while an open is established again.
    reopening: AsyncMutex<()>,
    /// Held during an append.
    appending: AsyncMutex<Appending>,
    /// Held during a LOCK or LOCKU request, so that the state here matches the mgr's last action.
    locking: AsyncMutex<()>,
    /// Notified when a refused lock may be available.
    lock_free: Notify,
    /// Held while bytes are sent to servers, so that overlapping writes are sent in the order of the calls.
    order: AsyncMutex<()>,
    /// Held while bytes are sent under a layout and while the layout is returned: nothing may be sent under a returned
    /// layout.
    leaving: AsyncMutex<()>,
    /// Whether a truncate request is on its way to the mgr; [`Self::order`] is held meanwhile.
    cutting: watch::Sender<bool>,
    /// A close holds this for reading, from before its open ends until the mgr has its report. Setting attributes holds
    /// it for writing: a later report would restore the earlier size and time.
    reporting: AsyncRwLock,
    /// A request holds its lane's lock for reading; sending uncommitted bytes again holds the lock for writing.
    lanes: OrderedMutex<BTreeMap<Lane, Arc<LaneLocks>>>,
    /// Counts completed requests.
    settled: watch::Sender<u64>,
}

/// The locks of one lane.
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

/// What the inode's mutex guards.
#[derive(Default)]
struct State {
    /// The opens with their locks, and the errors that they have yet to report.
    opens: OpenStates,
    /// What is known of the size.
    size: KnownSize,
    /// The written bytes that are not durable, or not reported to the mgr.
    dirty: DirtyData,
    /// The sharing with other clients.
    sharing: SharingState,
    /// How and when gathered bytes are sent.
    sending: SendState,
    /// Whether an abandoned request may still reach an iod.
    abandoned: bool,
    /// Whether the file was created without waiting for durability, and nothing has made the creation durable since.
    unsynced: bool,
}

/// How and when gathered bytes are sent, and the tasks that do this in the background.
#[derive(Default)]
struct SendState {
    /// The settings under which the gathered bytes are sent: those of the last writer.
    ruling: Option<Arc<Ruling>>,
    /// One past the last byte that took the direct path.
    streamed: Option<u64>,
    /// When gathered bytes are sent by the timer, and when sent bytes are made durable.
    times: Times,
    /// Whether a task is making everything durable because the window is full.
    relieving: bool,
    /// Whether a task commits written bytes early, so that the window does not fill.
    committing: bool,
}

impl Inode {
    /// Creates the state of a file that is about to be opened. A size that was requested before `stamp` may be stale.
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

    /// Returns the effective policy of an open with this ruling.
    pub(crate) fn policy_by(&self, ruling: &Ruling) -> Policy {
        ruling.policy(&self.mount.effective_policy, || self.own())
    }

    /// Returns the policy of the last writer.
    fn policy(&self) -> Policy {
        let ruling = self.state().sending.ruling.clone();
        ruling.map_or_else(|| usual(&self.mount), |ruling| self.policy_by(&ruling))
    }

    /// Locks out other appenders of this mount until the guard is dropped.
    pub(crate) async fn appending(&self) -> tokio::sync::MutexGuard<'_, Appending> {
        self.appending.lock().await
    }

    fn lane(&self, lane: Lane) -> Arc<LaneLocks> {
        self.lanes().entry(lane).or_insert_with(|| Arc::new(LaneLocks::new(lane))).clone()
    }

    fn lanes(&self) -> OrderedGuard<'_, BTreeMap<Lane, Arc<LaneLocks>>> {
        self.lanes.lock()
    }

    /// Returns the size, including this client's unsent writes.
    pub(crate) fn size(&self) -> u64 {
        self.state().size.get()
    }

    /// Returns a stamp that grows with every change of a size in this mount. Take it before asking the mgr for a size.
    pub(crate) fn stamp(&self) -> u64 {
        self.mount.stamp()
    }

    /// Takes over the size that the server reported, requested when the stamp was `stamp`; returns the size including
    /// own bytes that the server does not know of yet.
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

    /// Records attributes of this file that came with an answer to another request, sent when the stamp was `stamp`.
    /// Returns them with the size that results from writes of this client.
    pub(crate) fn met(&self, mut attrs: Attrs, stamp: u64) -> Attrs {
        let known = {
            let shared = self.is_shared();
            let state = self.state();
            (!shared && state.size.is_newer_than(stamp)).then(|| state.size.get())
        };
        attrs.size = known.unwrap_or_else(|| self.learn_size(attrs.size, stamp));
        self.shown(attrs)
    }

    /// Returns the version of bytes that are read from now on; `None` while other clients may have changed the size.
    pub(crate) fn version(&self) -> Option<Version> {
        let shared = self.is_shared();
        let state = self.state();
        if shared { None } else { state.size.version() }
    }

    /// Returns whether other clients may have changed the size since the client learned it.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.state().size.is_doubtful()
    }

    /// Combines the server's attributes with the bytes that this client wrote, because the server does not know of all
    /// these writes and their times yet.
    pub(crate) fn shown(&self, attrs: Attrs) -> Attrs {
        let shared = self.is_shared();
        let state = self.state();
        // The mgr knows the time of the writes that it received and may still lose.
        let told = shared && state.dirty.is_clean_but(Lane::Mgr);
        let written = state.dirty.written().filter(|_| !told && !state.dirty.is_clean());
        let later = |time: Timestamp| written.map_or(time, |written| time.max(written));
        let (mtime, ctime) = (later(attrs.mtime), later(attrs.ctime));
        let size = attrs.size.max(state.dirty.own_end_of(|lane| !shared || lane != Lane::Mgr));
        // Programs that look for holes treat a file that uses no space as empty.
        let used = attrs.used.saturating_add(size - attrs.size).min(size).next_multiple_of(512);
        Attrs { size, used, mtime, ctime, ..attrs }
    }

    /// Records the settings of a new open of the file.
    pub(crate) fn opened_under(&self, ruling: &Ruling, exclusive: bool) {
        let coherent = self.policy_by(ruling).sharing == Sharing::Coherent;
        self.state().sharing.opened(coherent, exclusive);
    }

    /// Adds an open with this owner.
    pub(crate) fn add_open(&self, key: u64, caller: Caller, stateid: stateid4, flags: OpenFlags) {
        self.state().opens.add(Open::new(key, caller, stateid, (flags.read, flags.write)));
    }

    /// Removes an open from the list; returns its stateid, and whether it was the last open.
    pub(crate) fn remove_open(&self, key: u64) -> (Option<stateid4>, bool) {
        let mut state = self.state();
        let stateid = state.opens.remove(key).map(|open| open.stateid);
        (stateid, state.opens.all().is_empty())
    }

    /// Returns all opens.
    pub(crate) fn opens(&self) -> Vec<Open> {
        self.state().opens.all().to_vec()
    }

    /// Sets the new stateid of an open.
    pub(crate) fn reopened(&self, key: u64, stateid: stateid4) {
        self.state().opens.reopened(key, stateid);
    }

    /// Returns whether everything written here is reported to the mgr and durable.
    pub(crate) fn is_clean(&self) -> bool {
        self.state().dirty.is_clean()
    }

    /// Returns whether an open here allows reading.
    pub(crate) fn is_open_for_reading(&self) -> bool {
        self.state().opens.may_read()
    }

    /// Returns whether an open here allows writing.
    pub(crate) fn is_open_for_writing(&self) -> bool {
        self.state().opens.may_write()
    }

    /// Waits until no request that is in flight now touches `range`.
    async fn settle(&self, range: ByteRange) {
        let mut settled = self.settled.subscribe();
        let next = self.state().dirty.next_batch();
        while self.state().dirty.is_in_flight(range, next) {
            // The sender lives as long as this inode.
            let _ = settled.changed().await;
        }
    }

    /// Records that bytes were dropped, for every open that can write, until each has reported the error.
    pub(crate) fn fail(&self, error: Error) {
        tracing::debug!(file = %self.node.id, "{error}");
        let mut state = self.state();
        state.dirty.became_unsure();
        state.opens.fail(&error);
    }

    /// Returns whether everything written here is durable or was never sent, provided that nothing is left to be
    /// committed.
    pub(crate) fn is_sure(&self) -> bool {
        self.state().dirty.is_sure()
    }

    /// Returns the error that an open has not reported yet, once.
    pub(crate) fn take_error(&self, key: u64) -> Result<()> {
        self.state().opens.take_error(key)
    }

    /// Returns the error like [`Inode::take_error`], and keeps it for the next call.
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
