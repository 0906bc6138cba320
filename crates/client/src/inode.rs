//! What a mount knows of one open file, shared by everybody here who has it open: layout, size, and bytes on their way.

mod commit;
mod copy;
mod delegation;
mod layouts;
mod locks;
mod opens;
mod read;
mod seek;
mod strays;
mod write;

pub use delegation::Keeper;
pub(crate) use delegation::{Delegation, append_return};
use layouts::LayoutState;
pub(crate) use layouts::layoutget;
pub use locks::HeldLock;
use locks::OpenLocks;
pub(crate) use locks::Waited;
pub(crate) use seek::StatusOnly;
use write::Lane;

use crate::compound::Caller;
use crate::drivers::Layout;
use crate::extents::Extents;
use crate::file::Appending;
use crate::governor::Ruling;
use crate::mount::{Inner, OpenFlags, Times, usual};
use crate::{Error, Node, Result};
use layout::kinds::native::Update;
use layout::policy::{Policy, Settings, Sharing};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, Notify, RwLock, watch};
use tokio::time::Instant;
use types::{Attrs, ByteRange, Timestamp};
use wire::nfs4::stateid4;

/// One open file.
pub(crate) struct Inode {
    pub(crate) mount: Arc<Inner>,
    pub(crate) node: Node,
    state: Mutex<State>,
    /// What the extended attributes of the file say about its use.
    own: Mutex<Settings>,
    /// Losses of changes that who syncs the file was told of.
    losses: AtomicU64,
    /// What the mgr has delegated.
    delegation: Mutex<Delegation>,
    /// Held while a revoked delegation is taken off.
    revoking: Mutex<()>,
    /// The layout; the lock also keeps operations on the layout's stateid in order.
    layout: AsyncMutex<LayoutState>,
    /// Held while an open is made again.
    reopening: AsyncMutex<()>,
    /// Held while something is appended.
    appending: AsyncMutex<Appending>,
    /// Held while a lock is asked for or given back, so that what is booked here is what the mgr did last.
    locking: AsyncMutex<()>,
    /// Told when a lock that was refused may be had.
    lock_free: Notify,
    /// Held while bytes are handed to servers, so that overlapping writes leave in the order they came.
    order: AsyncMutex<()>,
    /// Held while bytes leave under a layout, and while that is given back: under one that is gone nothing may leave.
    leaving: AsyncMutex<()>,
    /// Whether a cut is on its way to the mgr; [`Self::order`] is held then.
    cutting: watch::Sender<bool>,
    /// Held for reading by a close, from before its open ends until the mgr has its report; for writing while attributes
    /// are set: a later report would give the file the size and the time again that it had before.
    reporting: RwLock<()>,
    /// Held for reading while a request is sent, for writing while uncommitted bytes are sent again.
    lanes: Mutex<BTreeMap<Lane, Arc<LaneLocks>>>,
    /// Counts requests that ended.
    settled: watch::Sender<u64>,
}

/// The locks of one lane.
#[derive(Default)]
struct LaneLocks {
    sending: RwLock<()>,
    committing: AsyncMutex<()>,
}

#[derive(Default)]
struct State {
    opens: Vec<Open>,
    size: u64,
    /// The mount's stamp ([`Inode::stamp`]) when something here last changed the size.
    stamp: u64,
    /// When something was last written here.
    written: Option<Timestamp>,
    /// Written here, not yet handed to a server.
    pending: Extents,
    /// By what those bytes leave: that of who wrote last.
    ruling: Option<Arc<Ruling>>,
    /// One past the last byte that went straight to the iods.
    streamed: Option<u64>,
    /// Batches of which some request is not answered yet, with the file ranges they write.
    in_flight: BTreeMap<u64, Batch>,
    next_batch: u64,
    /// Batches before this one are not to be written any more: they were made under locks that are lost.
    given_up: u64,
    /// Counts delegations that were revoked: what was about to be written in the belief of being alone is given up.
    revocations: u64,
    /// Written to a server that may still lose it, in the order sent.
    uncommitted: BTreeMap<Lane, Vec<write::Sent>>,
    /// Not less bytes than those are.
    kept_at_most: u64,
    /// How many times a server was found to have taken bytes that it may lose.
    booked: u64,
    /// Whether a LAYOUTCOMMIT is due, and one past the last byte that was proved durable since the last one.
    unreported: Option<u64>,
    /// The end of the last LAYOUTCOMMIT, and the stamp when it was answered.
    reported: Option<(u64, u64)>,
    /// Counts the layouts that were got after others were lost. What was written before the last of them, the mgr may
    /// have cut off without asking.
    grant: u64,
    /// Whether something of what is unreported was proved under a layout that is lost: the iods know how long the file is.
    ask_iods: bool,
    /// Whether the file may have holes that were made here. Said with every report from then on: once too often only makes the
    /// mgr ask the iods how much room the file takes.
    holes: bool,
    /// Whether a request that was given up may still reach an iod.
    stray: bool,
    /// Whether bytes were given up that iods may hold or not: how long the file is then, they have to be asked.
    unsure: bool,
    /// Whether others may have changed the size since it was learnt.
    doubtful: bool,
    /// Whether an open promises what `sharing=coherent` does.
    coherent: bool,
    /// Whether a cache above keeps bytes under the delegation ([`crate::OpenOptions::alone`]).
    exclusive: bool,
    /// How many delegations were given.
    delegations: u64,
    /// When a delegation was last asked for, or lost.
    asked: Option<Instant>,
    /// When it was learnt, and whether it is being asked for because that is long ago.
    learnt: Option<Instant>,
    asking: bool,
    /// The mgr has found an end of the file before the one that was known here: who reads there has to look once more.
    shorter: bool,
    /// Whether the file was made without waiting until that was durable, and nothing since has made it so.
    unsynced: bool,
    /// Counts what makes bytes that were read before worthless, apart from what changes the stamp.
    turns: u64,
    /// Whether a task is at work making everything durable because the window is full.
    relieving: bool,
    /// When what gathers leaves by itself, and what has left is made durable.
    times: Times,
    /// Whether a task commits what was written, so that the window does not fill.
    committing: bool,
}

/// What is the same as long as nothing is known to have changed in a file: written or cut here, cut by others, or locked, so that what others
/// wrote before has to be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Version {
    stamp: u64,
    turns: u64,
}

struct Batch {
    ranges: Vec<ByteRange>,
    left: usize,
    /// When it left, if it is one range whose time counts as a whole.
    timed: Option<Instant>,
}

/// An open of the file at the mgr.
#[derive(Clone)]
pub(crate) struct Open {
    /// The open owner.
    pub(crate) key: u64,
    stateid: stateid4,
    /// Who opened it.
    pub(crate) caller: Caller,
    read: bool,
    write: bool,
    /// What went wrong since it was last told.
    error: Option<Error>,
    locks: OpenLocks,
}

impl Inode {
    /// A file that is about to be opened; a size that was asked for before `stamp` may be an old one.
    pub(crate) fn new(mount: Arc<Inner>, node: Node, stamp: u64) -> Self {
        let losses = AtomicU64::new(mount.session.losses());
        Inode {
            mount,
            losses,
            node,
            state: Mutex::new(State { stamp, ..State::default() }),
            own: Mutex::default(),
            delegation: Mutex::default(),
            revoking: Mutex::default(),
            layout: AsyncMutex::default(),
            reopening: AsyncMutex::default(),
            appending: AsyncMutex::default(),
            locking: AsyncMutex::default(),
            lock_free: Notify::new(),
            order: AsyncMutex::default(),
            leaving: AsyncMutex::default(),
            cutting: watch::Sender::new(false),
            reporting: RwLock::default(),
            lanes: Mutex::default(),
            settled: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the extended attributes of the file say about its use.
    pub(crate) fn own(&self) -> Settings {
        *self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The extended attributes of the file say this about its use.
    pub(crate) fn set_own(&self, change: impl FnOnce(&mut Settings)) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *own;
        change(&mut own);
        if *own != before {
            self.mount.governor.changed();
        }
    }

    /// The policy of who opened the file so.
    pub(crate) fn policy_by(&self, ruling: &Ruling) -> Policy {
        ruling.policy(&self.mount.governor, || self.own())
    }

    /// The policy of who wrote last.
    fn policy(&self) -> Policy {
        let ruling = self.state().ruling.clone();
        ruling.map_or_else(|| usual(&self.mount), |ruling| self.policy_by(&ruling))
    }

    /// Nobody else here appends until this is dropped.
    pub(crate) async fn appending(&self) -> tokio::sync::MutexGuard<'_, Appending> {
        self.appending.lock().await
    }

    fn lane(&self, lane: Lane) -> Arc<LaneLocks> {
        self.lanes().entry(lane).or_default().clone()
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<Lane, Arc<LaneLocks>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size, own writes included.
    pub(crate) fn size(&self) -> u64 {
        self.state().size
    }

    /// Rises with everything done in this mount that changes a size; to be taken before the server is asked for one.
    pub(crate) fn stamp(&self) -> u64 {
        self.mount.stamp()
    }

    /// The server told the size, asked when the stamp was this. Bytes of ours that it does not know of yet count.
    pub(crate) fn learn_size(&self, size: u64, stamp: u64) -> u64 {
        let shared = self.is_shared();
        let mut state = self.state();
        if shared {
            return state.accept_shared(size, stamp);
        }
        if state.stamp <= stamp {
            state.accept(size);
            state.learnt = Some(Instant::now());
        } else {
            // It may tell of a time before what was done here since.
            state.doubt();
        }
        state.size
    }

    /// The attributes of this file that came along with something else, asked for when the stamp was this, as they are with what was written here.
    pub(crate) fn met(&self, mut attrs: Attrs, stamp: u64) -> Attrs {
        let known = {
            let shared = self.is_shared();
            let state = self.state();
            (!shared && state.stamp > stamp).then_some(state.size)
        };
        attrs.size = known.unwrap_or_else(|| self.learn_size(attrs.size, stamp));
        self.shown(attrs)
    }

    /// What bytes that are read from now on are of; none while others may have changed the size.
    pub(crate) fn version(&self) -> Option<Version> {
        let shared = self.is_shared();
        let state = self.state();
        (!shared && !state.doubtful).then_some(Version { stamp: state.stamp, turns: state.turns })
    }

    /// Whether others may have changed the size since it was learnt.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.state().doubtful
    }

    /// What to show of a file of which the server says this: it does not know yet of all that was written here, nor when.
    pub(crate) fn shown(&self, attrs: Attrs) -> Attrs {
        let shared = self.is_shared();
        let state = self.state();
        // The mgr knows when it took what it may still lose.
        let told = shared && state.is_clean_but(Lane::Mgr);
        let written = state.written.filter(|_| !told && !state.is_clean());
        let later = |time: Timestamp| written.map_or(time, |written| time.max(written));
        let (mtime, ctime) = (later(attrs.mtime), later(attrs.ctime));
        let size = attrs.size.max(state.own_end_of(|lane| !shared || lane != Lane::Mgr));
        // What takes no room is taken for empty by programs that look for holes.
        let used = attrs.used.saturating_add(size - attrs.size).min(size).next_multiple_of(512);
        Attrs { size, used, mtime, ctime, ..attrs }
    }

    /// The file is opened by somebody for whom this counts.
    pub(crate) fn opened_under(&self, ruling: &Ruling, exclusive: bool) {
        let coherent = self.policy_by(ruling).sharing == Sharing::Coherent;
        let mut state = self.state();
        state.coherent |= coherent;
        state.exclusive |= exclusive;
    }

    /// Adds an open by this owner.
    pub(crate) fn add_open(&self, key: u64, caller: Caller, stateid: stateid4, flags: OpenFlags) {
        let locks = OpenLocks::default();
        self.state().opens.push(Open {
            key,
            stateid,
            caller,
            read: flags.read,
            write: flags.write,
            error: None,
            locks,
        });
    }

    /// Takes an open off the list: its stateid, and whether it was the last one.
    pub(crate) fn remove_open(&self, key: u64) -> (Option<stateid4>, bool) {
        let mut state = self.state();
        let at = state.opens.iter().position(|open| open.key == key);
        let stateid = at.map(|at| state.opens.remove(at).stateid);
        (stateid, state.opens.is_empty())
    }

    /// All opens.
    pub(crate) fn opens(&self) -> Vec<Open> {
        self.state().opens.clone()
    }

    /// An open has a new stateid.
    pub(crate) fn reopened(&self, key: u64, stateid: stateid4) {
        let mut state = self.state();
        if let Some(open) = state.opens.iter_mut().find(|open| open.key == key) {
            open.stateid = stateid;
        }
    }

    /// Whether the mgr has been told of everything written here, and nothing of it can be lost.
    pub(crate) fn is_clean(&self) -> bool {
        self.state().is_clean()
    }

    /// Whether somebody here may read it.
    pub(crate) fn is_open_for_reading(&self) -> bool {
        self.state().opens.iter().any(|open| open.read)
    }

    /// Whether somebody here may write to it.
    pub(crate) fn is_open_for_writing(&self) -> bool {
        self.state().opens.iter().any(|open| open.write)
    }

    /// Waits until no request that is on its way now touches `range` any more.
    async fn settle(&self, range: ByteRange) {
        let mut settled = self.settled.subscribe();
        let newest = self.state().next_batch;
        loop {
            let waits = |(number, batch): (&u64, &Batch)| *number < newest && batch.touches(range);
            if !self.state().in_flight.iter().any(waits) {
                return;
            }
            // The sender lives as long as this inode.
            let _ = settled.changed().await;
        }
    }

    /// Remembers that bytes were given up, until every open that can write has been told why.
    pub(crate) fn fail(&self, error: Error) {
        tracing::debug!(file = %self.node.id, "{error}");
        let mut state = self.state();
        state.unsure = true;
        for open in state.opens.iter_mut().filter(|open| open.write) {
            open.error.get_or_insert_with(|| error.clone());
        }
    }

    /// Whether everything that was ever written here is durable or was never sent, once nothing is left to be committed.
    pub(crate) fn is_sure(&self) -> bool {
        !self.state().unsure
    }

    /// The failure that an open was not yet told of, once.
    pub(crate) fn take_error(&self, key: u64) -> Result<()> {
        let mut state = self.state();
        let open = state.opens.iter_mut().find(|open| open.key == key);
        open.and_then(|open| open.error.take()).map_or(Ok(()), Err)
    }

    /// As [`Inode::take_error`]; it is told again.
    pub(crate) fn see_error(&self, key: u64) -> Result<()> {
        let state = self.state();
        let open = state.opens.iter().find(|open| open.key == key);
        open.and_then(|open| open.error.clone()).map_or(Ok(()), Err)
    }

    /// Gives up everything that is not yet durable, for a file that nobody can write to any more.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        let pending = std::mem::take(&mut state.pending).bytes();
        let sent: u64 = state.uncommitted.values().flatten().map(write::Sent::bytes).sum();
        state.uncommitted.clear();
        self.mount.window.release(pending + sent);
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let stamp = self.state().stamp;
        self.mount.closed(self.node.id, stamp);
        self.abandon();
    }
}

impl State {
    /// The server said that the file is as long as this, and nothing has changed that here since it was asked.
    fn accept(&mut self, size: u64) {
        self.doubtful = false;
        let size = size.max(self.own_end());
        if size != std::mem::replace(&mut self.size, size) {
            self.turns += 1;
        }
    }

    /// Takes the size of a shared file over from the mgr, which was asked when the stamp was `stamp`. The mgr knows of every write that has returned, except for
    /// bytes that this client wrote directly to iods and had not reported by then.
    fn accept_shared(&mut self, size: u64, stamp: u64) -> u64 {
        let reported = self.reported.filter(|(_, at)| *at > stamp).map_or(0, |(end, _)| end);
        self.size = size.max(reported).max(self.own_end_of(|lane| lane != Lane::Mgr));
        self.size
    }

    /// Others may have changed the size.
    fn doubt(&mut self) {
        self.doubtful = true;
        self.turns += 1;
    }

    /// One past the last byte written here of which the mgr need not know yet, or which can still be lost.
    fn own_end(&self) -> u64 {
        self.own_end_of(|_| true)
    }

    /// As [`State::own_end`], of what these lanes' servers may lose and all that they have not answered for.
    fn own_end_of(&self, counts: impl Fn(Lane) -> bool) -> u64 {
        let pending = self.pending.end();
        let in_flight = self.in_flight.values().flat_map(|batch| &batch.ranges).map(|range| range.end());
        let lanes = self.uncommitted.iter().filter(|(lane, _)| counts(**lane));
        let uncommitted = lanes.flat_map(|(_, sent)| sent).flat_map(|sent| &sent.parts).map(|part| part.end());
        in_flight.chain(uncommitted).chain(self.unreported).max().unwrap_or(0).max(pending)
    }

    /// Bytes up to `end`, sent under this grant, are durable in objects, and the mgr does not know.
    fn proved(&mut self, end: u64, grant: u64) {
        self.unreported = Some(self.unreported.unwrap_or(0).max(end));
        self.ask_iods |= grant != self.grant;
    }

    /// A layout was got after another one was lost.
    fn granted_anew(&mut self) {
        self.grant += 1;
        self.ask_iods = self.unreported.is_some();
    }

    /// The report that is due: how far, and what goes with it.
    fn due(&self) -> Option<(u64, Update)> {
        self.unreported.map(|end| (end, Update { measure: self.ask_iods, holes: self.holes, ..Update::default() }))
    }

    fn is_clean(&self) -> bool {
        self.uncommitted.is_empty() && self.is_clean_but(Lane::Mgr)
    }

    /// Whether nothing is left but what the server of this lane may still lose.
    fn is_clean_but(&self, but: Lane) -> bool {
        let uncommitted = self.uncommitted.keys().any(|lane| *lane != but);
        self.pending.is_empty() && self.in_flight.is_empty() && !uncommitted && self.unreported.is_none()
    }
}

impl Batch {
    fn touches(&self, range: ByteRange) -> bool {
        range.overlaps_any(&self.ranges)
    }
}

/// Whether `a` and `b` are the same layout and not merely equal ones.
fn same(a: &Arc<dyn Layout>, b: &Arc<dyn Layout>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reported_while_the_mgr_answers_counts() {
        let mut state = State { unreported: Some(3_008), ..State::default() };
        assert_eq!(state.accept_shared(8, 1), 3_008, "it is not reported");
        (state.unreported, state.reported) = (None, Some((3_008, 2)));
        assert_eq!(state.accept_shared(8, 1), 3_008, "the mgr was asked before it was");
        assert_eq!(state.accept_shared(5_000, 1), 5_000);
        assert_eq!(state.accept_shared(8, 2), 8, "others have cut the file since");
    }
}
