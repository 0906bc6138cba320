//! The delegation of a file's data (RFC 8881 §10.4, [`WANT_DATA`]), under which the client buffers writes and caches
//! bytes and the size.
//!
//! With `sharing=coherent`, each open requests a delegation. Under a read delegation no other client writes the file.
//! Under a write delegation no other client has it open. The mgr recalls the delegation before it answers a conflicting
//! OPEN, truncate or GETATTR of another client. The client then flushes, and the file becomes *shared*. A write to a
//! shared file returns only after a server has replied. For each read of a shared file, the client asks the servers for
//! the bytes and the size, until the mgr grants a delegation again.

use super::{Inode, State};
use crate::compound::{Compound, Results};
use crate::lock_order::OrderedGuard;
use crate::mount::{CURRENT, OpenInFlight, Queued};
use crate::{Error, Result};
use futures_util::future::BoxFuture;
use nfs::client::recovery;
use nfs::state::delegations::WANT_DATA;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;
use types::FileId;
use wire::native::Nothing;
use wire::nfs4::*;

/// The longest time for which the client delays its reply to the mgr's notification of a new size. In this time, a
/// cache above the client ([`UpperCache`]), such as the kernel's page cache, can update the size that it has cached.
const RESIZED_WITHIN: Duration = Duration::from_secs(5);

/// A cache above the client, such as the kernel's page cache behind FUSE, that holds bytes and attributes of files
/// while the client has delegations.
pub trait UpperCache: Send + Sync {
    /// Flushes and invalidates a file in this cache, because the mgr recalls the delegation. This cache passes all
    /// dirty bytes of the file to the client, invalidates all cached bytes and attributes of the file, and then
    /// completes the future. The client makes the bytes durable.
    fn flush_and_invalidate(&self, file: FileId) -> BoxFuture<'static, ()>;

    /// Discards a file from this cache, because the mgr revoked the delegation and other clients may have written the
    /// file. From this call on, this cache passes no bytes to the client that programs wrote before the call, and
    /// reports the loss of these bytes to the programs. This cache completes the future when it holds nothing of the
    /// file.
    fn discard(&self, file: FileId) -> BoxFuture<'static, ()>;

    /// Notifies this cache that the client got a delegation of a file that was shared. Attributes that the mgr sent
    /// before it granted the delegation may be outdated.
    fn delegation_gained(&self, file: FileId) {
        let _ = file;
    }

    /// Notifies this cache that another client has set the size of an open file. This cache completes the future when
    /// it uses the new size. Until then, but at most a few seconds, the call on the other client that set the size does
    /// not return.
    fn resized(&self, file: FileId) -> BoxFuture<'static, ()> {
        let _ = file;
        Box::pin(std::future::ready(()))
    }
}

/// The rights of a delegation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DelegationType {
    /// The client may cache bytes that it has read, because no other client writes the file.
    Read,
    /// The client may cache bytes and buffer writes, because no other client has the file open.
    Write,
}

/// The state of the delegation of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Delegation {
    /// The client holds no delegation.
    #[default]
    None,
    /// The client holds the delegation and may use it.
    Held(stateid4, DelegationType),
    /// The mgr has recalled the delegation, and the client is flushing its buffered bytes.
    Recalled(stateid4, DelegationType),
    /// The client has flushed all buffered bytes, and is returning the delegation.
    Returning(stateid4, DelegationType),
}

impl Delegation {
    fn held(self) -> Option<(stateid4, DelegationType)> {
        match self {
            Delegation::None => None,
            Delegation::Held(stateid, power)
            | Delegation::Recalled(stateid, power)
            | Delegation::Returning(stateid, power) => Some((stateid, power)),
        }
    }

    /// Returns the stateid of the delegation if the client has to return the delegation, or is returning it.
    fn to_return(self) -> Option<stateid4> {
        match self {
            Delegation::Recalled(held, _) | Delegation::Returning(held, _) => Some(held),
            Delegation::Held(..) | Delegation::None => None,
        }
    }

    /// Returns whether the client holds, or is returning, the delegation with this stateid.
    fn is(self, stateid: stateid4) -> bool {
        self.held().is_some_and(|(held, _)| held.other == stateid.other)
    }
}

/// What the client learned from the reply to an OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenOutcome {
    /// Whether the client should request a delegation again, because the OPEN granted a delegation that a concurrent
    /// close is returning or has returned.
    pub(crate) again: bool,
    /// The logical time ([`Inode::stamp`]) as of which the attributes in the reply to the OPEN are valid.
    pub(crate) stamp: u64,
}

/// Returns the delegation in the reply to an OPEN: its stateid, its type (read or write), and whether the mgr recalls
/// it immediately.
fn given(answer: &open_delegation4) -> Option<(stateid4, DelegationType, bool)> {
    match answer {
        open_delegation4::OPEN_DELEGATE_READ(given) => Some((given.stateid, DelegationType::Read, given.recall)),
        open_delegation4::OPEN_DELEGATE_WRITE(given) => Some((given.stateid, DelegationType::Write, given.recall)),
        _ => None,
    }
}

impl Inode {
    fn delegated(&self) -> OrderedGuard<'_, Delegation> {
        self.delegation.lock()
    }

    /// Returns whether the client holds a write delegation that the mgr has not recalled: no other client has the file
    /// open.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(*self.delegated(), Delegation::Held(_, DelegationType::Write))
    }

    /// Returns whether the client holds a delegation that the mgr has not recalled: no other client writes the file.
    pub(crate) fn is_delegated(&self) -> bool {
        matches!(*self.delegated(), Delegation::Held(..))
    }

    /// Returns the number of the delegation, see [`crate::File::delegation`].
    pub(crate) fn delegation_number(&self) -> Option<u64> {
        let state = self.state();
        self.is_delegated().then_some(state.sharing.grants())
    }

    /// Returns whether the file is shared: other clients may write the file, and reads on this client must return what
    /// they wrote.
    pub(crate) fn is_shared(&self) -> bool {
        !self.is_delegated() && self.state().sharing.is_coherent()
    }

    /// Returns whether a write must reach a server before it returns, because another client may have the file open and
    /// must see the write.
    pub(crate) fn writes_through(&self) -> bool {
        !self.is_alone() && self.state().sharing.is_coherent()
    }

    /// Requests a delegation of a shared file in the background, because other clients may have closed the file by now.
    /// Does nothing if the client requested a delegation recently.
    pub(crate) fn ask_again(self: &Arc<Self>) {
        {
            let mut state = self.state();
            let now = Instant::now();
            if !state.sharing.may_ask(now) || *self.delegated() != Delegation::None {
                return;
            }
            state.sharing.asked(now);
        }
        let inode = self.clone();
        net::task::spawn_on(&self.mount.runtime, async move {
            if let Err(error) = inode.ask_delegation().await {
                tracing::debug!(file = %inode.node.id, "asking for a delegation: {error}");
            }
        });
    }

    /// Returns the stateid of the delegation, even while the client is returning it.
    pub(crate) fn delegation(&self) -> Option<stateid4> {
        self.delegated().held().map(|(stateid, _)| stateid)
    }

    /// Returns the stateid of the delegation, and the claim (CLAIM_PREVIOUS) of the OPEN that reclaims the delegation
    /// from a restarted mgr.
    pub(crate) fn delegation_to_reclaim(&self) -> Option<(stateid4, open_claim4)> {
        let (stateid, power) = self.delegated().held()?;
        let kind = if power == DelegationType::Read { OPEN_DELEGATE_READ } else { OPEN_DELEGATE_WRITE };
        Some((stateid, open_claim4::CLAIM_PREVIOUS(kind)))
    }

    /// Returns the stateid of the write delegation, for LAYOUTGET and WRITE. If the mgr has revoked the delegation, it
    /// refuses requests with this stateid, and so refuses bytes that the client buffered under the delegation.
    pub(crate) fn delegation_of_io(&self) -> Option<stateid4> {
        match *self.delegated() {
            Delegation::Held(held, DelegationType::Write) | Delegation::Recalled(held, DelegationType::Write) => {
                Some(held)
            }
            _ => None,
        }
    }

    /// Returns the delegation that the last close must return to the mgr. From now on, the client does not use the
    /// delegation. Returns `None` if the file was opened again, because the new open may rely on the delegation.
    pub(crate) fn leave(&self) -> Option<stateid4> {
        // A concurrent open adds itself to the list of opens before it looks at the delegation. So either this task
        // finds the open in the list, or the open finds that the delegation is being returned.
        let state = self.state();
        let mut delegated = self.delegated();
        if !state.opens.all().is_empty() {
            return None;
        }
        if let Delegation::Held(held, power) | Delegation::Recalled(held, power) = *delegated {
            *delegated = Delegation::Returning(held, power);
        }
        delegated.to_return()
    }

    /// Removes the delegation of the file and returns it, so that the last close can pass it to `DeferredCloses`, which
    /// returns it to the mgr.
    ///
    /// # Errors
    /// Another task is already returning the delegation.
    pub(super) fn hand_over_delegation(&self, state: &State) -> std::result::Result<Option<stateid4>, ()> {
        let mut delegated = self.delegated();
        if !state.opens.all().is_empty() {
            return Ok(None);
        }
        match std::mem::take(&mut *delegated) {
            Delegation::None => Ok(None),
            Delegation::Held(held, _) => {
                // Record already now, before the delegation is in the queue of `DeferredCloses`, that the client is
                // returning the delegation. Otherwise the client would use this delegation if the reply to a
                // concurrent OPEN grants it.
                self.mount.deferred_closes().begin_return(held);
                Ok(Some(held))
            }
            unqueued => {
                *delegated = unqueued;
                Err(())
            }
        }
    }

    /// Records the delegation that an OPEN granted. If the mgr has restarted since the client sent the OPEN, it
    /// probably does not know the delegation, so the client treats the delegation as recalled.
    pub(crate) fn record_delegation(
        self: &Arc<Self>,
        answer: &open_delegation4,
        asking: &OpenInFlight<'_>,
    ) -> OpenOutcome {
        self.state().sharing.asked(Instant::now());
        let mut outcome = OpenOutcome { again: false, stamp: asking.stamp };
        let Some((stateid, power, recall)) = given(answer) else { return outcome };
        {
            let mut state = self.state();
            let mut delegated = self.delegated();
            if self.mount.deferred_closes().keep_queued(stateid, &delegated) == Queued::Sent {
                return OpenOutcome { again: true, ..outcome };
            }
            // Replies may arrive in another order than the mgr sent them. The mgr grants no read delegation to a client
            // that holds a write delegation. So if the client holds a write delegation, a reply with a read delegation
            // is older than the write delegation: ignore this reply.
            let is_older =
                power == DelegationType::Read && matches!(*delegated, Delegation::Held(_, DelegationType::Write));
            if is_older {
                return outcome;
            }
            if !delegated.is(stateid) {
                // While the client held no delegation, other clients may have changed the file. So the cached size and
                // attributes may be outdated, and so may the size and attributes in replies that are in flight. Only
                // the reply to this OPEN is current.
                state.size.doubt();
                state.sharing.granted();
                let changed = state.size.is_newer_than(asking.stamp);
                state.size.touch(self.mount.next_stamp());
                if !changed {
                    outcome.stamp = state.size.stamp();
                }
                *delegated = Delegation::Held(stateid, power);
            }
            if state.opens.all().is_empty() && *delegated == Delegation::Held(stateid, power) {
                // The file was closed before the reply arrived. Return the delegation now: no close will return it,
                // and the mgr recalls it only on a conflict.
                *delegated = Delegation::Returning(stateid, power);
                self.mount.deferred_closes().begin_return(stateid);
                let inode = self.clone();
                net::task::spawn_on(&self.mount.runtime, async move {
                    Self::return_until_done(Arc::downgrade(&inode)).await;
                });
                return outcome;
            }
        }
        // Compare the mgr's epoch with that of the OPEN only after the client has recorded the delegation: if the mgr
        // restarts after this comparison, the client reclaims the recorded delegation.
        if recall || self.mount.session.epoch() != asking.epoch {
            self.recall_delegation(stateid);
        }
        outcome
    }

    /// Requests a delegation of a file that is being opened, after the closes in progress have returned their
    /// delegations.
    pub(crate) async fn ask_when_returned(self: &Arc<Self>) {
        self.mount.close_deferred().await;
        if let Err(error) = self.ask_delegation().await {
            tracing::debug!(file = %self.node.id, "asking for a delegation: {error}");
        }
    }

    /// Records the delegation that a restarted mgr granted when the client reclaimed it.
    pub(crate) fn reclaimed_delegation(self: &Arc<Self>, answer: &open_delegation4) {
        let Some((stateid, power, recall)) = given(answer) else { return };
        {
            let mut delegated = self.delegated();
            *delegated = match *delegated {
                Delegation::Held(..) => Delegation::Held(stateid, power),
                // The task that is returning the delegation continues, with the reclaimed stateid.
                Delegation::Recalled(..) | Delegation::Returning(..) => Delegation::Recalled(stateid, power),
                Delegation::None => return,
            };
        }
        if recall {
            self.recall_delegation(stateid);
        }
    }

    /// Requests a delegation again; returns whether the client now holds a write delegation. The request is an OPEN
    /// under an open owner that no existing open uses, with a CLOSE in the same COMPOUND. So existing opens with I/O
    /// in flight keep their stateids.
    pub(crate) async fn ask_delegation(self: &Arc<Self>) -> Result<bool> {
        if *self.delegated() != Delegation::None {
            return Ok(self.is_alone());
        }
        let opens = self.opens();
        let best = opens.iter().find(|open| open.is_for_both()).or_else(|| opens.iter().find(|open| open.write));
        let Some(open) = best.or(opens.first()).cloned() else { return Ok(false) };
        let asking = self.mount.ask();
        let mut compound = Compound::new("asking for a delegation").by(&open.caller).cached();
        let mut again = open;
        again.key = self.mount.next_owner();
        let args = again.args(open_claim4::CLAIM_FH, WANT_DATA);
        compound.putfh(&self.node.handle).op(OP_OPEN, &args);
        compound.op(OP_CLOSE, &CLOSE4args { seqid: 0, open_stateid: CURRENT });
        let mut results = self.mount.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let opened: OPEN4resok = results.take(OP_OPEN)?;
        self.record_delegation(&opened.delegation, &asking);
        drop(asking);
        if let Some(upper_cache) = self.mount.upper_cache.get().filter(|_| self.is_delegated()) {
            upper_cache.delegation_gained(self.node.id);
        }
        results.take::<stateid4>(OP_CLOSE)?;
        Ok(self.is_alone())
    }

    /// Handles a recall of a delegation by the mgr; returns whether the client holds this delegation. If it does, a
    /// background task returns the delegation to the mgr.
    pub(crate) fn recall_delegation(self: &Arc<Self>, stateid: stateid4) -> bool {
        {
            let mut delegated = self.delegated();
            match *delegated {
                Delegation::Held(held, power) if held.other == stateid.other => {
                    *delegated = Delegation::Recalled(held, power);
                }
                // Another task is already returning the delegation, or the client does not hold this delegation.
                other => return other.is(stateid),
            }
        }
        net::task::spawn_on(&self.mount.runtime, Self::return_until_done(Arc::downgrade(self)));
        true
    }

    /// Returns the delegation to the mgr. Retries until this succeeds, because the mgr sends only one recall.
    async fn return_until_done(inode: Weak<Self>) {
        for attempt in 0.. {
            {
                let Some(inode) = inode.upgrade() else { return };
                let Some(stateid) = inode.delegated().to_return() else { return };
                if let Err(error) = inode.give_back_delegation(stateid).await {
                    // Record the error of the flush or the size report, so that the next write, fsync or close reports
                    // it.
                    inode.fail(error);
                }
                // Before the pause until the next attempt, check whether this task has returned the delegation. During
                // the pause the client may get another delegation, which this task must not return.
                if inode.delegated().to_return().is_none() {
                    return;
                }
            }
            tokio::time::sleep(recovery::pause(attempt)).await;
        }
    }

    /// Returns the delegation to the mgr, after the client has flushed and reported all writes.
    async fn give_back_delegation(self: &Arc<Self>, stateid: stateid4) -> Result<()> {
        tokio::select! {
            biased;
            () = async {
                self.mount.flush_and_invalidate(self.node.id).await;
                self.make_durable().await;
            } => {}
            () = self.tell_of_progress() => {}
        }
        let reported = self.report().await;
        {
            let mut delegated = self.delegated();
            // If a close has already returned the delegation, send no DELEGRETURN.
            let Some((_, power)) = delegated.held().filter(|_| delegated.is(stateid)) else { return reported };
            *delegated = Delegation::Returning(stateid, power);
        }
        let mut compound = Compound::new("returning a delegation").cached();
        compound.putfh(&self.node.handle);
        append_return(&mut compound, stateid);
        let mut results = self.mount.session.call(compound).await?;
        // If the mgr has removed the file, the delegation no longer exists either.
        if results.done(&[OP_PUTFH]).is_ok() {
            self.returned(stateid, &mut results).await?;
        }
        self.share(stateid);
        reported
    }

    /// Tells the mgr that the flush makes progress. The mgr revokes a recalled delegation after a lease time without
    /// writes, and it does not see writes on the direct path. The future never completes.
    async fn tell_of_progress(&self) {
        let mut seen = *self.settled.borrow();
        loop {
            tokio::time::sleep(self.mount.session.lease() / 4).await;
            let ended = *self.settled.borrow();
            if ended != std::mem::replace(&mut seen, ended)
                && let Ok(opened) = self.opened(true)
            {
                let _ = opened.commit().await;
            }
        }
    }

    /// Processes the result of a DELEGRETURN; returns whether the mgr executed the operations that follow DELEGRETURN
    /// in the COMPOUND.
    pub(crate) async fn returned(&self, stateid: stateid4, results: &mut Results) -> Result<bool> {
        self.share(stateid);
        match results.raw::<Nothing>(OP_DELEGRETURN) {
            Ok(_) => Ok(true),
            // The mgr no longer knows the delegation, or has revoked it, so it did not execute the operations that
            // follow DELEGRETURN in the COMPOUND.
            Err(crate::compound::Failed::Nfs(status)) => {
                tracing::debug!(file = %self.node.id, ?status, "the mgr had forgotten or revoked the delegation before DELEGRETURN");
                if status == NFS4ERR_DELEG_REVOKED {
                    // The mgr keeps a revoked stateid, and reports the revocation in every reply, until FREE_STATEID
                    // acknowledges the revocation.
                    drop(self.mount.session.free_stateid(stateid).await);
                }
                Ok(false)
            }
            Err(failed) => Err(results.error(&failed)),
        }
    }

    /// Records the end of the delegation: from now on the file counts as shared.
    pub(crate) fn share(&self, stateid: stateid4) {
        self.mount.deferred_closes().returned(stateid.other, self.mount.opens_asked());
        let mut state = self.state();
        let mut delegated = self.delegated();
        if delegated.is(stateid) {
            *delegated = Delegation::None;
            // From now on the client asks the mgr for the size, and no longer uses the bytes that it has read ahead.
            state.size.doubt();
            state.sharing.asked(Instant::now());
        }
    }

    /// Handles the loss of the delegation when the mgr has lost all state of this client, but probably granted no
    /// conflicting open to another client. The client still writes its buffered bytes, which would otherwise be lost.
    /// If the file was opened with [`crate::OpenOptions::alone`], handles the loss as a revocation instead.
    pub(crate) fn delegation_lost(&self, stateid: stateid4) {
        if self.state().sharing.is_exclusive() {
            return self.delegation_revoked(stateid);
        }
        self.share(stateid);
        // Send buffered bytes now, because the file counts as shared, and writes to a shared file must reach a server.
        let Some(inode) = self.mount.inodes.by_handle(&self.node.handle) else { return };
        net::task::spawn_on(&self.mount.runtime, async move {
            inode.mount.flush_and_invalidate(inode.node.id).await;
            inode.make_durable().await;
            if let Err(error) = inode.report().await {
                tracing::debug!(file = %inode.node.id, "{error}; the next fsync or close reports it");
            }
        });
    }

    /// Handles a revocation: the mgr has allowed other clients to use the file. The client drops its bytes that are not
    /// durable, because they could overwrite newer bytes of other clients.
    pub(crate) fn delegation_revoked(&self, stateid: stateid4) {
        // Two tasks may detect the revocation of the delegation at the same time. The lock `revoking` makes the second
        // task wait. Otherwise it would drop bytes that programs wrote after the first task had finished.
        let _one = self.revoking.lock();
        let Some((_, power)) = self.delegated().held().filter(|(held, _)| held.other == stateid.other) else { return };
        let exclusive = self.state().sharing.is_exclusive();
        if !exclusive && (power == DelegationType::Read || self.is_clean()) {
            return self.delegation_lost(stateid);
        }
        // Keep this order: first the cache above the client drops its bytes of the file, and then the client drops its
        // own. Programs may write the file again only after both have dropped their bytes.
        let emptied = self.mount.upper_cache.get().map(|upper_cache| upper_cache.discard(self.node.id));
        {
            let mut state = self.state();
            state.size.doubt();
            state.sharing.revoked();
            self.mount.window.release(state.dirty.give_up());
        }
        self.share(stateid);
        tracing::warn!(file = %self.node.id, "the mgr revoked a delegation: the client drops the bytes that are not durable");
        self.fail(revoked_error());
        if let Some(emptied) = emptied {
            net::task::spawn_on(&self.mount.runtime, emptied);
        }
    }
}

impl Inode {
    /// Handles the mgr's notification that another client has set the size of this file.
    pub(crate) async fn resized(&self) {
        self.state().size.forget_when();
        if let Some(upper_cache) = self.mount.upper_cache.get() {
            // Limit the wait, because the mgr's notification occupies a slot of the backchannel until the client
            // replies.
            let _ = tokio::time::timeout(RESIZED_WITHIN, upper_cache.resized(self.node.id)).await;
        }
    }
}

/// Returns the error for bytes that were lost to a revoked delegation.
pub(super) fn revoked_error() -> Error {
    let why = "the mgr revoked the delegation of the file for another client, and this client dropped the bytes that were not durable; compare \
               the file with what was written";
    Error::status(types::Status::Io, why)
}

/// Appends a DELEGRETURN for the current filehandle.
pub(crate) fn append_return(compound: &mut Compound, deleg_stateid: stateid4) {
    compound.op(OP_DELEGRETURN, &DELEGRETURN4args { deleg_stateid });
}

impl crate::mount::Inner {
    /// Makes the cache above the client flush and invalidate this file, see [`UpperCache::flush_and_invalidate`].
    async fn flush_and_invalidate(&self, file: FileId) {
        if let Some(upper_cache) = self.upper_cache.get() {
            upper_cache.flush_and_invalidate(file).await;
        }
    }
}

impl crate::Mount {
    /// Sets the cache above this mount; a mount has at most one.
    ///
    /// # Errors
    /// The mount already has a cache.
    pub fn set_upper_cache(&self, upper_cache: Arc<dyn UpperCache>) -> Result<()> {
        self.inner.upper_cache.set(upper_cache).map_err(|_| Error::usage("the mount already has a cache above it"))
    }
}
