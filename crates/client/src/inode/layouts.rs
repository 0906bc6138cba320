//! The layout of an open file: the requests that get, renew and return it, and the size reports under it.

use super::layout_state::{Grant, Granted, Held, LayoutState, Recall};
use super::opens::TRIES;
use super::{Inode, State};
use crate::compound::{Caller, Compound, Failed, is_state_lost};
use crate::drivers::Layout;
use crate::lock_order::{OrderedGuard, OrderedMutex, Rank};
use crate::{Error, Result};
use layout::kinds::KindId;
use layout::kinds::native::Update;
use nfs::client::recovery;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{MutexGuard as AsyncMutexGuard, Notify, RwLockReadGuard};
use tokio::time::Instant;
use types::Status;
use types::limits::LAYOUT_BODY_MAX;
use wire::nfs4::*;
use xdr::Xdr;

/// The longest pause between two LAYOUTGETs while the client waits for a layout under which it can send a size report.
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// Maximum number of LAYOUTGETs that the client sends in a row because it loses its layout while each is in flight.
const ASKS: u32 = 3;

type DynLayout = Arc<dyn Layout>;

/// The layout state of a file, and a notification for the end of the last request under a layout.
pub(super) struct Layouts {
    state: OrderedMutex<LayoutState<DynLayout>>,
    unused: Notify,
}

impl Default for Layouts {
    fn default() -> Self {
        Layouts { state: OrderedMutex::new(Rank::LayoutState, LayoutState::default()), unused: Notify::new() }
    }
}

impl Layouts {
    fn state(&self) -> OrderedGuard<'_, LayoutState<DynLayout>> {
        self.state.lock()
    }

    /// Waits until no request uses a layout.
    async fn are_unused(&self) {
        loop {
            // Enable the notification before checking whether a request uses a layout, so that the task misses no
            // notification.
            let mut unused = std::pin::pin!(self.unused.notified());
            unused.as_mut().enable();
            if !self.state().is_in_use() {
                return;
            }
            unused.await;
        }
    }
}

/// A request's use of the layout. The client does not return the layout while a use exists, so a task must drop its use
/// before it waits for the mgr.
pub(crate) struct LayoutUse {
    layouts: Arc<Layouts>,
    layout: DynLayout,
    number: u64,
}

impl Deref for LayoutUse {
    type Target = dyn Layout;

    fn deref(&self) -> &Self::Target {
        &*self.layout
    }
}

impl Clone for LayoutUse {
    fn clone(&self) -> Self {
        self.layouts.state().continue_use();
        LayoutUse { layouts: self.layouts.clone(), layout: self.layout.clone(), number: self.number }
    }
}

impl Drop for LayoutUse {
    fn drop(&mut self) {
        if self.layouts.state().end_use() {
            self.layouts.unused.notify_waiters();
        }
    }
}

/// Marks a LAYOUTGET as in flight until this value is dropped.
struct LayoutgetGuard<'a>(&'a Layouts);

impl Drop for LayoutgetGuard<'_> {
    fn drop(&mut self) {
        self.0.state().end_asking();
    }
}

/// Returns the arguments of a LAYOUTGET for the whole file.
pub(crate) fn layoutget(kind: KindId, stateid: stateid4, write: bool) -> LAYOUTGET4args {
    LAYOUTGET4args {
        loga_signal_layout_avail: false,
        loga_layout_type: kind.number(),
        loga_iomode: if write { LAYOUTIOMODE4_RW } else { LAYOUTIOMODE4_READ },
        loga_offset: 0,
        loga_length: NFS4_UINT64_MAX,
        loga_minlength: 0,
        loga_stateid: stateid,
        loga_maxcount: LAYOUT_BODY_MAX as u32 + 1024,
    }
}

impl Inode {
    /// Excludes other operations on the layout stateid: LAYOUTGET, LAYOUTCOMMIT and LAYOUTRETURN.
    async fn layout_turn(&self) -> AsyncMutexGuard<'_, ()> {
        self.layout_turn.lock().await
    }

    /// Returns whether an OPEN should also request a layout of the preferred kind.
    pub(crate) async fn wants_layout(&self, read: bool, write: bool) -> bool {
        // Wait for a LAYOUTGET in flight: if it gets the layout, OPEN need not request one.
        let _turn = self.layout_turn().await;
        self.layouts.state().wants(read, write)
    }

    /// Returns whether the client holds a layout of the file.
    pub(super) fn has_layout(&self) -> bool {
        self.layouts.state().held().is_some()
    }

    /// Processes the result of a LAYOUTGET for the preferred layout kind, which followed the OPEN with this number in a
    /// COMPOUND. It is no error if the mgr refused the layout: I/O then takes the mgr path.
    pub(crate) async fn learn_layout(&self, got: std::result::Result<LAYOUTGET4resok, Failed>, number: u64) {
        self.layout_turn.hold(pin!(self.adopt(0, got, Some(number)))).await;
    }

    /// Processes the result of a LAYOUTGET for the layout kind at index `position` of the client's order of preference,
    /// like [`Inode::learn_layout`]. `open` is the number of the OPEN that requested the layout. Returns the outcome if
    /// the mgr granted a layout.
    async fn adopt(
        &self,
        position: usize,
        got: std::result::Result<LAYOUTGET4resok, Failed>,
        open: Option<u64>,
    ) -> Option<Granted> {
        let refused = match got {
            Ok(got) => match &got.logr_layout[..] {
                [one] => match self.mount.drivers.attach(one.lo_content.loc_type, &one.lo_content.loc_body).await {
                    Ok((kind, layout)) => {
                        let (write, read) = (one.lo_iomode == LAYOUTIOMODE4_RW, self.is_open_for_reading());
                        let (generation, stateid) = (layout.generation(), got.logr_stateid);
                        return Some(self.granted(Grant { layout, generation, kind, stateid, write, read, open }));
                    }
                    Err(error) => error.to_string(),
                },
                several => format!("{} layouts instead of one", several.len()),
            },
            // The mgr may grant a layout a little later, so request one at a later I/O. Until then I/O takes the mgr
            // path.
            Err(Failed::Nfs(NFS4ERR_DELAY | NFS4ERR_GRACE | NFS4ERR_LAYOUTTRYLATER)) => return None,
            Err(Failed::Nfs(NFS4ERR_RECALLCONFLICT | NFS4ERR_RETURNCONFLICT)) => return None,
            Err(failed) => format!("{failed:?}"),
        };
        tracing::debug!(file = %self.node.id, "the mgr granted no layout: using the mgr path: {refused}");
        self.layouts.state().refuse(position, self.mount.drivers.kinds().len());
        None
    }

    fn granted(&self, grant: Grant<DynLayout>) -> Granted {
        if grant.write {
            // A LAYOUTGET for writing makes the creation of the file durable: an iod must not store bytes of a file
            // that the mgr may still lose.
            self.made_durably();
        }
        let mut layouts = self.layouts.state();
        let granted = layouts.granted(grant);
        match granted {
            Granted::Usable { continues: true } | Granted::Outdated => {}
            // Update the layout state and the dirty data while the layout state is locked. Otherwise a write under the
            // new layout could count as a write under the earlier one.
            Granted::Usable { .. } | Granted::Recalled | Granted::Doubtful => self.state().dirty.granted_again(),
        }
        granted
    }

    /// Returns the layout for I/O, or `None` if I/O takes the mgr path. `stale` is a layout that the iods refused.
    pub(crate) async fn layout(&self, write: bool, stale: Option<LayoutUse>) -> Result<Option<LayoutUse>> {
        if !self.mount.options.direct {
            return Ok(None);
        }
        if let Some(stale) = stale {
            self.layouts.state().refused_by_iods(stale.number);
            // First drop this task's use of the refused layout: this task may wait for the return of the layout, and
            // the return waits until no request uses the layout.
            drop(stale);
        }
        // Check the lease: if it has expired, the mgr may have granted conflicting layouts and locks to other clients.
        self.mount.session.ensure_lease().await?;
        if let Some(layout) = self.usable_layout(write) {
            return Ok(Some(layout));
        }
        if self.layouts.state().is_refused() {
            return Ok(None);
        }
        // Box the future of the layout request, so that the caller's future stays small. Most I/O finds a usable layout
        // and sends no request.
        let ask = async {
            if let Some(layout) = self.usable_layout(write) {
                return Ok(Some(layout));
            }
            self.ask_for_layout(write).await?;
            Ok(self.usable_layout(write))
        };
        self.layout_turn.hold(Box::pin(ask).as_mut()).await
    }

    /// Begins to use the layout that the client holds, if its state allows I/O.
    fn usable_layout(&self, write: bool) -> Option<LayoutUse> {
        let reading = self.is_open_for_reading();
        let (layout, number) = self.layouts.state().begin_use(write, reading)?;
        let used = LayoutUse { layouts: self.layouts.clone(), layout, number };
        if used.is_old() {
            self.renew_soon(number);
        }
        Some(used)
    }

    /// Starts a task that requests another layout before the current one expires. Until then, I/O continues under the
    /// current layout.
    fn renew_soon(&self, number: u64) {
        // An inode without opens is not in the mount's table of open files, and needs no layout.
        let Some(inode) = self.mount.inodes.get(self.node.id) else { return };
        let Some(write) = self.layouts.state().begin_renewal(number, Instant::now()) else { return };
        net::task::spawn_on(&self.mount.runtime, async move {
            if let Err(error) = inode.renew(number, write).await {
                tracing::debug!(file = %inode.node.id, "renewing the layout: {error}");
            }
            inode.layouts.state().end_renewal(number, Instant::now());
        });
    }

    async fn renew(&self, number: u64, write: bool) -> Result<()> {
        // While the mgr is unreachable, do not take the lock for operations on the layout, so that no other task has to
        // wait for this lock.
        self.mount.session.answers().await?;
        let ask = async {
            let is_current = self.layouts.state().is_current(number);
            if is_current { self.ask_for_layout(write).await } else { Ok(()) }
        };
        self.layout_turn.hold(pin!(ask)).await
    }

    /// Requests a layout, one kind after the other in the order of preference. The caller holds the lock `layout_turn`,
    /// which excludes other operations on the layout.
    async fn ask_for_layout(&self, write: bool) -> Result<()> {
        let mut asks = ASKS;
        let first = self.layouts.state().kind();
        for (position, kind) in self.mount.drivers.kinds().into_iter().enumerate().skip(first) {
            loop {
                if !self.layouts.state().begin_asking() {
                    return Ok(());
                }
                let _asking = LayoutgetGuard(&self.layouts);
                let got = self.ask_for_kind(kind, write).await?;
                asks -= 1;
                match self.adopt(position, got, None).await {
                    Some(Granted::Doubtful) if asks > 0 => {}
                    Some(_) => return Ok(()),
                    None => break,
                }
            }
            // Try the next layout kind only if the mgr refused this kind for good. Otherwise the mgr may grant this
            // kind later.
            let next = self.layouts.state().kind();
            if next == position {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn ask_for_kind(&self, kind: KindId, write: bool) -> Result<std::result::Result<LAYOUTGET4resok, Failed>> {
        let mut tries = TRIES;
        loop {
            // Only an open for writing can get a layout for writing. If there is such an open, request a layout for
            // writing even for a read, so that a later write needs no second LAYOUTGET.
            let (opened, write) = match self.opened(true) {
                Ok(opened) => (opened, true),
                Err(_) => (self.opened(write)?, write),
            };
            let stateid = opened.stateid;
            let mut compound = Compound::new("getting a layout").by(&opened.caller);
            compound.putfh(&self.node.handle).op(OP_LAYOUTGET, &layoutget(kind, stateid, write));
            let mut results = self.mount.session.call(compound).await?;
            results.done(&[OP_PUTFH])?;
            match results.raw(OP_LAYOUTGET) {
                Err(failed @ Failed::Nfs(status)) if is_state_lost(status) => {
                    self.open_again(stateid, &mut tries, results.error(&failed)).await?;
                }
                Err(failed @ Failed::Nfs(NFS4ERR_STALE)) => return Err(results.error(&failed)),
                got => return Ok(got),
            }
        }
    }

    /// Sends a size report if one is due: a LAYOUTCOMMIT (RFC 8881 §18.42) with the end offset of the writes since the
    /// last report. If the client holds no layout, it first requests a layout, and waits if the mgr grants none yet,
    /// for example because another client truncates the file.
    pub(crate) async fn report(&self) -> Result<()> {
        self.report_within(self.mount.options.retry_timeout).await
    }

    /// Sends the size report like [`Inode::report`], but waits at most `patience` for a layout.
    async fn report_within(&self, patience: Duration) -> Result<()> {
        let due = |state: &State| state.dirty.report_due().map(|(end, update)| (Some(end), update));
        self.commit_layout("reporting what was written", patience, due).await
    }

    /// Sends a LAYOUTCOMMIT with the size report that `due` returns, if any. Waits at most `patience` for a layout
    /// under which the client can send the LAYOUTCOMMIT.
    pub(super) async fn commit_layout(
        &self,
        what: &'static str,
        patience: Duration,
        due: impl Fn(&State) -> Option<(Option<u64>, Update)>,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        let (mut pauses, mut tries) = (0, TRIES);
        while tries > 0 {
            let turn = self.layout_turn().await;
            let Some((end, update)) = due(&self.state()) else { return Ok(()) };
            let args = self.layouts.state().reportable().map(|held| layoutcommit(held, end, update));
            let Some(args) = args else {
                drop(turn);
                if self.layout(true, None).await?.is_some() {
                    tries -= 1;
                    continue;
                }
                let pause = recovery::pause(pauses).min(PAUSE_LONGEST);
                if self.layouts.state().is_refused() || Instant::now() + pause > deadline {
                    break;
                }
                pauses += 1;
                tokio::time::sleep(pause).await;
                continue;
            };
            let mut compound = Compound::new(what).by(&self.writer()).cached();
            compound.putfh(&self.node.handle).op(OP_LAYOUTCOMMIT, &args);
            let begun = Instant::now();
            let mut results = self.mount.session.call(compound).await?;
            results.done(&[OP_PUTFH])?;
            match results.raw::<LAYOUTCOMMIT4resok>(OP_LAYOUTCOMMIT) {
                Ok(_) => {
                    self.mount.learn_report(begun);
                    if update.fence {
                        self.layouts.state().fenced();
                        self.state().abandoned = false;
                    }
                    if let Some(end) = end {
                        self.reported(end);
                    }
                    return Ok(());
                }
                // The mgr has restarted, or has revoked the layout. The bytes are durable, so the client reports them
                // again under another layout.
                Err(Failed::Nfs(status)) if status == NFS4ERR_BADLAYOUT || is_state_lost(status) => {
                    self.lose_layout();
                }
                Err(failed) => return Err(results.error(&failed)),
            }
        }
        Err(Error::status(Status::NoLayout, what))
    }

    /// Returns the credentials of an open for writing, if there is one.
    pub(crate) fn writer(&self) -> Caller {
        self.opened(true).ok().and_then(|opened| opened.caller)
    }

    /// Returns whether a size report is due and the client holds no layout to send it under.
    pub(crate) async fn cannot_report(&self) -> bool {
        let _turn = self.layout_turn().await;
        let reportable = self.layouts.state().reportable().is_some();
        !reportable && self.state().dirty.report_due().is_some()
    }

    /// Excludes attribute changes ([`Inode::set_attrs`]) until the returned guard is dropped. A close takes the guard
    /// before it removes its open, and keeps the guard until the mgr has received the size report of the close.
    pub(crate) async fn reporting(&self) -> RwLockReadGuard<'_, ()> {
        self.reporting.read().await
    }

    /// Records that the mgr received a size report up to file offset `end`.
    pub(crate) fn reported(&self, end: u64) {
        let mut state = self.state();
        if let Some(asked_iods) = state.dirty.reported(end) {
            // The mgr took the size from the iods, so it may differ from the size that the client knows.
            if asked_iods {
                state.size.doubt();
            }
            state.size.reported(end, self.mount.next_stamp());
        }
    }

    /// Drops the size report that is due, because the mgr removed the file during its close. The file had no name any
    /// more, and the mgr lost the open in a restart. No client can read the file any more.
    pub(crate) fn gone(&self) {
        tracing::debug!(file = %self.node.id, "the mgr removed the file before CLOSE: the client drops its size report");
        self.state().dirty.drop_report();
    }

    /// Appends the LAYOUTCOMMIT that is due, if any, and returns the LAYOUTRETURN of the last close of the file.
    /// `report` is `None` if the caller wants no LAYOUTCOMMIT; otherwise it says whether all written bytes are durable.
    ///
    /// While the COMPOUND is in flight, another task may open the file again. This task must not write under the
    /// layout that is being returned, because after LAYOUTRETURN the mgr no longer asks the iods for sizes. With
    /// `wait`, no task can request another layout before [`LayoutClose::ended`]. Callers do not set `wait` if the mgr
    /// may have to recall this layout before it replies to the COMPOUND.
    pub(crate) async fn append_layout_close(
        &self,
        compound: &mut Compound,
        report: Option<bool>,
        (last, wait): (bool, bool),
    ) -> LayoutClose<'_> {
        let turn = self.layout_turn().await;
        let mut layouts = self.layouts.state();
        let (due, last) = {
            let known = self.state();
            (known.dirty.report_due().filter(|_| report.is_some()), last && known.opens.all().is_empty())
        };
        let commit = due.and_then(|due| layouts.reportable().map(|held| (due, held)));
        if let Some(((end, update), held)) = commit {
            let durable = report == Some(true) && !update.measure;
            let whole = durable && held.layout().reaches(end);
            compound.op(OP_LAYOUTCOMMIT, &layoutcommit(held, Some(end), Update { durable, whole, ..update }));
        }
        let committed = commit.map(|((end, _), _)| end);
        let returned = if last { layouts.take_for_close() } else { None };
        let returned = returned.map(|(kind, stateid)| layoutreturn(kind, stateid));
        let turn = (returned.is_some() && wait).then_some(turn);
        LayoutClose { committed, returned, turn }
    }

    /// Records the end of a LAYOUTRETURN. The reply to an OPEN that the client sent earlier may still grant the
    /// returned layout.
    fn layout_is_back(&self) {
        let opens = self.mount.opens_asked().0;
        self.layouts.state().returned(opens);
    }

    /// Forgets the durable lengths of the objects. The client calls this before it truncates the file, and again after
    /// the mgr has answered: a layout that the mgr granted before the truncate may arrive between the two calls.
    pub(crate) async fn forget_lengths(&self) {
        // Wait for a LAYOUTGET in flight: its reply may contain object lengths from before the truncate.
        let _turn = self.layout_turn().await;
        if let Some(held) = self.layouts.state().held() {
            held.layout().truncating();
        }
    }

    /// Forbids I/O under the current layout after a failed truncate: the mgr may still execute the truncate, which
    /// removes later writes. The mgr grants no other layout until the outcome of the truncate is known.
    pub(super) async fn distrust_layout(&self) {
        let _turn = self.layout_turn().await;
        self.layouts.state().distrust();
    }

    /// Removes an open if CLOSE is the only operation that its close needs: no size report is due, and the open has no
    /// locks and no layout to return. Returns the stateid of the open, and the delegation to return if this was the
    /// last open.
    pub(crate) async fn remove_mere_open(&self, key: u64) -> Option<(stateid4, Option<stateid4>)> {
        let _turn = self.layout_turn().await;
        let has_layout = self.has_layout();
        // Look for other opens and remove this open under one lock: if two opens close at the same time, exactly one of
        // them finds that it is the last.
        let mut state = self.state();
        let has_locks = state.opens.get(key)?.has_locks();
        let takes_more = state.opens.all().len() == 1 && has_layout;
        if !state.dirty.is_clean() || has_locks || takes_more {
            return None;
        }
        let open = state.opens.remove(key)?;
        match self.hand_over_delegation(&state) {
            Ok(delegation) => Some((open.stateid, delegation)),
            Err(()) => {
                state.opens.add(open);
                None
            }
        }
    }

    /// Drops the layout, because the mgr refused its stateid.
    pub(crate) async fn forget_layout(&self) {
        let _turn = self.layout_turn().await;
        self.lose_layout();
    }

    /// Returns the size report that is due, in the form for an mgr that has restarted since it granted the layout
    /// (`loca_reclaim`, RFC 8881 §12.7.4).
    pub(crate) fn report_to_reclaim(&self) -> Option<(u64, LAYOUTCOMMIT4args)> {
        // If another task holds the lock for operations on the layout, do not wait for the lock: the size report stays
        // due.
        let _turn = self.layout_turn.try_lock()?;
        let (end, update) = self.state().dirty.report_due()?;
        let layouts = self.layouts.state();
        let args = layoutcommit(layouts.reportable()?, Some(end), update);
        Some((end, LAYOUTCOMMIT4args { loca_reclaim: true, ..args }))
    }

    /// Drops a layout that the mgr revoked or does not know. Requests that use the layout continue until the iods
    /// refuse them.
    pub(crate) fn lose_layout(&self) {
        let opens = self.mount.opens_asked().0;
        self.layouts.state().lose(opens);
    }

    /// Records a layout recall, and answers it in a background task.
    pub(crate) fn recall_layout(self: &Arc<Self>, kind: layouttype4, stateid: stateid4) {
        self.layouts.state().recalled(Recall { kind, stateid });
        let inode = self.clone();
        net::task::spawn(async move {
            if let Err(error) = inode.give_back().await {
                // Written bytes may be lost, because the client failed to report them to the mgr before it returned the
                // layout. So each open for writing must report the error to its program.
                inode.fail(error);
            }
        });
    }

    /// Handles a recall of all layouts of this client; returns `false` if the client holds no layout of this file.
    pub(crate) fn recall_any_layout(self: &Arc<Self>) -> bool {
        let held = self.layouts.state().held().map(|held| (held.kind().number(), held.stateid()));
        if let Some((kind, stateid)) = held {
            self.recall_layout(kind, stateid);
        }
        held.is_some()
    }

    /// Answers a layout recall (RFC 8881 §20.3): makes all writes durable, reports them, and returns the layout. The
    /// next I/O requests a new layout.
    async fn give_back(self: &Arc<Self>) -> Result<()> {
        // Do not wait for pending writes if a truncate by this client delays them: the truncate waits for the mgr, and
        // the mgr may wait for this LAYOUTRETURN.
        let mut cutting = self.cutting.subscribe();
        tokio::select! {
            biased;
            // Waiting for a truncate cannot fail: the sender of the notification lives as long as this inode. A
            // truncate cannot begin while a task sends bytes, because both tasks need the lock `order`.
            _ = cutting.wait_for(|cutting| *cutting) => {}
            () = self.hand_over(true) => {}
        }
        self.settle_all().await;
        // Other tasks may have sent writes while this task waited until the earlier writes were durable. Lock
        // `leaving`, so that no task sends a write until the client has returned the layout.
        self.leaving.hold(pin!(self.return_recalled())).await
    }

    async fn return_recalled(self: &Arc<Self>) -> Result<()> {
        self.settle_all().await;
        // Do not wait for another layout for the size report: the client that caused the recall waits for this
        // LAYOUTRETURN, and the mgr grants no layout before it.
        let reported = self.report_within(Duration::ZERO).await;
        let returned = self.layout_turn.hold(pin!(self.send_return())).await?;
        match reported {
            // The client had no layout for the size report yet. The next fsync or close sends the report.
            Err(error) if returned && error.is(Status::NoLayout) => Ok(()),
            Err(_) if !returned => Ok(()),
            reported => reported,
        }
    }

    /// Sends the LAYOUTRETURN that answers a layout recall, after the last request under the layout has ended. Returns
    /// `false` if there is no recall to answer.
    async fn send_return(&self) -> Result<bool> {
        // The mgr recalls this layout if another client truncates or extends the file, so the size that this client
        // knows may be outdated.
        self.state().size.doubt();
        // If a close has already returned the layout, there is no recall to answer.
        if !self.layouts.state().begin_return() {
            return Ok(false);
        }
        self.layouts.are_unused().await;
        let recalled = self.layouts.state().take_recalled();
        let Some((kind, stateid)) = recalled else { return Ok(false) };
        let mut compound = Compound::new("returning a layout").cached();
        compound.putfh(&self.node.handle).op(OP_LAYOUTRETURN, &layoutreturn(kind, stateid));
        let returned = self.mount.session.call(compound).await;
        self.layout_is_back();
        returned?.done(&[OP_PUTFH])?;
        Ok(true)
    }
}

/// The operations that [`Inode::append_layout_close`] appended to the COMPOUND, and the LAYOUTRETURN that the caller
/// appends.
pub(crate) struct LayoutClose<'a> {
    /// The file offset just after the durable bytes, which the LAYOUTCOMMIT reports; `None` if the COMPOUND contains no
    /// LAYOUTCOMMIT.
    pub(crate) committed: Option<u64>,
    /// The LAYOUTRETURN that the caller has to append.
    pub(crate) returned: Option<LAYOUTRETURN4args>,
    /// The lock for operations on the layout, which keeps other tasks from requesting a layout until the mgr has
    /// replied to the COMPOUND.
    turn: Option<AsyncMutexGuard<'a, ()>>,
}

impl LayoutClose<'_> {
    /// Records the end of the COMPOUND that contains the LAYOUTRETURN, with or without a reply from the mgr.
    pub(crate) fn ended(&mut self, inode: &Inode) {
        if self.returned.is_some() {
            inode.layout_is_back();
            self.turn = None;
        }
    }
}

fn layoutcommit(held: &Held<DynLayout>, end: Option<u64>, update: Update) -> LAYOUTCOMMIT4args {
    let body = if update == Update::default() { bytes::Bytes::new() } else { update.to_bytes() };
    LAYOUTCOMMIT4args {
        loca_offset: 0,
        loca_length: NFS4_UINT64_MAX,
        loca_reclaim: false,
        loca_stateid: held.stateid(),
        loca_last_write_offset: end.and_then(|end| end.checked_sub(1)).map_or(newoffset4::FALSE, newoffset4::TRUE),
        loca_time_modify: newtime4::FALSE,
        loca_layoutupdate: layoutupdate4 { lou_type: held.kind().number(), lou_body: body },
    }
}

fn layoutreturn(kind: layouttype4, stateid: stateid4) -> LAYOUTRETURN4args {
    LAYOUTRETURN4args {
        lora_reclaim: false,
        lora_layout_type: kind,
        lora_iomode: LAYOUTIOMODE4_ANY,
        lora_layoutreturn: layoutreturn4::LAYOUTRETURN4_FILE(layoutreturn_file4 {
            lrf_offset: 0,
            lrf_length: NFS4_UINT64_MAX,
            lrf_stateid: stateid,
            lrf_body: bytes::Bytes::new(),
        }),
    }
}
