//! The delegation of a file's data (RFC 8881 §10.4, [`WANT_DATA`]): what lets this client buffer writes, cache bytes and believe the size.
//!
//! With `sharing=coherent` each open asks for one. One for reading says that no other client writes, one for writing that no other client has the file
//! open. The mgr recalls it before another client's open, truncation or look at the attributes is answered: the client flushes, and from then on the file
//! is *shared*. Then a write returns when a server has answered for it, bytes are read from the servers, and the size is asked for each time, until the
//! mgr gives a delegation again.

use super::{Inode, Open, State};
use crate::compound::{Compound, Results};
use crate::mount::{Asking, CURRENT, Queued};
use crate::{Error, Result};
use futures_util::future::BoxFuture;
use nfs::client::recovery;
use nfs::state::delegations::WANT_DATA;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;
use types::FileId;
use wire::native::Nothing;
use wire::nfs4::*;

/// How often a client that uses a shared file asks for a delegation of it.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A cache above the client: it keeps bytes and attributes of files under the client's delegations.
pub trait Keeper: Send + Sync {
    /// Another client uses the file from now on. The future ends when everything that was written to the cache has been handed to the client, which
    /// makes it durable, and when nothing cached is believed any more.
    fn hand_on(&self, file: FileId) -> BoxFuture<'static, ()>;

    /// The mgr revoked the delegation, and other clients may have written to the file. From this call on the cache hands nothing that it keeps of the
    /// file to the client, and programs that wrote it are told that it is lost. The future ends when nothing is kept.
    fn give_up(&self, file: FileId) -> BoxFuture<'static, ()>;

    /// The client holds a delegation of an open file that was shared before. Attributes that the mgr sent before may be older than what the file has become
    /// by then.
    fn gained(&self, file: FileId) {
        let _ = file;
    }
}

/// What a delegation lets its holder do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Power {
    /// Cache what is read: no other client writes.
    Read,
    /// Buffer what is written, too: no other client has the file open.
    Write,
}

/// The delegation of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Delegation {
    /// None.
    #[default]
    None,
    /// Held.
    Held(stateid4, Power),
    /// Held still, but recalled: what is buffered is being written.
    Recalled(stateid4, Power),
    /// Nothing is buffered any more, and it is on its way back.
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

    /// The one that is to be given back or is on its way.
    fn leaving(self) -> Option<stateid4> {
        match self {
            Delegation::Recalled(held, _) | Delegation::Returning(held, _) => Some(held),
            Delegation::Held(..) | Delegation::None => None,
        }
    }

    /// Whether it is this one, and not known to be gone.
    fn is(self, stateid: stateid4) -> bool {
        self.held().is_some_and(|(held, _)| held.other == stateid.other)
    }
}

/// What came of the answer to an OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Learnt {
    /// Whether it is worth asking again: the mgr has given what a close here is about to return, or has returned by a request that it met after this OPEN.
    pub(crate) again: bool,
    /// The stamp as of which the attributes in the answer count ([`Inode::learn_size`]).
    pub(crate) stamp: u64,
}

/// The delegation that an OPEN gave: its stateid, what for, and whether it is recalled already.
fn given(answer: &open_delegation4) -> Option<(stateid4, Power, bool)> {
    match answer {
        open_delegation4::OPEN_DELEGATE_READ(given) => Some((given.stateid, Power::Read, given.recall)),
        open_delegation4::OPEN_DELEGATE_WRITE(given) => Some((given.stateid, Power::Write, given.recall)),
        _ => None,
    }
}

impl Inode {
    fn delegated(&self) -> MutexGuard<'_, Delegation> {
        self.delegation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no other client has the file open, or wants it.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(*self.delegated(), Delegation::Held(_, Power::Write))
    }

    /// Whether no other client writes the file, or wants to.
    pub(crate) fn is_delegated(&self) -> bool {
        matches!(*self.delegated(), Delegation::Held(..))
    }

    /// See [`crate::File::delegation`].
    pub(crate) fn delegation_number(&self) -> Option<u64> {
        let state = self.state();
        self.is_delegated().then_some(state.delegations)
    }

    /// Whether other clients may write the file, and this one promises to meet what they write.
    pub(crate) fn is_shared(&self) -> bool {
        !self.is_delegated() && self.state().coherent
    }

    /// Whether what is written here must be on a server before the write returns: another client may have the file open, and meets it then.
    pub(crate) fn writes_through(&self) -> bool {
        !self.is_alone() && self.state().coherent
    }

    /// Asks for a delegation beside everything else, if the file is shared and that was not tried lately: the other clients may have closed it.
    pub(crate) fn ask_again(self: &Arc<Self>) {
        {
            let mut state = self.state();
            let lately = state.asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN);
            if lately || !state.coherent || *self.delegated() != Delegation::None {
                return;
            }
            state.asked = Some(Instant::now());
        }
        let inode = self.clone();
        net::task::spawn_on(&self.mount.runtime, async move {
            if let Err(error) = inode.ask_delegation().await {
                tracing::debug!(file = %inode.node.id, "asking for a delegation: {error}");
            }
        });
    }

    /// The delegation, also while it is being given back.
    pub(crate) fn delegation(&self) -> Option<stateid4> {
        self.delegated().held().map(|(stateid, _)| stateid)
    }

    /// The delegation, and how it is claimed from an mgr that restarted.
    pub(crate) fn delegation_to_reclaim(&self) -> Option<(stateid4, open_claim4)> {
        let (stateid, power) = self.delegated().held()?;
        let kind = if power == Power::Read { OPEN_DELEGATE_READ } else { OPEN_DELEGATE_WRITE };
        Some((stateid, open_claim4::CLAIM_PREVIOUS(kind)))
    }

    /// The delegation whose stateid a LAYOUTGET or WRITE carries: once the mgr has revoked it, bytes that were buffered under it must not reach the file.
    pub(crate) fn delegation_of_io(&self) -> Option<stateid4> {
        match *self.delegated() {
            Delegation::Held(held, Power::Write) | Delegation::Recalled(held, Power::Write) => Some(held),
            _ => None,
        }
    }

    /// The delegation that the last close gives back; from here on nothing is done under it. None if the file was opened again meanwhile: that open may
    /// depend on it.
    pub(crate) fn leave(&self) -> Option<stateid4> {
        // An open is on the list before it is asked what is delegated.
        let state = self.state();
        let mut delegated = self.delegated();
        if !state.opens.is_empty() {
            return None;
        }
        if let Delegation::Held(held, power) | Delegation::Recalled(held, power) = *delegated {
            *delegated = Delegation::Returning(held, power);
        }
        delegated.leaving()
    }

    /// Takes the delegation off for a last close that hands it to [`crate::mount::Leaving`]. The error says that another task is returning it already.
    pub(super) fn hand_over_delegation(&self, state: &State) -> std::result::Result<Option<stateid4>, ()> {
        let mut delegated = self.delegated();
        if !state.opens.is_empty() {
            return Ok(None);
        }
        match std::mem::take(&mut *delegated) {
            Delegation::None => Ok(None),
            Delegation::Held(held, _) => {
                // Until it waits there: an open may be answered with it at this moment.
                self.mount.leaving().goes_back(held);
                Ok(Some(held))
            }
            leaving => {
                *delegated = leaving;
                Err(())
            }
        }
    }

    /// Takes over the delegation that an OPEN gave. An mgr that restarted since the OPEN was sent most likely does not know the delegation any more.
    pub(crate) fn learn_delegation(self: &Arc<Self>, answer: &open_delegation4, asking: &Asking<'_>) -> Learnt {
        self.state().asked = Some(Instant::now());
        let mut learnt = Learnt { again: false, stamp: asking.stamp };
        let Some((stateid, power, recall)) = given(answer) else { return learnt };
        {
            let mut state = self.state();
            let mut delegated = self.delegated();
            if self.mount.leaving().take_back(stateid, &delegated) == Queued::Sent {
                return Learnt { again: true, ..learnt };
            }
            // Answers may overtake each other: the mgr gives none for reading to a client that has one for writing.
            let is_older = power == Power::Read && matches!(*delegated, Delegation::Held(_, Power::Write));
            if is_older {
                return learnt;
            }
            if !delegated.is(stateid) {
                // What was learnt before is as old as it may be without a delegation, and so is what was asked before and is answered later. What the
                // OPEN itself told is not.
                state.doubt();
                state.delegations += 1;
                let changed = state.stamp > asking.stamp;
                state.stamp = self.mount.next_stamp();
                if !changed {
                    learnt.stamp = state.stamp;
                }
                *delegated = Delegation::Held(stateid, power);
            }
            if state.opens.is_empty() && *delegated == Delegation::Held(stateid, power) {
                // The file was closed before the answer came. No close returns this delegation, and the mgr recalls it only if it is in the way.
                *delegated = Delegation::Returning(stateid, power);
                self.mount.leaving().goes_back(stateid);
                let inode = self.clone();
                net::task::spawn_on(&self.mount.runtime, async move {
                    Self::go_on_leaving(Arc::downgrade(&inode)).await;
                });
                return learnt;
            }
        }
        // Looked at after that: a reclaim that begins from here on finds the delegation.
        if recall || self.mount.session.epoch() != asking.epoch {
            self.recall_delegation(stateid);
        }
        learnt
    }

    /// Asks for a delegation of a file that is being opened, once those are back that closes return.
    pub(crate) async fn ask_when_returned(self: &Arc<Self>) {
        self.mount.close_left().await;
        if let Err(error) = self.ask_delegation().await {
            tracing::debug!(file = %self.node.id, "asking for a delegation: {error}");
        }
    }

    /// What the mgr gave when it was told, after a restart, that the delegation was held before.
    pub(crate) fn reclaimed_delegation(self: &Arc<Self>, answer: &open_delegation4) {
        let Some((stateid, power, recall)) = given(answer) else { return };
        {
            let mut delegated = self.delegated();
            *delegated = match *delegated {
                Delegation::Held(..) => Delegation::Held(stateid, power),
                // The task that returns it goes on with this one.
                Delegation::Recalled(..) | Delegation::Returning(..) => Delegation::Recalled(stateid, power),
                Delegation::None => return,
            };
        }
        if recall {
            self.recall_delegation(stateid);
        }
    }

    /// Asks for a delegation once more; whether there is one now. By an open of its own, which is closed in the same round trip: the opens here,
    /// under which bytes are on their way, keep their stateids.
    pub(crate) async fn ask_delegation(self: &Arc<Self>) -> Result<bool> {
        if *self.delegated() != Delegation::None {
            return Ok(self.is_alone());
        }
        let opens = self.opens();
        let best = opens.iter().find(|open| open.is_for_both()).or_else(|| opens.iter().find(|open| open.write));
        let Some(open) = best.or(opens.first()).cloned() else { return Ok(false) };
        let asking = self.mount.ask();
        let mut compound = Compound::new("asking for a delegation").by(&open.caller).cached();
        let again = Open { key: self.mount.next_owner(), ..open };
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

    /// The mgr asks the delegation back; whether there is one to be given back, which then happens.
    pub(crate) fn recall_delegation(self: &Arc<Self>, stateid: stateid4) -> bool {
        {
            let mut delegated = self.delegated();
            match *delegated {
                Delegation::Held(held, power) if held.other == stateid.other => {
                    *delegated = Delegation::Recalled(held, power);
                }
                // It is on its way.
                other => return other.is(stateid),
            }
        }
        net::task::spawn_on(&self.mount.runtime, Self::go_on_leaving(Arc::downgrade(self)));
        true
    }

    /// Returns the delegation; tries until it is done, as the mgr recalls it once.
    async fn go_on_leaving(inode: Weak<Self>) {
        for attempt in 0.. {
            {
                let Some(inode) = inode.upgrade() else { return };
                let Some(stateid) = inode.delegated().leaving() else { return };
                if let Err(error) = inode.give_back_delegation(stateid).await {
                    // The next write, fsync or close reports it.
                    inode.fail(error);
                }
                // Not after the pause: another one may be had by then, and be on its way back because the file is closed.
                if inode.delegated().leaving().is_none() {
                    return;
                }
            }
            tokio::time::sleep(recovery::pause(attempt)).await;
        }
    }

    /// Returns the delegation once everything that was written here is durable and reported to the mgr.
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
            // A close may have been quicker.
            let Some((_, power)) = delegated.held().filter(|_| delegated.is(stateid)) else { return reported };
            *delegated = Delegation::Returning(stateid, power);
        }
        let mut compound = Compound::new("giving a delegation back").cached();
        compound.putfh(&self.node.handle);
        append_return(&mut compound, stateid);
        let mut results = self.mount.session.call(compound).await?;
        // Without the file there is no delegation of it either.
        if results.done(&[OP_PUTFH]).is_ok() {
            self.returned(stateid, &mut results).await?;
        }
        self.share(stateid);
        reported
    }

    /// The mgr revokes what it has asked for in vain for a lease, unless it is written to; what goes straight to the iods it does not see. Never
    /// ends.
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

    /// The answer to a DELEGRETURN: whether what follows it was carried out.
    pub(crate) async fn returned(&self, stateid: stateid4, results: &mut Results) -> Result<bool> {
        self.share(stateid);
        match results.raw::<Nothing>(OP_DELEGRETURN) {
            Ok(_) => Ok(true),
            // The mgr has forgotten it, or taken it away.
            Err(crate::compound::Failed::Nfs(status)) => {
                tracing::debug!(file = %self.node.id, ?status, "the delegation was gone before it was given back");
                if status == NFS4ERR_DELEG_REVOKED {
                    // The mgr keeps what it revoked until the client shows that it knows, and says so again if it does not hear of it now.
                    drop(self.mount.session.free_stateid(stateid).await);
                }
                Ok(false)
            }
            Err(failed) => Err(results.error(&failed)),
        }
    }

    /// The file is like any other from here on.
    pub(crate) fn share(&self, stateid: stateid4) {
        self.mount.leaving().is_gone(stateid.other, self.mount.opens_asked());
        let mut state = self.state();
        let mut delegated = self.delegated();
        if delegated.is(stateid) {
            *delegated = Delegation::None;
            // From here on it is asked how long the file is, and nothing that was read ahead counts.
            state.doubt();
            state.asked = Some(Instant::now());
        }
    }

    /// The mgr has forgotten the delegation, with everything else that this client held, and no other client is known to have wanted the file. What is
    /// buffered here is written all the same, as it would be lost otherwise; but not what a cache above keeps ([`crate::OpenOptions::alone`]).
    pub(crate) fn delegation_lost(&self, stateid: stateid4) {
        if self.state().exclusive {
            return self.delegation_revoked(stateid);
        }
        self.share(stateid);
        // What is buffered leaves now, as every write of a shared file does.
        let Some(inode) = self.mount.inodes.by_handle(&self.node.handle) else { return };
        net::task::spawn_on(&self.mount.runtime, async move {
            inode.mount.hand_on(inode.node.id).await;
            inode.make_durable().await;
            if let Err(error) = inode.report().await {
                tracing::debug!(file = %inode.node.id, "{error}; told by what comes next");
            }
        });
    }

    /// The mgr has let others have the file: what is not durable yet is given up, as it may be older than what they have written.
    pub(crate) fn delegation_revoked(&self, stateid: stateid4) {
        // Two requests may learn of it at the same moment. The later one would give up what was written after the first had shared the file.
        let _one = self.revoking.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, power)) = self.delegated().held().filter(|(held, _)| held.other == stateid.other) else { return };
        let exclusive = self.state().exclusive;
        if !exclusive && (power == Power::Read || self.is_clean()) {
            return self.delegation_lost(stateid);
        }
        // In this order: the cache above gives up its bytes, then this client its own; only then may programs write to the file as a shared one.
        let emptied = self.mount.keeper.get().map(|keeper| keeper.give_up(self.node.id));
        {
            let mut state = self.state();
            state.doubt();
            state.given_up = state.next_batch;
            state.revocations += 1;
        }
        self.abandon();
        self.share(stateid);
        tracing::warn!(file = %self.node.id, "a delegation was revoked: what is not durable yet is given up");
        self.fail(revoked_error());
        if let Some(emptied) = emptied {
            net::task::spawn_on(&self.mount.runtime, emptied);
        }
    }
}

/// Why bytes are lost.
pub(super) fn revoked_error() -> Error {
    let why = "another client opened the file, and this one did not write its buffered bytes to the servers in time; compare the file with what \
               was written";
    Error::status(types::Status::Io, why)
}

/// Appends a DELEGRETURN of the current file's delegation.
pub(crate) fn append_return(compound: &mut Compound, deleg_stateid: stateid4) {
    compound.op(OP_DELEGRETURN, &DELEGRETURN4args { deleg_stateid });
}

impl crate::mount::Inner {
    /// Has the cache above hand its bytes of this file to the client.
    async fn hand_on(&self, file: FileId) {
        if let Some(keeper) = self.keeper.get() {
            keeper.hand_on(file).await;
        }
    }
}

impl crate::Mount {
    /// Says who caches files above this mount. One for each mount.
    ///
    /// # Errors
    /// There is one already.
    pub fn keep_with(&self, keeper: Arc<dyn Keeper>) -> Result<()> {
        self.inner.keeper.set(keeper).map_err(|_| Error::usage("this mount has a cache above it already"))
    }
}
