//! Having a file alone: a write delegation (RFC 8881 §10.4), kept from an open to the last close, or until the mgr asks it back because
//! somebody else wants the file.

use super::{Inode, Open};
use crate::compound::{Compound, Results};
use crate::mount::CURRENT;
use crate::{Error, Result};
use futures_util::future::BoxFuture;
use std::sync::{Arc, MutexGuard, PoisonError};
use types::FileId;
use wire::native::Nothing;
use wire::nfs4::*;

/// Who holds bytes of files that this mount has alone, and hands them on late: a page cache above the client.
pub trait Keeper: Send + Sync {
    /// Others want the file. What is returned ends when everything that was written to it has been handed to the client, which makes
    /// it durable and lets the others have the file then.
    fn hand_on(&self, file: FileId) -> BoxFuture<'static, ()>;
}

/// How this mount has a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Alone {
    /// As others may have it, too.
    #[default]
    Shared,
    /// Alone, by this delegation.
    Held(stateid4),
    /// Alone still, but it is being given back.
    Leaving(stateid4),
}

impl Alone {
    fn stateid(self) -> Option<stateid4> {
        match self {
            Alone::Shared => None,
            Alone::Held(stateid) | Alone::Leaving(stateid) => Some(stateid),
        }
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

    /// The delegation that the last close is to give back: none if the file was opened again meanwhile, by somebody who may count on it. Nobody
    /// does from here on.
    pub(crate) fn leave(&self) -> Option<stateid4> {
        // An open is on the list before it is asked whether the file is had alone.
        let state = self.state();
        let mut alone = self.alone();
        if let Alone::Held(held) = *alone
            && state.opens.is_empty()
        {
            *alone = Alone::Leaving(held);
        }
        match *alone {
            Alone::Leaving(held) => Some(held),
            Alone::Held(_) | Alone::Shared => None,
        }
    }

    /// What an OPEN gave besides the open.
    pub(crate) fn learn_delegation(self: &Arc<Self>, given: &open_delegation4) {
        let open_delegation4::OPEN_DELEGATE_WRITE(given) = given else { return };
        *self.alone() = Alone::Held(given.stateid);
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
        self.learn_delegation(&opened.delegation);
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
                Alone::Leaving(held) if held.other == stateid.other => return true,
                _ => return false,
            }
        }
        let inode = self.clone();
        net::task::spawn_on(&self.mount.runtime, async move {
            if let Err(error) = inode.give_back_delegation(stateid).await {
                // The mgr asks again.
                inode.hold_again(stateid);
                // Whoever writes to the file has to learn of it.
                inode.fail(error);
            }
        });
        true
    }

    /// Everything that was written here is durable and known to the mgr before somebody else has the file.
    async fn give_back_delegation(self: &Arc<Self>, stateid: stateid4) -> Result<()> {
        self.mount.hand_on(self.node.id).await;
        self.make_durable().await;
        let reported = self.report().await;
        // A close may have been quicker.
        if self.delegation().is_none_or(|held| held.other != stateid.other) {
            return reported;
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

    /// It could not be given back.
    fn hold_again(&self, stateid: stateid4) {
        let mut alone = self.alone();
        if matches!(*alone, Alone::Leaving(held) if held.other == stateid.other) {
            *alone = Alone::Held(stateid);
        }
    }

    fn share(&self, stateid: stateid4) {
        let mut alone = self.alone();
        if alone.stateid().is_some_and(|held| held.other == stateid.other) {
            *alone = Alone::Shared;
        }
    }

    /// The mgr has taken the delegation away, or does not know of it any more: from here on the file is like any other. What
    /// others did meanwhile is not known.
    pub(crate) fn lose_delegation(self: &Arc<Self>) -> bool {
        let lost = std::mem::take(&mut *self.alone()).stateid().is_some();
        if lost {
            self.state().doubt();
            let inode = self.clone();
            net::task::spawn_on(&self.mount.runtime, async move {
                inode.mount.hand_on(inode.node.id).await;
                inode.make_durable().await;
            });
        }
        lost
    }
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
