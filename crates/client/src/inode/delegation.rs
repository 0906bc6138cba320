//! The delegation of a file's data (RFC 8881 §10.4, [`WANT_DATA`]), under which this client buffers writes and caches
//! bytes and the size.
//!
//! With `sharing=coherent` each open asks for a delegation. A read delegation says that no other client writes the
//! file, a write delegation that no other client has it open. The mgr recalls the delegation before it answers another
//! client's open, truncate or GETATTR. The client flushes, and from then on the file is *shared*. For a shared file a
//! write returns only when a server has answered it. The client reads bytes from the servers and asks for the size each
//! time, until the mgr grants a delegation again.

use super::{Inode, State};
use crate::compound::{Compound, Results};
use crate::lock_order::OrderedGuard;
use crate::mount::{Asking, CURRENT, Queued};
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

/// How long the mgr waits at most until the cache above this client knows that another client has set a size.
const RESIZED_WITHIN: Duration = Duration::from_secs(5);

/// A cache above the client, which keeps bytes and attributes of files under the client's delegations.
pub trait Keeper: Send + Sync {
    /// Another client uses the file from now on. The cache hands all written bytes to the client, which makes them
    /// durable, and invalidates everything that it cached of the file. Then the future ends.
    fn hand_on(&self, file: FileId) -> BoxFuture<'static, ()>;

    /// The mgr revoked the delegation, and other clients may have written to the file. From this call on the cache
    /// hands no bytes of the file to the client. It reports the loss to programs that wrote them. The future ends when
    /// the cache keeps nothing of the file.
    fn give_up(&self, file: FileId) -> BoxFuture<'static, ()>;

    /// The client holds a delegation of an open file that was shared before. Attributes that the mgr sent before may be
    /// older than the file's state at that point.
    fn gained(&self, file: FileId) {
        let _ = file;
    }

    /// Another client has set the size of an open file. The future ends when the cache knows the new size. The other
    /// client waits for that for a moment.
    fn resized(&self, file: FileId) -> BoxFuture<'static, ()> {
        let _ = file;
        Box::pin(std::future::ready(()))
    }
}

/// What a delegation allows its holder to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Power {
    /// Cache read data: no other client writes the file.
    Read,
    /// Also buffer writes: no other client has the file open.
    Write,
}

/// The delegation of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Delegation {
    /// No delegation.
    #[default]
    None,
    /// Held and usable.
    Held(stateid4, Power),
    /// Held, but recalled: the client is writing its buffered bytes.
    Recalled(stateid4, Power),
    /// Nothing is buffered any more, and the client is returning the delegation.
    Returning(stateid4, Power),
}

impl Delegation {
    fn held(self) -> Option<(stateid4, Power)> {
        match self {
            Delegation::None => None,
            Delegation::Held(stateid, power)
            | Delegation::Recalled(stateid, power)
            | Delegation::Returning(stateid, power) => Some((stateid, power)),
        }
    }

    /// Returns the stateid if the delegation must be returned or is being returned.
    fn leaving(self) -> Option<stateid4> {
        match self {
            Delegation::Recalled(held, _) | Delegation::Returning(held, _) => Some(held),
            Delegation::Held(..) | Delegation::None => None,
        }
    }

    /// Returns whether this is the delegation with this stateid, and the client still holds it.
    fn is(self, stateid: stateid4) -> bool {
        self.held().is_some_and(|(held, _)| held.other == stateid.other)
    }
}

/// What the client learned from the answer to an OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Learnt {
    /// Whether another request is useful. The mgr granted a delegation that a close here is about to return, or has
    /// returned with a request that reached the mgr after this OPEN.
    pub(crate) again: bool,
    /// The stamp that applies to the attributes in the answer ([`Inode::learn_size`]).
    pub(crate) stamp: u64,
}

/// Returns the delegation that an OPEN granted: its stateid, its power, and whether the mgr recalls it at once.
fn given(answer: &open_delegation4) -> Option<(stateid4, Power, bool)> {
    match answer {
        open_delegation4::OPEN_DELEGATE_READ(given) => Some((given.stateid, Power::Read, given.recall)),
        open_delegation4::OPEN_DELEGATE_WRITE(given) => Some((given.stateid, Power::Write, given.recall)),
        _ => None,
    }
}

impl Inode {
    fn delegated(&self) -> OrderedGuard<'_, Delegation> {
        self.delegation.lock()
    }

    /// Returns whether this client holds an unrecalled write delegation: no other client has the file open or asks for
    /// it.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(*self.delegated(), Delegation::Held(_, Power::Write))
    }

    /// Returns whether this client holds an unrecalled delegation: no other client writes the file or asks to.
    pub(crate) fn is_delegated(&self) -> bool {
        matches!(*self.delegated(), Delegation::Held(..))
    }

    /// Returns the number of the delegation, see [`crate::File::delegation`].
    pub(crate) fn delegation_number(&self) -> Option<u64> {
        let state = self.state();
        self.is_delegated().then_some(state.sharing.grants())
    }

    /// Returns whether other clients may write the file, and reads here must see their writes.
    pub(crate) fn is_shared(&self) -> bool {
        !self.is_delegated() && self.state().sharing.is_coherent()
    }

    /// Returns whether a write must reach a server before it returns, because another client may have the file open and
    /// must see the write.
    pub(crate) fn writes_through(&self) -> bool {
        !self.is_alone() && self.state().sharing.is_coherent()
    }

    /// Asks for a delegation in the background, if the file is shared and the client has not asked recently. The other
    /// clients may have closed the file.
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

    /// Returns the stateid of the delegation, also while it is being returned.
    pub(crate) fn delegation(&self) -> Option<stateid4> {
        self.delegated().held().map(|(stateid, _)| stateid)
    }

    /// Returns the delegation, and the claim that reclaims it from a restarted mgr.
    pub(crate) fn delegation_to_reclaim(&self) -> Option<(stateid4, open_claim4)> {
        let (stateid, power) = self.delegated().held()?;
        let kind = if power == Power::Read { OPEN_DELEGATE_READ } else { OPEN_DELEGATE_WRITE };
        Some((stateid, open_claim4::CLAIM_PREVIOUS(kind)))
    }

    /// Returns the delegation whose stateid a LAYOUTGET or WRITE carries. Once the mgr has revoked it, bytes that were
    /// buffered under it must not reach the file.
    pub(crate) fn delegation_of_io(&self) -> Option<stateid4> {
        match *self.delegated() {
            Delegation::Held(held, Power::Write) | Delegation::Recalled(held, Power::Write) => Some(held),
            _ => None,
        }
    }

    /// Returns the delegation that the last close must return; from here on nothing is done under it. Returns `None` if
    /// the file was opened again in the meantime, because that open may depend on it.
    pub(crate) fn leave(&self) -> Option<stateid4> {
        // An open is on the list before it checks the delegation.
        let state = self.state();
        let mut delegated = self.delegated();
        if !state.opens.all().is_empty() {
            return None;
        }
        if let Delegation::Held(held, power) | Delegation::Recalled(held, power) = *delegated {
            *delegated = Delegation::Returning(held, power);
        }
        delegated.leaving()
    }

    /// Takes the delegation away for a last close that hands it to `DeferredCloses`. The error says that
    /// another task is returning it already.
    pub(super) fn hand_over_delegation(&self, state: &State) -> std::result::Result<Option<stateid4>, ()> {
        let mut delegated = self.delegated();
        if !state.opens.all().is_empty() {
            return Ok(None);
        }
        match std::mem::take(&mut *delegated) {
            Delegation::None => Ok(None),
            Delegation::Held(held, _) => {
                // Until the delegation is queued there: the answer to an OPEN may grant it at this moment.
                self.mount.leaving().goes_back(held);
                Ok(Some(held))
            }
            leaving => {
                *delegated = leaving;
                Err(())
            }
        }
    }

    /// Takes over the delegation that an OPEN granted. If the mgr has restarted since the OPEN was sent, it most likely
    /// does not know the delegation any more.
    pub(crate) fn learn_delegation(self: &Arc<Self>, answer: &open_delegation4, asking: &Asking<'_>) -> Learnt {
        self.state().sharing.asked(Instant::now());
        let mut learnt = Learnt { again: false, stamp: asking.stamp };
        let Some((stateid, power, recall)) = given(answer) else { return learnt };
        {
            let mut state = self.state();
            let mut delegated = self.delegated();
            if self.mount.leaving().take_back(stateid, &delegated) == Queued::Sent {
                return Learnt { again: true, ..learnt };
            }
            // Answers may overtake each other. The mgr grants no read delegation to a client that holds a write
            // delegation.
            let is_older = power == Power::Read && matches!(*delegated, Delegation::Held(_, Power::Write));
            if is_older {
                return learnt;
            }
            if !delegated.is(stateid) {
                // Anything learned or requested before may be stale, because there was no delegation then. What this
                // OPEN returned is current.
                state.size.doubt();
                state.sharing.granted();
                let changed = state.size.is_newer_than(asking.stamp);
                state.size.touch(self.mount.next_stamp());
                if !changed {
                    learnt.stamp = state.size.stamp();
                }
                *delegated = Delegation::Held(stateid, power);
            }
            if state.opens.all().is_empty() && *delegated == Delegation::Held(stateid, power) {
                // The file was closed before the answer arrived. No close returns this delegation, and the mgr recalls
                // it only on a conflict.
                *delegated = Delegation::Returning(stateid, power);
                self.mount.leaving().goes_back(stateid);
                let inode = self.clone();
                net::task::spawn_on(&self.mount.runtime, async move {
                    Self::go_on_leaving(Arc::downgrade(&inode)).await;
                });
                return learnt;
            }
        }
        // Check this after the update above: a reclaim that begins from here on finds the delegation.
        if recall || self.mount.session.epoch() != asking.epoch {
            self.recall_delegation(stateid);
        }
        learnt
    }

    /// Asks for a delegation of a file that is being opened, after the closes in progress have returned theirs.
    pub(crate) async fn ask_when_returned(self: &Arc<Self>) {
        self.mount.close_left().await;
        if let Err(error) = self.ask_delegation().await {
            tracing::debug!(file = %self.node.id, "asking for a delegation: {error}");
        }
    }

    /// Takes over the delegation that a restarted mgr granted to a reclaim.
    pub(crate) fn reclaimed_delegation(self: &Arc<Self>, answer: &open_delegation4) {
        let Some((stateid, power, recall)) = given(answer) else { return };
        {
            let mut delegated = self.delegated();
            *delegated = match *delegated {
                Delegation::Held(..) => Delegation::Held(stateid, power),
                // The task that returns the delegation continues with this one.
                Delegation::Recalled(..) | Delegation::Returning(..) => Delegation::Recalled(stateid, power),
                Delegation::None => return,
            };
        }
        if recall {
            self.recall_delegation(stateid);
        }
    }

    /// Asks for a delegation again; returns whether this client now holds a write delegation. The request uses an open
    /// of its own, closed in the same round trip, so that existing opens with bytes in flight keep their stateids.
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
        self.learn_delegation(&opened.delegation, &asking);
        drop(asking);
        if let Some(keeper) = self.mount.keeper.get().filter(|_| self.is_delegated()) {
            keeper.gained(self.node.id);
        }
        results.take::<stateid4>(OP_CLOSE)?;
        Ok(self.is_alone())
    }

    /// Handles a recall by the mgr; returns whether there is a delegation to return. The delegation is then returned in
    /// the background.
    pub(crate) fn recall_delegation(self: &Arc<Self>, stateid: stateid4) -> bool {
        {
            let mut delegated = self.delegated();
            match *delegated {
                Delegation::Held(held, power) if held.other == stateid.other => {
                    *delegated = Delegation::Recalled(held, power);
                }
                // Its return is in progress already.
                other => return other.is(stateid),
            }
        }
        net::task::spawn_on(&self.mount.runtime, Self::go_on_leaving(Arc::downgrade(self)));
        true
    }

    /// Returns the delegation to the mgr, and retries until that succeeds, as the mgr recalls it only once.
    async fn go_on_leaving(inode: Weak<Self>) {
        for attempt in 0.. {
            {
                let Some(inode) = inode.upgrade() else { return };
                let Some(stateid) = inode.delegated().leaving() else { return };
                if let Err(error) = inode.give_back_delegation(stateid).await {
                    // The next write, fsync or close reports the error.
                    inode.fail(error);
                }
                // Check this before the pause. After the pause the client may already return another delegation,
                // because the file is closed.
                if inode.delegated().leaving().is_none() {
                    return;
                }
            }
            tokio::time::sleep(recovery::pause(attempt)).await;
        }
    }

    /// Returns the delegation to the mgr after everything written here is durable and reported.
    async fn give_back_delegation(self: &Arc<Self>, stateid: stateid4) -> Result<()> {
        tokio::select! {
            biased;
            () = async {
                self.mount.hand_on(self.node.id).await;
                self.make_durable().await;
            } => {}
            () = self.tell_of_progress() => {}
        }
        let reported = self.report().await;
        {
            let mut delegated = self.delegated();
            // A close may have returned it first.
            let Some((_, power)) = delegated.held().filter(|_| delegated.is(stateid)) else { return reported };
            *delegated = Delegation::Returning(stateid, power);
        }
        let mut compound = Compound::new("returning a delegation").cached();
        compound.putfh(&self.node.handle);
        append_return(&mut compound, stateid);
        let mut results = self.mount.session.call(compound).await?;
        // If the file is gone, its delegation is gone too.
        if results.done(&[OP_PUTFH]).is_ok() {
            self.returned(stateid, &mut results).await?;
        }
        self.share(stateid);
        reported
    }

    /// Shows the mgr that the flush progresses. The mgr revokes a recalled delegation after a lease without writes, and
    /// it does not see writes on the direct path. This future never ends.
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

    /// Processes the answer to a DELEGRETURN; returns whether the mgr executed the operations after it.
    pub(crate) async fn returned(&self, stateid: stateid4, results: &mut Results) -> Result<bool> {
        self.share(stateid);
        match results.raw::<Nothing>(OP_DELEGRETURN) {
            Ok(_) => Ok(true),
            // The mgr has forgotten or revoked the delegation.
            Err(crate::compound::Failed::Nfs(status)) => {
                tracing::debug!(file = %self.node.id, ?status, "the mgr had forgotten or revoked the delegation before DELEGRETURN");
                if status == NFS4ERR_DELEG_REVOKED {
                    // The mgr keeps a revoked stateid until FREE_STATEID acknowledges it, and reports it again
                    // otherwise.
                    drop(self.mount.session.free_stateid(stateid).await);
                }
                Ok(false)
            }
            Err(failed) => Err(results.error(&failed)),
        }
    }

    /// Marks the file as shared: the delegation is gone.
    pub(crate) fn share(&self, stateid: stateid4) {
        self.mount.leaving().is_gone(stateid.other, self.mount.opens_asked());
        let mut state = self.state();
        let mut delegated = self.delegated();
        if delegated.is(stateid) {
            *delegated = Delegation::None;
            // From here on the client asks for the size, and bytes that were read ahead are invalid.
            state.size.doubt();
            state.sharing.asked(Instant::now());
        }
    }

    /// Handles the loss of all state at the mgr when no other client is known to have wanted the file. Bytes buffered
    /// here are nevertheless written, because they would be lost otherwise. Bytes that a cache above keeps are not
    /// written ([`crate::OpenOptions::alone`]).
    pub(crate) fn delegation_lost(&self, stateid: stateid4) {
        if self.state().sharing.is_exclusive() {
            return self.delegation_revoked(stateid);
        }
        self.share(stateid);
        // Buffered bytes are sent now, as for every write of a shared file.
        let Some(inode) = self.mount.inodes.by_handle(&self.node.handle) else { return };
        net::task::spawn_on(&self.mount.runtime, async move {
            inode.mount.hand_on(inode.node.id).await;
            inode.make_durable().await;
            if let Err(error) = inode.report().await {
                tracing::debug!(file = %inode.node.id, "{error}; the next fsync or close reports it");
            }
        });
    }

    /// Handles a revocation: the mgr has let other clients use the file. The client drops bytes that are not durable
    /// yet, because they may be older than the bytes that they have written.
    pub(crate) fn delegation_revoked(&self, stateid: stateid4) {
        // Two requests may report the revocation at the same time. Without this lock, the second one would drop bytes that
        // programs wrote after the first one had marked the file as shared.
        let _one = self.revoking.lock();
        let Some((_, power)) = self.delegated().held().filter(|(held, _)| held.other == stateid.other) else { return };
        let exclusive = self.state().sharing.is_exclusive();
        if !exclusive && (power == Power::Read || self.is_clean()) {
            return self.delegation_lost(stateid);
        }
        // The order matters: the cache above drops its bytes, then this client drops its own. Only then may programs
        // write the file as a shared one.
        let emptied = self.mount.keeper.get().map(|keeper| keeper.give_up(self.node.id));
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
    /// Handles the notification that another client has set the size of this file.
    pub(crate) async fn resized(&self) {
        self.state().size.forget_when();
        if let Some(keeper) = self.mount.keeper.get() {
            // The answer to the mgr occupies a slot of the backchannel until then.
            let _ = tokio::time::timeout(RESIZED_WITHIN, keeper.resized(self.node.id)).await;
        }
    }
}

/// Returns the error for bytes lost to a revocation.
pub(super) fn revoked_error() -> Error {
    let why = "the mgr revoked the delegation of the file for another client, and this client dropped the bytes that were not durable; compare \
               the file with what was written";
    Error::status(types::Status::Io, why)
}

/// Appends a DELEGRETURN of the current file's delegation.
pub(crate) fn append_return(compound: &mut Compound, deleg_stateid: stateid4) {
    compound.op(OP_DELEGRETURN, &DELEGRETURN4args { deleg_stateid });
}

impl crate::mount::Inner {
    /// Makes the cache above hand its bytes of this file to the client.
    async fn hand_on(&self, file: FileId) {
        if let Some(keeper) = self.keeper.get() {
            keeper.hand_on(file).await;
        }
    }
}

impl crate::Mount {
    /// Sets the cache that keeps files above this mount. A mount has at most one.
    ///
    /// # Errors
    /// The mount already has a cache.
    pub fn keep_with(&self, keeper: Arc<dyn Keeper>) -> Result<()> {
        self.inner.keeper.set(keeper).map_err(|_| Error::usage("the mount already has a cache above it"))
    }
}
