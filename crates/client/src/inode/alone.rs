//! Having a file alone: a write delegation (RFC 8881 §10.4), kept from an open to the last close, or until the mgr asks it back because
//! somebody else wants the file.

use super::{Inode, Open};
use crate::compound::{Compound, Results};
use crate::mount::CURRENT;
use crate::{Error, Result};
use futures_util::future::BoxFuture;
use nfs::client::recovery;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use types::FileId;
use wire::native::Nothing;
use wire::nfs4::*;

/// Who holds bytes of files that this mount has alone, and hands them on late: a page cache above the client.
pub trait Keeper: Send + Sync {
    /// Others want the file. What is returned ends when everything that was written to it has been handed to the client, which makes
    /// it durable and lets the others have the file then.
    fn hand_on(&self, file: FileId) -> BoxFuture<'static, ()>;

    /// The mgr has let others have the file, who may have written to it: what is kept of it is to be handed to the client no more, from this call
    /// on, and whoever wrote it is to be told that it is lost. What is returned ends when nothing is kept.
    fn give_up(&self, file: FileId) -> BoxFuture<'static, ()>;
}

/// How this mount has a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Alone {
    /// As others may have it, too.
    #[default]
    Shared,
    /// Alone, by this delegation.
    Held(stateid4),
    /// Alone still, but others want it: what is kept is being written.
    Leaving(stateid4),
    /// Nothing is kept any more, and the delegation is on its way back.
    Returning(stateid4),
}

impl Alone {
    fn stateid(self) -> Option<stateid4> {
        match self {
            Alone::Shared => None,
            Alone::Held(stateid) | Alone::Leaving(stateid) | Alone::Returning(stateid) => Some(stateid),
        }
    }

    /// The delegation that is to be given back or is on its way.
    fn leaving(self) -> Option<stateid4> {
        match self {
            Alone::Leaving(held) | Alone::Returning(held) => Some(held),
            Alone::Held(_) | Alone::Shared => None,
        }
    }

    /// Whether it is this delegation, and not known to be gone.
    fn is(self, stateid: stateid4) -> bool {
        self.stateid().is_some_and(|held| held.other == stateid.other)
    }
}

impl Inode {
    fn alone(&self) -> MutexGuard<'_, Alone> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody else has the file open, and nobody wants it.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(*self.alone(), Alone::Held(_))
    }

    /// The delegation, also while it is being given back.
    pub(crate) fn delegation(&self) -> Option<stateid4> {
        self.alone().stateid()
    }

    /// What writing is to be asked for under: once the delegation is revoked, nothing that was written in the belief of being alone may reach the file.
    pub(crate) fn delegation_of_io(&self) -> Option<stateid4> {
        match *self.alone() {
            Alone::Held(held) | Alone::Leaving(held) => Some(held),
            Alone::Shared | Alone::Returning(_) => None,
        }
    }

    /// The delegation that the last close is to give back: none if the file was opened again meanwhile, by somebody who may count on it. Nobody
    /// does from here on.
    pub(crate) fn leave(&self) -> Option<stateid4> {
        // An open is on the list before it is asked whether the file is had alone.
        let state = self.state();
        let mut alone = self.alone();
        if let Alone::Held(held) | Alone::Leaving(held) = *alone
            && state.opens.is_empty()
        {
            *alone = Alone::Returning(held);
        }
        alone.leaving()
    }

    /// What an OPEN gave besides the open; `epoch` is that of the session when it was sent. What came before the mgr was told anew of all that is
    /// open here it does not know any more, most likely.
    pub(crate) fn learn_delegation(self: &Arc<Self>, given: &open_delegation4, epoch: u64) {
        let open_delegation4::OPEN_DELEGATE_WRITE(given) = given else { return };
        *self.alone() = Alone::Held(given.stateid);
        // Looked at after that: who tells the mgr from here on finds it.
        if given.recall || self.mount.session.epoch() != epoch {
            self.recall_delegation(given.stateid);
        }
    }

    /// What the mgr gave when it was told, after a restart, that the delegation was had before.
    pub(crate) fn reclaimed_delegation(self: &Arc<Self>, given: &open_delegation4) {
        let open_delegation4::OPEN_DELEGATE_WRITE(given) = given else { return };
        {
            let mut alone = self.alone();
            *alone = match *alone {
                Alone::Held(_) => Alone::Held(given.stateid),
                // Whoever gives it back goes on with this one.
                Alone::Leaving(_) | Alone::Returning(_) => Alone::Leaving(given.stateid),
                Alone::Shared => return,
            };
        }
        if given.recall {
            self.recall_delegation(given.stateid);
        }
    }

    /// Asks for a delegation once more; whether there is one now. By an open of its own, which is closed in the same round trip: the opens here,
    /// under which bytes are on their way, keep their stateids.
    pub(crate) async fn ask_delegation(self: &Arc<Self>) -> Result<bool> {
        if *self.alone() != Alone::Shared {
            return Ok(self.is_alone());
        }
        let Some(open) = self.opens().into_iter().find(Open::is_for_both) else { return Ok(false) };
        let asking = self.mount.ask();
        let mut compound = Compound::new("asking to have a file alone").by(&open.caller).cached();
        let again = Open { key: self.mount.next_owner(), ..open };
        let args = again.args(open_claim4::CLAIM_FH, OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG);
        compound.putfh(&self.node.handle).op(OP_OPEN, &args);
        compound.op(OP_CLOSE, &CLOSE4args { seqid: 0, open_stateid: CURRENT });
        let mut results = self.mount.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let opened: OPEN4resok = results.take(OP_OPEN)?;
        self.learn_delegation(&opened.delegation, asking.epoch);
        drop(asking);
        results.take::<stateid4>(OP_CLOSE)?;
        Ok(self.is_alone())
    }

    /// The mgr asks the delegation back; whether there is one to be given back, which then happens.
    pub(crate) fn recall_delegation(self: &Arc<Self>, stateid: stateid4) -> bool {
        {
            let mut alone = self.alone();
            match *alone {
                Alone::Held(held) if held.other == stateid.other => *alone = Alone::Leaving(held),
                // It is on its way.
                other => return other.is(stateid),
            }
        }
        net::task::spawn_on(&self.mount.runtime, Self::go_on_leaving(Arc::downgrade(self)));
        true
    }

    /// Gives the delegation back, tried until it is done: the mgr asks once.
    async fn go_on_leaving(inode: Weak<Self>) {
        for attempt in 0.. {
            {
                let Some(inode) = inode.upgrade() else { return };
                let Some(stateid) = inode.alone().leaving() else { return };
                if let Err(error) = inode.give_back_delegation(stateid).await {
                    // Whoever writes to the file has to learn of it.
                    inode.fail(error);
                }
                // Not after the pause: another one may be had by then, and be on its way back because the file is closed.
                if inode.alone().leaving().is_none() {
                    return;
                }
            }
            tokio::time::sleep(recovery::pause(attempt)).await;
        }
    }

    /// Everything that was written here is durable and known to the mgr before somebody else has the file.
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
            let mut alone = self.alone();
            // A close may have been quicker.
            if !alone.is(stateid) {
                return reported;
            }
            *alone = Alone::Returning(stateid);
        }
        let mut compound = Compound::new("giving a delegation back").cached();
        compound.putfh(&self.node.handle);
        append_return(&mut compound, stateid);
        let mut results = self.mount.session.call(compound).await?;
        // Without the file there is no delegation of it either.
        if results.done(&[OP_PUTFH]).is_ok() {
            self.returned(stateid, &mut results)?;
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
    pub(crate) fn returned(&self, stateid: stateid4, results: &mut Results) -> Result<bool> {
        self.share(stateid);
        match results.raw::<Nothing>(OP_DELEGRETURN) {
            Ok(_) => Ok(true),
            // The mgr has forgotten it, or taken it away.
            Err(crate::compound::Failed::Nfs(status)) => {
                tracing::debug!(file = %self.node.id, ?status, "the delegation was gone before it was given back");
                Ok(false)
            }
            Err(failed) => Err(results.error(&failed)),
        }
    }

    /// The file is like any other from here on.
    pub(crate) fn share(&self, stateid: stateid4) {
        let mut alone = self.alone();
        if alone.is(stateid) {
            *alone = Alone::Shared;
        }
    }

    /// The mgr has let others have the file: what is not durable yet is given up, as it may be older than what they have written.
    pub(crate) fn delegation_revoked(&self, stateid: stateid4) {
        if !self.alone().is(stateid) {
            return;
        }
        // First whoever keeps bytes, then what is here already; and only then it may be written to as others may.
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
    let why = "another client wanted the file, which this one had alone, and it was given to it before all that was written here had reached the \
               servers; look at what others wrote";
    Error::status(types::Status::Io, why)
}

/// Appends a DELEGRETURN of the current file's delegation.
pub(crate) fn append_return(compound: &mut Compound, deleg_stateid: stateid4) {
    compound.op(OP_DELEGRETURN, &DELEGRETURN4args { deleg_stateid });
}

impl crate::mount::Inner {
    /// Whoever keeps bytes of this file hands them to the client.
    async fn hand_on(&self, file: FileId) {
        if let Some(keeper) = self.keeper.get() {
            keeper.hand_on(file).await;
        }
    }
}

impl crate::Mount {
    /// Says who keeps bytes of files that are opened to be had alone ([`crate::OpenOptions::alone`]). One for each mount.
    ///
    /// # Errors
    /// There is one already.
    pub fn keep_with(&self, keeper: Arc<dyn Keeper>) -> Result<()> {
        self.inner.keeper.set(keeper).map_err(|_| Error::usage("somebody else keeps bytes of this mount's files"))
    }
}
