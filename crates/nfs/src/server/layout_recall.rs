//! Layout recall: the server sends CB_LAYOUTRECALL to every holder of a layout, and waits for the return of all layouts
//! (RFC 8881 §12.5.5).

use super::callbacks::Callbacks;
use super::compound::Answer;
use super::delegations::PATIENCE;
use super::{Server, counters, lock};
use crate::fs::{FileSystem, Iomode};
use crate::state::layouts::{Filter, Recall, RecallAnswer};
use crate::state::{ClientId, State};
use futures_util::future::{self, Either};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use types::{FileId, Timestamp};
use wire::nfs4::*;

/// The pause before the server repeats a CB_LAYOUTRECALL that the client answered with DELAY or did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Guard that prevents new layouts of a file, until the guard is dropped.
#[must_use]
pub struct Frozen<'a, F: FileSystem, C: Callbacks>(&'a Server<F, C>, FileId);

impl<F: FileSystem, C: Callbacks> Drop for Frozen<'_, F, C> {
    fn drop(&mut self) {
        lock(&self.0.state).thaw_layouts(self.1);
    }
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Prevents new layouts of a file until the returned guard is dropped. Clients without a layout use the mgr path
    /// until then.
    pub fn freeze_layouts(&self, file: FileId) -> Frozen<'_, F, C> {
        lock(&self.state).freeze_layouts(file);
        Frozen(self, file)
    }

    /// Recalls every layout of a file except those of the client `except`, and waits until no such layout is left. If a
    /// client does not return its layout within one lease period, [`Server::tick`] revokes the layout and fences the
    /// client.
    pub async fn recall(&self, file: FileId, except: Option<ClientId>, now: Timestamp) {
        let filter = Filter::ALL;
        let ((), effects) = self.change(|state| state.revoke_lapsed_layouts(file, filter, except, now));
        if let Err(error) = self.settle(&crate::fs::Ctx { now, ..Default::default() }, effects).await {
            tracing::warn!(%error, "cannot revoke a layout");
        }
        let mut recalls = {
            let mut state = lock(&self.state);
            if !self.held(&state, file, filter, except) {
                return;
            }
            state.freeze_layouts(file);
            state.recall_layouts(file, filter, except, now)
        };
        let _frozen = Frozen(self, file);
        loop {
            let asked = future::join_all(recalls.iter().map(|recall| self.ask(*recall, now))).await;
            recalls = asked.into_iter().flatten().collect();
            let returned = pin!(self.returned(file, filter, except));
            if recalls.is_empty() {
                return returned.await;
            }
            let pause = pin!(self.callbacks.pause(ASK_AGAIN));
            if let Either::Left(_) = future::select(returned, pause).await {
                return;
            }
        }
    }

    /// Recalls all layouts of one type of a file. Waits until each holder has answered the recall, or until the server
    /// has revoked the holder's layout after one lease period. During the wait, the file system may grant new layouts.
    pub async fn recall_kind(&self, file: FileId, kind: layouttype4, now: Timestamp) {
        let mut recalls = lock(&self.state).recall_kind(file, kind, now);
        while !recalls.is_empty() {
            let asked = future::join_all(recalls.iter().map(|recall| self.ask(*recall, now))).await;
            recalls = asked.into_iter().flatten().collect();
            if !recalls.is_empty() {
                self.callbacks.pause(ASK_AGAIN).await;
            }
            let state = lock(&self.state);
            recalls.retain(|recall| state.is_recalling(recall.id));
        }
    }

    /// Waits until no client except `except` holds a layout that overlaps `filter`.
    async fn returned(&self, file: FileId, filter: Filter, except: Option<ClientId>) {
        future::poll_fn(|task| {
            // Register the waker before the check, so that the return of a layout after the check wakes this task.
            lock(&self.waiters).entry(file).or_default().push(task.waker().clone());
            if self.held(&lock(&self.state), file, filter, except) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self.wake(file);
    }

    /// Returns whether any client except `except` holds a layout that overlaps `filter`. Also returns true while the
    /// file system still processes the end of any layout of the file, which the state tables no longer contain.
    fn held(&self, state: &State, file: FileId, filter: Filter, except: Option<ClientId>) -> bool {
        state.conflicting_layouts(file, filter, except) || lock(&self.ending_layouts).contains_key(&file)
    }

    /// Waits until the file system has fenced all clients that lost a layout of the file. The data servers then refuse
    /// late writes of these clients. A client that opens or locks the file after the wait sees every such write that
    /// reached a data server.
    ///
    /// # Errors
    /// DELAY: a data server does not reply. The file system eventually continues without this data server, and
    /// sends the fence before it uses this data server again.
    pub(super) async fn fenced(&self, file: FileId) -> Answer<()> {
        match self.check_fenced(file) {
            Ok(()) => Ok(()),
            // The future of `fenced_soon` is large and rarely needed, so it is boxed.
            Err(_) => Box::pin(self.fenced_soon(file)).await,
        }
    }

    /// Returns DELAY if a fence of the file is in progress, like [`Self::fenced`] but without waiting. The check also
    /// covers clients that lost their layouts after [`Self::fenced`] returned.
    pub(super) fn check_fenced(&self, file: FileId) -> Result<(), nfsstat4> {
        if self.is_fencing(file) { Err(NFS4ERR_DELAY) } else { Ok(()) }
    }

    async fn fenced_soon(&self, file: FileId) -> Answer<()> {
        let over = pin!(future::poll_fn(|task| {
            // Register the waker before the check, so that an end of the fence after the check wakes this task.
            lock(&self.waiters).entry(file).or_default().push(task.waker().clone());
            if self.is_fencing(file) { Poll::Pending } else { Poll::Ready(()) }
        }));
        let pause = pin!(self.callbacks.pause(PATIENCE));
        let is_over = matches!(future::select(over, pause).await, Either::Left(_));
        self.wake(file);
        if is_over { Ok(()) } else { Err(NFS4ERR_DELAY.into()) }
    }

    /// Wakes all tasks that wait for layouts or delegations of a file, so that they check their conditions again.
    pub(super) fn wake(&self, file: FileId) {
        let wakers = lock(&self.waiters).remove(&file);
        wakers.into_iter().flatten().for_each(std::task::Waker::wake);
    }

    /// Sends one CB_LAYOUTRECALL. Returns the recall if the server must send the recall again, otherwise `None`.
    async fn ask(&self, recall: Recall, now: Timestamp) -> Option<Recall> {
        counters::add(&self.counters.recalls, 1);
        let arguments = CB_LAYOUTRECALL4args {
            clora_type: recall.kind,
            clora_iomode: iomode(recall.iomode),
            clora_changed: false,
            clora_recall: layoutrecall4::LAYOUTRECALL4_FILE(layoutrecall_file4 {
                lor_fh: self.handle_for(recall.client.0, recall.file),
                lor_offset: recall.range.offset,
                lor_length: recall.range.len,
                lor_stateid: recall.stateid,
            }),
        };
        let answered = self.call_back(recall.client, OP_CB_LAYOUTRECALL, &arguments).await;
        let answer = match answered.map(|answered| answered.status) {
            Some(NFS4_OK) => RecallAnswer::WillReturn,
            Some(NFS4ERR_NOMATCHING_LAYOUT) => RecallAnswer::NothingHeld,
            _ => RecallAnswer::Later,
        };
        let ((), effects) = self.change(|state| state.recall_answered(recall.id, answer));
        let ctx = crate::fs::Ctx { now, ..Default::default() };
        if let Err(error) = self.settle(&ctx, effects).await {
            tracing::warn!(%error, "cannot handle the reply to a layout recall");
        }
        (answer == RecallAnswer::Later).then_some(recall)
    }
}

/// Converts an iomode to `layoutiomode4`; `None` becomes LAYOUTIOMODE4_ANY.
fn iomode(iomode: Option<Iomode>) -> layoutiomode4 {
    match iomode {
        Some(Iomode::Read) => LAYOUTIOMODE4_READ,
        Some(Iomode::ReadWrite) => LAYOUTIOMODE4_RW,
        None => LAYOUTIOMODE4_ANY,
    }
}
