//! The layout of an open file: obtained at first use, replaced when it has aged, reported to the mgr and returned.

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

/// The longest pause before the client asks for a layout again.
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// How often the client asks for a layout again because it lost the one before while the mgr granted the next.
const ASKS: u32 = 3;

type DynLayout = Arc<dyn Layout>;

/// The layout state of a file, and the notice that no request uses a layout.
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
            // Enabled before the check, so that no notice is missed.
            let mut unused = std::pin::pin!(self.unused.notified());
            unused.as_mut().enable();
            if !self.state().is_in_use() {
                return;
            }
            unused.await;
        }
    }
}

/// A layout in use by a request. The client returns no layout while one exists, so a task drops it before it waits for
/// the mgr.
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

/// A LAYOUTGET in flight; it ends when this is dropped.
struct Asking<'a>(&'a Layouts);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.state().end_asking();
    }
}

/// Returns the LAYOUTGET of this client: the whole file.
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
    /// Locks out other operations on the layout's stateid: LAYOUTGET, LAYOUTCOMMIT and LAYOUTRETURN.
    async fn layout_turn(&self) -> AsyncMutexGuard<'_, ()> {
        self.layout_turn.lock().await
    }

    /// Returns whether a LAYOUTGET for the preferred kind would be useful.
    pub(crate) async fn wants_layout(&self, read: bool, write: bool) -> bool {
        // A LAYOUTGET in flight may get the layout.
        let _turn = self.layout_turn().await;
        self.layouts.state().wants(read, write)
    }

    /// Returns whether a layout is held.
    pub(super) fn has_layout(&self) -> bool {
        self.layouts.state().held().is_some()
    }

    /// Takes over the result of a LAYOUTGET for the preferred kind behind the OPEN with this number. A refusal is no
    /// error: the bytes then take the mgr path.
    pub(crate) async fn learn_layout(&self, got: std::result::Result<LAYOUTGET4resok, Failed>, number: u64) {
        self.layout_turn.hold(pin!(self.adopt(0, got, Some(number)))).await;
    }

    /// Takes over the result of a LAYOUTGET for the kind at a position of the client's order of preference, like
    /// [`Inode::learn_layout`]. `open` is the number of the OPEN that asked. Returns the outcome of the grant, if there
    /// was one.
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
            // The layout may be available a little later; until then the bytes take the mgr path.
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
            // No iod may have bytes of a file whose creation the mgr may lose.
            self.made_durably();
        }
        let mut layouts = self.layouts.state();
        let granted = layouts.granted(grant);
        match granted {
            Granted::Usable { continues: true } | Granted::Outdated => {}
            // In one step with the grant: no write begins under the new layout and counts for the earlier one.
            Granted::Usable { .. } | Granted::Recalled | Granted::Doubtful => self.state().dirty.granted_again(),
        }
        granted
    }

    /// Returns the layout to use now, or `None` if bytes take the mgr path. `stale` is a layout that the iods refused.
    pub(crate) async fn layout(&self, write: bool, stale: Option<LayoutUse>) -> Result<Option<LayoutUse>> {
        if !self.mount.options.direct {
            return Ok(None);
        }
        if let Some(stale) = stale {
            self.layouts.state().refused_by_iods(stale.number);
            // The task may have to wait for a return below, which waits for the end of this use.
            drop(stale);
        }
        // Without a lease the mgr may have given the layout, and locks, to other clients.
        self.mount.session.ensure_lease().await?;
        if let Some(layout) = self.usable_layout(write) {
            return Ok(Some(layout));
        }
        if self.layouts.state().is_refused() {
            return Ok(None);
        }
        // Boxed: most requests have the layout.
        let ask = async {
            if let Some(layout) = self.usable_layout(write) {
                return Ok(Some(layout));
            }
            self.ask_for_layout(write).await?;
            Ok(self.usable_layout(write))
        };
        self.layout_turn.hold(Box::pin(ask).as_mut()).await
    }

    /// Begins to use the layout that the client holds, if it allows that.
    fn usable_layout(&self, write: bool) -> Option<LayoutUse> {
        let reading = self.is_open_for_reading();
        let (layout, number) = self.layouts.state().begin_use(write, reading)?;
        let used = LayoutUse { layouts: self.layouts.clone(), layout, number };
        if used.is_old() {
            self.renew_soon(number);
        }
        Some(used)
    }

    /// Starts a task that asks the mgr for another layout before the current one ends. Reads and writes continue under
    /// the current layout.
    fn renew_soon(&self, number: u64) {
        // An inode without opens needs no layout.
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
        // While the mgr is unreachable no task may have to wait for it: the task takes its turn only once the mgr
        // answers.
        self.mount.session.answers().await?;
        let ask = async {
            let is_current = self.layouts.state().is_current(number);
            if is_current { self.ask_for_layout(write).await } else { Ok(()) }
        };
        self.layout_turn.hold(pin!(ask)).await
    }

    /// Asks the mgr for a layout, of one kind after the other in the order of preference. The caller has the turn.
    async fn ask_for_layout(&self, write: bool) -> Result<()> {
        let mut asks = ASKS;
        let first = self.layouts.state().kind();
        for (position, kind) in self.mount.drivers.kinds().into_iter().enumerate().skip(first) {
            loop {
                if !self.layouts.state().begin_asking() {
                    return Ok(());
                }
                let _asking = Asking(&self.layouts);
                let got = self.ask_for_kind(kind, write).await?;
                asks -= 1;
                match self.adopt(position, got, None).await {
                    Some(Granted::Doubtful) if asks > 0 => {}
                    Some(_) => return Ok(()),
                    None => break,
                }
            }
            // Unless the kind is refused, a layout of it may be available a little later.
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
            // Only an open for writing can get a layout for writing. If there is such an open, request that layout even
            // for a read, so that a later write needs no second LAYOUTGET.
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

    /// Reports size and time of writes since the last report to the mgr (RFC 8881 §18.42). If the client holds no
    /// layout to report under, it first asks for one. While another client truncates the file the mgr grants none.
    pub(crate) async fn report(&self) -> Result<()> {
        self.report_within(self.mount.options.retry_timeout).await
    }

    /// Reports like [`Inode::report`], and waits no longer than `patience` for a layout.
    async fn report_within(&self, patience: Duration) -> Result<()> {
        let due = |state: &State| state.dirty.report_due().map(|(end, update)| (Some(end), update));
        self.commit_layout("reporting what was written", patience, due).await
    }

    /// Sends the LAYOUTCOMMIT that is due, if any, and waits no longer than `patience` for a layout to send it under.
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
                // The mgr restarted or revoked the layout: the bytes are durable, only the report is missing.
                Err(Failed::Nfs(status)) if status == NFS4ERR_BADLAYOUT || is_state_lost(status) => {
                    self.lose_layout();
                }
                Err(failed) => return Err(results.error(&failed)),
            }
        }
        Err(Error::status(Status::NoLayout, what))
    }

    /// Returns the caller that has the file open for writing, if any.
    pub(crate) fn writer(&self) -> Caller {
        self.opened(true).ok().and_then(|opened| opened.caller)
    }

    /// Returns whether a report is due and there is no layout to send it under.
    pub(crate) async fn cannot_report(&self) -> bool {
        let _turn = self.layout_turn().await;
        let reportable = self.layouts.state().reportable().is_some();
        !reportable && self.state().dirty.report_due().is_some()
    }

    /// Locks out attribute changes ([`Inode::set_attrs`]). A close holds the guard from before it removes its open
    /// until the mgr has its report.
    pub(crate) async fn reporting(&self) -> RwLockReadGuard<'_, ()> {
        self.reporting.read().await
    }

    /// Records that the mgr received a report up to `end`.
    pub(crate) fn reported(&self, end: u64) {
        let mut state = self.state();
        if let Some(asked_iods) = state.dirty.reported(end) {
            // The iods may have reported another size than the one known here.
            if asked_iods {
                state.size.doubt();
            }
            state.size.reported(end, self.mount.next_stamp());
        }
    }

    /// Drops the due report of a file that disappeared while it was being closed. Its last name was removed before, and
    /// its open was lost with an mgr that has restarted since. Nobody can ever read the file, so nothing is left to
    /// report.
    pub(crate) fn gone(&self) {
        tracing::debug!(file = %self.node.id, "the mgr removed the file before CLOSE: the client drops its size report");
        self.state().dirty.drop_report();
    }

    /// Appends the LAYOUTCOMMIT that is due, if `report` is set and there is one, and returns the LAYOUTRETURN of a
    /// last close. `report` says whether all that was written is durable.
    ///
    /// The file may be opened again in the meantime. No I/O uses a layout that is being returned, as the mgr no longer
    /// asks the iods about a layout that it does not know. With `wait`, no task asks for another layout either until
    /// [`Goodbye::said`]. Without `wait`, the mgr may have to wait for something that needs this layout back.
    pub(crate) async fn append_goodbye(
        &self,
        compound: &mut Compound,
        report: Option<bool>,
        (last, wait): (bool, bool),
    ) -> Goodbye<'_> {
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
        Goodbye { committed, returned, turn }
    }

    /// Records the return of a layout: the answer to an OPEN that was sent before may still grant it.
    fn layout_is_back(&self) {
        let opens = self.mount.opens_asked().0;
        self.layouts.state().returned(opens);
    }

    /// Forgets the known object lengths. The client calls this before it truncates the file, and again after the mgr
    /// has answered: a layout that the mgr granted before the truncate may arrive in between.
    pub(crate) async fn forget_lengths(&self) {
        // A LAYOUTGET in flight may bring lengths from before the truncate.
        let _turn = self.layout_turn().await;
        if let Some(held) = self.layouts.state().held() {
            held.layout().truncating();
        }
    }

    /// Stops writes under the current layout after a failed truncate, which may still complete and would truncate those
    /// writes. The mgr grants no other layout until the outcome is known.
    pub(super) async fn distrust_layout(&self) {
        let _turn = self.layout_turn().await;
        self.layouts.state().distrust();
    }

    /// Removes an open if its close consists of nothing but a CLOSE: no report is due, and no lock and no layout goes
    /// with it. Returns the stateid of the open, and the delegation to return with it if the open was the last one.
    pub(crate) async fn remove_mere_open(&self, key: u64) -> Option<(stateid4, Option<stateid4>)> {
        let _turn = self.layout_turn().await;
        let has_layout = self.has_layout();
        // In one step: if two opens close at the same time, exactly one is the last.
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

    /// Forgets a layout whose stateid the mgr refused.
    pub(crate) async fn forget_layout(&self) {
        let _turn = self.layout_turn().await;
        self.lose_layout();
    }

    /// Returns the report that is due, in the form for an mgr that restarted since it granted the layout (RFC 8881
    /// §12.7.4).
    pub(crate) fn report_to_reclaim(&self) -> Option<(u64, LAYOUTCOMMIT4args)> {
        // A task that has the turn is about to report, or to get a layout to report under.
        let _turn = self.layout_turn.try_lock()?;
        let (end, update) = self.state().dirty.report_due()?;
        let layouts = self.layouts.state();
        let args = layoutcommit(layouts.reportable()?, Some(end), update);
        Some((end, LAYOUTCOMMIT4args { loca_reclaim: true, ..args }))
    }

    /// Drops a layout that the mgr has revoked or forgotten. A task that uses the layout continues until the iods refuse
    /// it.
    pub(crate) fn lose_layout(&self) {
        let opens = self.mount.opens_asked().0;
        self.layouts.state().lose(opens);
    }

    /// Records a recall by the mgr, and answers it in the background.
    pub(crate) fn recall_layout(self: &Arc<Self>, kind: layouttype4, stateid: stateid4) {
        self.layouts.state().recalled(Recall { kind, stateid });
        let inode = self.clone();
        net::task::spawn(async move {
            if let Err(error) = inode.give_back().await {
                // Writers of the file must receive the error.
                inode.fail(error);
            }
        });
    }

    /// Records a recall of all layouts of this client; returns `false` if it holds none of this file.
    pub(crate) fn recall_any_layout(self: &Arc<Self>) -> bool {
        let held = self.layouts.state().held().map(|held| (held.kind().number(), held.stateid()));
        if let Some((kind, stateid)) = held {
            self.recall_layout(kind, stateid);
        }
        held.is_some()
    }

    /// Answers a recall (RFC 8881 §20.3): makes everything durable, reports it and returns the layout. The next I/O
    /// asks for a new one.
    async fn give_back(self: &Arc<Self>) -> Result<()> {
        // A truncate by this client holds back all bytes until the mgr has done it, and the mgr may wait for this
        // layout.
        let mut cutting = self.cutting.subscribe();
        tokio::select! {
            biased;
            // The sender lives as long as this inode. Sending holds the lock that a truncate needs to begin.
            _ = cutting.wait_for(|cutting| *cutting) => {}
            () = self.hand_over(true) => {}
        }
        self.settle_all().await;
        // Later writes may have been sent as well; from here on nothing is sent until the layout is returned.
        self.leaving.hold(pin!(self.return_recalled())).await
    }

    async fn return_recalled(self: &Arc<Self>) -> Result<()> {
        self.settle_all().await;
        // The client that wants the layout waits for this return: no other layout is available in the meantime.
        let reported = self.report_within(Duration::ZERO).await;
        let returned = self.layout_turn.hold(pin!(self.send_return())).await?;
        match reported {
            // The layout was granted after the report had been postponed, as above.
            Err(error) if returned && error.is(Status::NoLayout) => Ok(()),
            Err(_) if !returned => Ok(()),
            reported => reported,
        }
    }

    /// Sends the LAYOUTRETURN that answers a recall, once no request uses the layout; returns `false` if no recall waits
    /// for an answer.
    async fn send_return(&self) -> Result<bool> {
        // The mgr recalls layouts for a client that truncates or extends the file.
        self.state().size.doubt();
        // A close may have returned the layout since. The report is then left to the next sync or close.
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

/// What [`Inode::append_goodbye`] put into the compound, and the LAYOUTRETURN to append next.
pub(crate) struct Goodbye<'a> {
    /// The end of the LAYOUTCOMMIT in the compound.
    pub(crate) committed: Option<u64>,
    /// To be appended by the caller at the right place.
    pub(crate) returned: Option<LAYOUTRETURN4args>,
    /// Held until the mgr has answered, so that no task asks for another layout before.
    turn: Option<AsyncMutexGuard<'a, ()>>,
}

impl Goodbye<'_> {
    /// Records that the mgr has answered, or will not.
    pub(crate) fn said(&mut self, inode: &Inode) {
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
