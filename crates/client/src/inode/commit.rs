//! Commits of a file's bytes: sends COMMIT to every server that may lose bytes, and sends lost bytes again.

use super::dirty::Committed;
use super::write::LAYOUT_TRIES;
use super::{Inode, Lane};
use crate::counters::add;
use crate::drivers::{Attempt, NotDone};
use crate::{Error, Result};
use std::pin::pin;
use std::sync::Arc;
use types::{ByteRange, Status, Verifier};

/// How often the client sends bytes again after a server restart before the commit fails.
const ROUNDS: u32 = 8;

impl Inode {
    /// Waits until every byte written before the call is durable. The client may still have to report the new size to
    /// the mgr. Records write errors for every open for writing.
    pub(crate) async fn make_durable(self: &Arc<Self>) {
        self.hand_over(true).await;
        self.settle_all().await;
    }

    /// Waits until servers have received every byte written before the call, and returns the unreported write error of
    /// the open `key`.
    pub(crate) async fn push(self: &Arc<Self>, key: u64) -> Result<()> {
        self.hand_over(false).await;
        self.settle(ByteRange::ALL).await;
        self.take_error(key)
    }

    /// Waits until every byte that the client sent before the call is durable.
    pub(super) async fn settle_all(self: &Arc<Self>) {
        self.settle(ByteRange::ALL).await;
        self.commit_all().await;
    }

    /// Makes bytes durable like [`Inode::make_durable`], and returns the unreported write error of the open `key`.
    pub(crate) async fn fsync_data(self: &Arc<Self>, key: u64) -> Result<()> {
        self.make_durable().await;
        self.take_error(key)
    }

    /// Waits until every byte written before the call, the size, and the creation of the file are durable.
    pub(crate) async fn fsync(self: &Arc<Self>, key: u64) -> Result<()> {
        let data = self.fsync_data(key).await;
        data.and(self.report().await).and(self.sync_making().await)
    }

    /// Records that the client created the file, and that the mgr replied before the creation was durable.
    pub(crate) fn made_unsynced(&self) {
        self.state().unsynced = true;
    }

    /// Returns whether a crash of the mgr may still lose the creation of the file.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.state().unsynced
    }

    /// Records that the mgr has made a change of the file durable, and so also all earlier changes of the file.
    pub(super) fn made_durably(&self) {
        self.state().unsynced = false;
    }

    /// Waits until the creation of the file is durable.
    ///
    /// # Errors
    /// `Stale` or `Io`: the mgr's machine lost power, perhaps before the creation was durable.
    pub(crate) async fn sync_making(&self) -> Result<()> {
        if self.mount.session.is_soon() {
            return self.mount.session.settle(&self.losses).await;
        }
        if self.is_unsynced()
            // If the last open has ended, there is no open to send the COMMIT under. The close of that open has made
            // the creation durable, or reports the error.
            && let Ok(opened) = self.opened(false)
        {
            opened.commit().await?;
            self.made_durably();
        }
        Ok(())
    }

    /// Called by a close: waits until the creation of the file is durable. With `durable=fsync`, does nothing, because
    /// then a close does not promise durability.
    ///
    /// # Errors
    /// The errors of [`Inode::sync_making`].
    pub(crate) async fn close_making(&self) -> Result<()> {
        if self.mount.session.is_soon() { Ok(()) } else { self.sync_making().await }
    }

    /// Makes the bytes and the size durable like [`Inode::fsync`], and the creation of the file like
    /// [`Inode::close_making`]. Returns a write error, but does not clear the error, so the next fsync or close returns
    /// it too.
    pub(crate) async fn flush(self: &Arc<Self>, key: u64) -> Result<()> {
        self.make_durable().await;
        let reported = self.report().await;
        let made = self.close_making().await;
        self.see_error(key).and(reported).and(made)
    }

    /// Makes all bytes durable in a background task, because the write window is full. The next write, fsync or close
    /// reports errors.
    pub(crate) fn relieve(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.sending.relieving || state.dirty.is_empty() {
                return;
            }
            state.sending.relieving = true;
        }
        let inode = self.clone();
        net::task::spawn_on(&self.mount.runtime, async move {
            inode.make_durable().await;
            // Schedule the flush timer, which sends the size report to the mgr later.
            inode.settle_in_a_while(&inode.policy());
            inode.state().sending.relieving = false;
            // Writers that found the write window full while this task ran started no second task, so check the window
            // again.
            inode.mount.relieve_if_full();
        });
    }

    /// Commits the bytes that servers have received, while programs continue to write, so that uncommitted bytes do not
    /// fill the write window. The next write, fsync or close reports errors.
    pub(super) async fn commit_behind(self: Arc<Self>) {
        self.commit_all().await;
        self.state().sending.committing = false;
    }

    /// Sends COMMIT to every server that ever received bytes. For a server without uncommitted bytes, only waits for a
    /// COMMIT in progress. Sends the COMMIT to the mgr last, because bytes that an iod does not accept move to the mgr.
    async fn commit_all(self: &Arc<Self>) {
        let direct: Vec<Lane> = self.lanes().keys().copied().filter(|lane| *lane != Lane::Mgr).collect();
        futures_util::future::join_all(direct.into_iter().map(|lane| self.commit_lane(lane))).await;
        self.commit_lane(Lane::Mgr).await;
    }

    /// Sends COMMIT to one server. If an iod is unreachable, moves its bytes to the mgr instead. After any other
    /// failure, drops the server's uncommitted bytes and records the error.
    pub(super) async fn commit_lane(self: &Arc<Self>, lane: Lane) {
        self.commit_because(lane, None).await;
    }

    /// Commits the unstable bytes on one server like [`Inode::commit_lane`]. `because` is the error that moved these
    /// bytes from the direct path to the mgr path, if any.
    async fn commit_because(self: &Arc<Self>, lane: Lane, because: Option<Error>) {
        // Hold the `committing` lock to the end. Otherwise another caller could find no uncommitted bytes and wrongly
        // report them as durable, before this task has moved them or recorded their loss.
        self.lane(lane).committing.hold(pin!(self.commit_locked(lane, because))).await;
    }

    async fn commit_locked(self: &Arc<Self>, lane: Lane, because: Option<Error>) {
        match self.commit_rounds(lane).await {
            Ok(()) => {}
            Err(NotDone::NotAttempted(error)) if lane != Lane::Mgr => {
                tracing::debug!(file = %self.node.id, "{error}; sending the bytes through the mgr");
                match self.move_to_mgr(lane).await {
                    Ok(()) => Box::pin(self.commit_because(Lane::Mgr, Some(error))).await,
                    Err(other) => self.fail(Error::by_no_path(Some(error), other)),
                }
            }
            Err(
                NotDone::NotAttempted(error)
                | NotDone::Unanswered(error)
                | NotDone::Stale(error)
                | NotDone::Failed(error),
            ) => {
                self.fail(Error::by_no_path(because, error));
                let dropped = self.state().dirty.drop_lane(lane);
                self.mount.window.release(dropped);
            }
        }
    }

    async fn commit_rounds(&self, lane: Lane) -> Attempt<()> {
        for _ in 0..ROUNDS {
            let Some(covered) = self.state().dirty.covered_by_commit(lane) else { return Ok(()) };
            let verifier = self.commit_once(lane).await?;
            let committed = self.state().dirty.committed(lane, covered, verifier);
            match committed {
                Committed::All(bytes) => {
                    self.mount.window.release(bytes);
                    return Ok(());
                }
                Committed::Lost(bytes) => self.mount.window.release(bytes),
            }
            self.send_again(lane).await?;
        }
        let what = format!(
            "committing: the server restarted {ROUNDS} times while the client sent it the same bytes; write them again"
        );
        Err(NotDone::Failed(Error::status(Status::Io, what)))
    }

    async fn commit_once(&self, lane: Lane) -> Attempt<Verifier> {
        match lane {
            Lane::Mgr => self.opened(true).map_err(NotDone::Failed)?.commit().await.map_err(NotDone::Failed),
            Lane::Direct(index) => {
                let mut stale = None;
                for _ in 0..LAYOUT_TRIES {
                    let layout = self.layout(true, stale.take()).await.map_err(NotDone::Failed)?;
                    let gone = || Error::status(Status::NoLayout, "committing");
                    let layout = layout.ok_or_else(|| NotDone::NotAttempted(gone()))?;
                    match layout.commit(index).await {
                        Err(NotDone::Stale(_)) => stale = Some(layout),
                        outcome => return outcome,
                    }
                }
                Err(NotDone::NotAttempted(Error::status(Status::CapRefused, "committing")))
            }
        }
    }

    /// Sends all bytes again that a server may have lost, in the order in which they were first sent.
    async fn send_again(&self, lane: Lane) -> Attempt<()> {
        self.lane(lane).sending.hold_write(pin!(self.send_all_again(lane))).await
    }

    async fn send_all_again(&self, lane: Lane) -> Attempt<()> {
        let count = self.state().dirty.pieces(lane);
        add(&self.mount.tally.retries, count as u64);
        tracing::info!(file = %self.node.id, ?lane, count, "the server restarted: sending uncommitted bytes again");
        for at in 0..count {
            let Some(resend) = self.state().dirty.resend(lane, at) else { break };
            let piece = &resend.piece;
            let mut grant = 0;
            let written = match lane {
                Lane::Direct(index) => {
                    let (mut stale, mut tries) = (None, LAYOUT_TRIES);
                    loop {
                        let layout = self.layout(true, stale.take()).await.map_err(NotDone::Failed)?;
                        let gone = || Error::status(Status::NoLayout, "sending uncommitted bytes again");
                        let layout = layout.ok_or_else(|| NotDone::NotAttempted(gone()))?;
                        grant = self.state().dirty.grant();
                        tries -= 1;
                        let again = layout.write(index, &piece.parts, &piece.payload, false).await;
                        match again.map_err(|e| self.note_stray(e)) {
                            // If the layout has expired, send the bytes again under a new layout, several times if
                            // necessary: while an iod delays the write, the new layout may expire too.
                            Err(NotDone::Stale(_)) if tries > 0 => stale = Some(layout),
                            outcome => break outcome?,
                        }
                    }
                }
                Lane::Mgr => {
                    let (offset, data) =
                        (piece.parts.first().map_or(0, |part| part.offset), piece.payload.data.to_bytes());
                    self.mgr_write(resend.number, offset, data, false).await.map_err(NotDone::Failed)?
                }
            };
            self.state().dirty.resent(lane, &resend, written.verifier, grant);
        }
        Ok(())
    }
}
