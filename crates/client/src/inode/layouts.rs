//! The layout of an open file: obtained at first use, replaced when it has aged, reported to the mgr and returned.

use super::opens::TRIES;
use super::{Inode, State, same};
use crate::compound::{Caller, Compound, Failed, is_state_lost};
use crate::drivers::Layout;
use crate::{Error, Result};
use layout::kinds::KindId;
use layout::kinds::native::Update;
use nfs::client::recovery;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{MutexGuard, RwLockReadGuard};
use tokio::time::Instant;
use types::Status;
use types::limits::LAYOUT_BODY_MAX;
use wire::nfs4::*;
use xdr::Xdr;

/// The longest pause before the client asks for a layout again.
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// The pause between attempts to replace a layout that ends soon.
const RENEW_PAUSE: Duration = Duration::from_secs(1);

/// The layout that the client holds, if any.
#[derive(Default)]
pub(crate) struct LayoutState {
    held: Option<Held>,
    /// The kind to ask for: its position in the client's order of preference. The mgr has refused the kinds before it.
    kind: usize,
    /// The mgr has refused every kind. The client does not ask again while the file stays open.
    refused: bool,
    /// Number of OPENs sent when the last layout was returned. The answer to one of them may grant the returned layout.
    returned_by: u64,
}

struct Held {
    layout: Arc<dyn Layout>,
    kind: KindId,
    stateid: stateid4,
    write: bool,
    /// Whether the file was open for reading when the layout was granted: a layout allows no more than the opens do.
    read: bool,
    /// The iods accept nothing under this layout any more, and the mgr grants no other layout now. The client still
    /// holds the layout: it reports earlier writes under it and returns it on a recall.
    spent: bool,
    /// Whether this client made the mgr invalidate the layout.
    outdated: bool,
    /// Whether a task is asking the mgr for the next layout, because this one ends soon.
    renewing: bool,
}

impl LayoutState {
    /// Records that the mgr refused a layout of the kind at this position of `kinds`.
    fn refuse(&mut self, position: usize, kinds: &[KindId]) {
        if position + 1 < kinds.len() {
            self.kind = self.kind.max(position + 1);
        } else {
            self.refused = true;
        }
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
    /// Whether a LAYOUTGET for the preferred kind would be useful.
    pub(crate) async fn wants_layout(&self, read: bool, write: bool) -> bool {
        let state = self.layout.lock().await;
        let lacking = |held: &Held| held.spent || write && !held.write || read && !held.read;
        !state.refused && state.kind == 0 && state.held.as_ref().is_none_or(lacking)
    }

    /// Whether a layout is held.
    pub(super) async fn has_layout(&self) -> bool {
        self.layout.lock().await.held.is_some()
    }

    /// Takes over the result of a LAYOUTGET for the preferred kind behind the OPEN with this number. A refusal is no error: the bytes then
    /// take the mgr path.
    pub(crate) async fn learn_layout(&self, got: std::result::Result<LAYOUTGET4resok, Failed>, number: u64) {
        let mut state = self.layout.lock().await;
        // A close may have returned the layout since.
        if number >= state.returned_by {
            self.adopt(&mut state, 0, got).await;
        }
    }

    /// Takes over the result of a LAYOUTGET for the kind at a position of the client's order of preference, like
    /// [`Inode::learn_layout`], and returns the granted layout. If none was granted, the earlier layout is kept.
    async fn adopt(
        &self,
        state: &mut LayoutState,
        position: usize,
        got: std::result::Result<LAYOUTGET4resok, Failed>,
    ) -> Option<Arc<dyn Layout>> {
        let refused = match got {
            Ok(got) => match &got.logr_layout[..] {
                [one] => match self.mount.drivers.attach(one.lo_content.loc_type, &one.lo_content.loc_body).await {
                    Ok((kind, layout)) => {
                        let write = one.lo_iomode == LAYOUTIOMODE4_RW;
                        let read = self.is_open_for_reading();
                        if write {
                            // No iod may have bytes of a file whose creation the mgr may lose.
                            self.made_durably();
                        }
                        if !state.held.as_ref().is_some_and(|held| held.goes_on_as(&layout)) {
                            self.state().dirty.granted_again();
                        }
                        let held = Held {
                            layout: layout.clone(),
                            kind,
                            stateid: got.logr_stateid,
                            write,
                            read,
                            spent: false,
                            outdated: false,
                            renewing: false,
                        };
                        state.held = Some(held);
                        return Some(layout);
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
        state.refuse(position, &self.mount.drivers.kinds());
        None
    }

    /// Returns the layout to use now, or `None` if bytes take the mgr path. `stale` is a layout that the iods refused.
    pub(crate) async fn layout(&self, write: bool, stale: Option<&Arc<dyn Layout>>) -> Result<Option<Arc<dyn Layout>>> {
        if !self.mount.options.direct {
            return Ok(None);
        }
        // Without a lease the mgr may have given the layout, and locks, to other clients.
        self.mount.session.ensure_lease().await?;
        let mut state = self.layout.lock().await;
        if let Some(held) = state.held.as_mut().filter(|held| stale.is_some_and(|stale| same(stale, &held.layout))) {
            held.spent = true;
        }
        if let Some(held) = state.held.as_ref().filter(|held| !held.spent)
            && (if write { held.write } else { held.read || !self.is_open_for_reading() })
        {
            let layout = held.layout.clone();
            if layout.is_old() {
                self.renew_soon(&mut state);
            }
            return Ok(Some(layout));
        }
        if state.refused {
            return Ok(None);
        }
        // Boxed: most requests have the layout.
        Box::pin(self.ask_for_layout(&mut state, write)).await
    }

    /// Starts a task that asks the mgr for another layout before the current one ends. Reads and writes continue under
    /// the current layout.
    fn renew_soon(&self, state: &mut LayoutState) {
        let Some(held) = state.held.as_mut().filter(|held| !held.renewing) else { return };
        // An inode without opens needs no layout.
        let Some(inode) = self.mount.inodes.get(self.node.id) else { return };
        held.renewing = true;
        let (old, write) = (held.layout.clone(), held.write);
        net::task::spawn_on(&self.mount.runtime, async move {
            if let Err(error) = inode.renew(&old, write).await {
                tracing::debug!(file = %inode.node.id, "renewing the layout: {error}");
            }
            // If the renewal failed, the next user starts it again, but not at once.
            let inode = {
                let weak = Arc::downgrade(&inode);
                drop(inode);
                tokio::time::sleep(RENEW_PAUSE).await;
                weak.upgrade()
            };
            if let Some(inode) = inode
                && let Some(held) = inode.layout.lock().await.held.as_mut().filter(|held| same(&old, &held.layout))
            {
                held.renewing = false;
            }
        });
    }

    async fn renew(&self, old: &Arc<dyn Layout>, write: bool) -> Result<()> {
        // While the mgr is unreachable no task may have to wait for it: the layout is locked only once the mgr answers.
        self.mount.session.answers().await?;
        let mut state = self.layout.lock().await;
        if state.held.as_ref().is_some_and(|held| same(old, &held.layout) && !held.spent) {
            self.ask_for_layout(&mut state, write).await?;
        }
        Ok(())
    }

    /// Asks the mgr for a layout, of one kind after the other in the order of preference.
    async fn ask_for_layout(&self, state: &mut LayoutState, write: bool) -> Result<Option<Arc<dyn Layout>>> {
        for (position, kind) in self.mount.drivers.kinds().into_iter().enumerate().skip(state.kind) {
            let got = self.ask_for_kind(kind, write).await?;
            let layout = self.adopt(state, position, got).await;
            // Unless the kind is refused, a layout of it may be available a little later.
            if layout.is_some() || state.kind == position {
                return Ok(layout);
            }
        }
        Ok(None)
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
            let mut state = self.layout.lock().await;
            let Some((end, update)) = due(&self.state()) else { return Ok(()) };
            let Some(held) = state.held.as_mut().filter(|held| held.write) else {
                drop(state);
                if self.layout(true, None).await?.is_some() {
                    tries -= 1;
                    continue;
                }
                let pause = recovery::pause(pauses).min(PAUSE_LONGEST);
                if self.layout.lock().await.refused || Instant::now() + pause > deadline {
                    break;
                }
                pauses += 1;
                tokio::time::sleep(pause).await;
                continue;
            };
            let mut compound = Compound::new(what).by(&self.writer()).cached();
            compound.putfh(&self.node.handle).op(OP_LAYOUTCOMMIT, &held.layoutcommit(end, update));
            let begun = Instant::now();
            let mut results = self.mount.session.call(compound).await?;
            results.done(&[OP_PUTFH])?;
            match results.raw::<LAYOUTCOMMIT4resok>(OP_LAYOUTCOMMIT) {
                Ok(_) => {
                    self.mount.learn_report(begun);
                    if update.fence {
                        (held.spent, held.outdated) = (true, true);
                        self.state().stray = false;
                    }
                    if let Some(end) = end {
                        self.reported(end);
                    }
                    return Ok(());
                }
                // The mgr restarted or revoked the layout: the bytes are durable, only the report is missing.
                Err(Failed::Nfs(status)) if status == NFS4ERR_BADLAYOUT || is_state_lost(status) => {
                    state.held = None;
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

    /// Whether a report is due and there is no layout to send it under.
    pub(crate) async fn cannot_report(&self) -> bool {
        let state = self.layout.lock().await;
        self.state().dirty.report_due().is_some() && !state.held.as_ref().is_some_and(|held| held.write)
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
        let mut state = self.layout.lock().await;
        let (due, last) = {
            let known = self.state();
            (known.dirty.report_due().filter(|_| report.is_some()), last && known.opens.all().is_empty())
        };
        let held = state.held.as_ref();
        let commit = due.and_then(|due| held.filter(|held| held.write).map(|held| (due, held)));
        if let Some(((end, update), held)) = commit {
            let durable = report == Some(true) && !update.measure;
            let whole = durable && held.layout.reaches(end);
            compound.op(OP_LAYOUTCOMMIT, &held.layoutcommit(Some(end), Update { durable, whole, ..update }));
        }
        let committed = commit.map(|((end, _), _)| end);
        let returned = held.filter(|_| last).map(Held::layoutreturn);
        if returned.is_some() {
            state.held = None;
        }
        let layout = (returned.is_some() && wait).then_some(state);
        Goodbye { committed, returned, layout }
    }

    /// Records the return of a layout: the answer to an OPEN that was sent before may still grant it.
    fn layout_is_back(&self, state: &mut LayoutState) {
        state.returned_by = self.mount.opens_asked().0;
    }

    /// Forgets the known object lengths, because this client is about to truncate the file.
    pub(crate) async fn forget_lengths(&self) {
        if let Some(held) = &self.layout.lock().await.held {
            held.layout.truncating();
        }
    }

    /// Stops writes under the current layout after a failed truncate, which may still complete and would truncate those
    /// writes. The mgr grants no other layout until the outcome is known.
    pub(super) async fn distrust_layout(&self) {
        if let Some(held) = &mut self.layout.lock().await.held {
            held.spent = true;
        }
    }

    /// Removes an open if its close consists of nothing but a CLOSE: no report is due, and no lock and no layout goes
    /// with it. Returns the stateid of the open, and the delegation to return with it if the open was the last one.
    pub(crate) async fn remove_mere_open(&self, key: u64) -> Option<(stateid4, Option<stateid4>)> {
        let layout = self.layout.lock().await;
        // In one step: if two opens close at the same time, exactly one is the last.
        let mut state = self.state();
        let has_locks = state.opens.get(key)?.has_locks();
        let takes_more = state.opens.all().len() == 1 && layout.held.is_some();
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

    /// Forgets a returned layout.
    pub(crate) async fn forget_layout(&self) {
        self.layout.lock().await.held = None;
    }

    /// Returns the report that is due, in the form for an mgr that restarted since it granted the layout (RFC 8881
    /// §12.7.4).
    pub(crate) fn report_to_reclaim(&self) -> Option<(u64, LAYOUTCOMMIT4args)> {
        // A task that holds the lock is about to report, or to get a layout to report under.
        let state = self.layout.try_lock().ok()?;
        let (end, update) = self.state().dirty.report_due()?;
        let held = state.held.as_ref().filter(|held| held.write)?;
        Some((end, LAYOUTCOMMIT4args { loca_reclaim: true, ..held.layoutcommit(Some(end), update) }))
    }

    /// Drops a layout that the mgr has forgotten. A task that uses the layout continues until it notices.
    pub(crate) async fn lose_layout(&self) {
        // A task that holds the lock is waiting for the mgr, and learns of the loss from the mgr's answer.
        if let Ok(mut state) = self.layout.try_lock() {
            state.held = None;
        }
    }

    /// Answers a recall (RFC 8881 §20.3): makes everything durable, reports it and returns the layout. The next I/O
    /// asks for a new one.
    pub(crate) async fn give_back(self: &Arc<Self>) -> Result<()> {
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
        let _leaving = self.leaving.lock().await;
        self.settle_all().await;
        // The client that wants the layout waits for this return: no other layout is available in the meantime.
        let reported = self.report_within(Duration::ZERO).await;
        let mut state = self.layout.lock().await;
        // The mgr recalls layouts for a client that truncates or extends the file.
        self.state().size.doubt();
        // Without a layout the report is left to the next sync or close.
        let Some(held) = state.held.take() else { return Ok(()) };
        let mut compound = Compound::new("returning a layout").cached();
        compound.putfh(&self.node.handle).op(OP_LAYOUTRETURN, &held.layoutreturn());
        let returned = self.mount.session.call(compound).await;
        self.layout_is_back(&mut state);
        returned?.done(&[OP_PUTFH])?;
        match reported {
            // The layout was granted after the report had been postponed, as above.
            Err(error) if error.is(Status::NoLayout) => Ok(()),
            reported => reported,
        }
    }
}

/// What [`Inode::append_goodbye`] put into the compound, and the LAYOUTRETURN to append next.
pub(crate) struct Goodbye<'a> {
    /// The end of the LAYOUTCOMMIT in the compound.
    pub(crate) committed: Option<u64>,
    /// To be appended by the caller at the right place.
    pub(crate) returned: Option<LAYOUTRETURN4args>,
    layout: Option<MutexGuard<'a, LayoutState>>,
}

impl Goodbye<'_> {
    /// Records that the mgr has answered, or will not.
    pub(crate) async fn said(&mut self, inode: &Inode) {
        if self.returned.is_some() {
            let state = self.layout.take();
            let mut state = match state {
                Some(state) => state,
                None => inode.layout.lock().await,
            };
            inode.layout_is_back(&mut state);
        }
    }
}

impl Held {
    /// Whether `fresh`, granted while this layout is held, shows that the mgr has known this layout without a break.
    fn goes_on_as(&self, fresh: &Arc<dyn Layout>) -> bool {
        fresh.generation().0 == self.layout.generation().0 + u32::from(self.outdated)
    }

    fn layoutcommit(&self, end: Option<u64>, update: Update) -> LAYOUTCOMMIT4args {
        let body = if update == Update::default() { bytes::Bytes::new() } else { update.to_bytes() };
        LAYOUTCOMMIT4args {
            loca_offset: 0,
            loca_length: NFS4_UINT64_MAX,
            loca_reclaim: false,
            loca_stateid: self.stateid,
            loca_last_write_offset: end.and_then(|end| end.checked_sub(1)).map_or(newoffset4::FALSE, newoffset4::TRUE),
            loca_time_modify: newtime4::FALSE,
            loca_layoutupdate: layoutupdate4 { lou_type: self.kind.number(), lou_body: body },
        }
    }

    fn layoutreturn(&self) -> LAYOUTRETURN4args {
        LAYOUTRETURN4args {
            lora_reclaim: false,
            lora_layout_type: self.kind.number(),
            lora_iomode: LAYOUTIOMODE4_ANY,
            lora_layoutreturn: layoutreturn4::LAYOUTRETURN4_FILE(layoutreturn_file4 {
                lrf_offset: 0,
                lrf_length: NFS4_UINT64_MAX,
                lrf_stateid: self.stateid,
                lrf_body: bytes::Bytes::new(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_kind_is_followed_by_the_next() {
        let kinds = [KindId::new(1, "first"), KindId::new(2, "second")];
        let mut state = LayoutState::default();
        state.refuse(0, &kinds);
        assert!(state.kind == 1 && !state.refused);
        // A second refusal of the first kind, which an OPEN asked for at the same time.
        state.refuse(0, &kinds);
        assert!(state.kind == 1 && !state.refused);
        state.refuse(1, &kinds);
        assert!(state.refused);
    }
}
