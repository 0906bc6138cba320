//! Requests for the negative-lookup cache: get and return directory delegations, and read directories; see
//! [`crate::negative`].

use super::names::check_answer;
use super::{Inner, Mount, Node};
use crate::compound::{Caller, Compound, Failed};
use crate::counters::add;
use crate::negative::{DelegationToReturn, Negative, Removal};
use crate::{Error, Result};
use bytes::Bytes;
use futures_util::future;
use nfs::attrs::Mask;
use nfs::client::recovery;
use nfs::name_delegations::OWN_CHANGES;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use types::limits::PAYLOAD_MAX;
use types::{FileId, Status, Timestamp};
use wire::nfs4::*;

/// The size of the reply to one READDIR, in bytes.
const PAGE_BYTES: u32 = 512 << 10;
const _: () = assert!((PAGE_BYTES as usize) < PAYLOAD_MAX);
/// How many times the client tries to return a directory delegation.
const TRIES: u32 = 8;
/// How long a mount that disconnects waits until it has returned its directory delegations.
const LEAVING: Duration = Duration::from_secs(1);

/// The negative-lookup cache of a mount, with a reference to the mount. The mount sends the requests of the cache.
#[derive(Default)]
pub(crate) struct Names {
    known: Mutex<Negative<Caller>>,
    /// The mount that sends the requests of the cache; set once, after the creation of the mount.
    mount: OnceLock<Weak<Inner>>,
}

/// A request in flight that may create a name. If this value is dropped without [`Making::answered`], the mgr may still
/// execute the request.
pub(crate) struct Making<'a> {
    mount: &'a Arc<Inner>,
    dir: FileId,
    name: &'a [u8],
    answered: bool,
}

impl Making<'_> {
    /// Records that the mgr has answered the request, so the mgr cannot execute it later.
    pub(crate) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let back = self.mount.names().known().made(self.dir, self.name, self.answered);
        self.mount.give_back_names(back);
    }
}

fn now() -> Timestamp {
    Timestamp::from(net::clock::now())
}

impl Names {
    fn known(&self) -> MutexGuard<'_, Negative<Caller>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the mount that will send the requests of this cache.
    pub(super) fn belong_to(&self, mount: &Arc<Inner>) {
        let _ = self.mount.set(Arc::downgrade(mount));
    }

    /// Handles the recall of a delegation. If `stateid` is a directory delegation that the client holds, starts to
    /// return the delegation to the mgr, and returns true.
    pub(crate) fn recall(&self, stateid: &stateid4) -> bool {
        let Some(gone) = self.known().lose(stateid, now()) else { return false };
        if let Some(mount) = self.mount.get().and_then(Weak::upgrade) {
            mount.give_back_names([gone]);
        }
        true
    }

    /// Returns whether the mgr has answered every OPEN. If so, no reply that grants a delegation is in flight.
    pub(crate) fn are_opens_answered(&self) -> bool {
        let counts = self.mount.get().and_then(Weak::upgrade).map(|mount| mount.opens_asked());
        counts.is_some_and(|(asked, answered)| asked == answered)
    }

    /// Starts to return a recalled delegation of which the client has no record.
    pub(crate) fn give_back_unknown(&self, handle: &Bytes, stateid: stateid4) {
        if let Some(mount) = self.mount.get().and_then(Weak::upgrade) {
            mount.give_back_names([DelegationToReturn { handle: handle.clone(), stateid }]);
        }
    }

    /// Drops the cached names of a directory whose delegation the mgr has revoked.
    pub(crate) fn lose(&self, stateid: &stateid4) {
        self.known().lose(stateid, now());
    }

    /// Records that this mount may have changed the permissions of a directory.
    pub(super) fn permissions_changed(&self, dir: FileId) {
        self.known().permissions_changed(dir);
    }

    /// Returns the stateids of all directory delegations that the client holds.
    pub(crate) fn held(&self) -> Vec<stateid4> {
        self.known().held()
    }
}

impl Mount {
    /// Returns the error for a missing name, if the negative-lookup cache shows that the name does not exist.
    pub(super) fn absent(&self, dir: &Node, name: &[u8]) -> Option<Error> {
        if self.inner.options.negative == 0 {
            return None;
        }
        let epoch = self.inner.session.epoch_of_names()?;
        if !self.inner.names().known().is_absent(dir.id, name, &self.caller, epoch) {
            return None;
        }
        add(&self.inner.tally.absent, 1);
        Some(Error::status(Status::NoEnt, format!("looking up {}", super::names::shown(name))))
    }

    /// Records that the mgr did not find a name. After several such failed lookups in a directory, starts to read all
    /// names of the directory in the background.
    pub(super) fn missed(&self, dir: &Node) {
        let wanted = self.inner.options.negative;
        if wanted == 0 {
            return;
        }
        let epoch = self.inner.session.epoch();
        let missed = self.inner.names().known().missed((dir.id, &dir.handle), &self.caller, (epoch, now()), wanted);
        self.inner.give_back_names(missed.1);
        if let Some(number) = missed.0 {
            let (mount, dir) = (self.clone(), dir.clone());
            net::task::spawn_on(&self.inner.runtime, async move { mount.learn_names(dir, number, epoch).await });
        }
    }

    async fn learn_names(self, dir: Node, number: u64, epoch: u64) {
        let read = self.read_names(&dir, number, epoch).await;
        let all = *read.as_ref().unwrap_or(&false);
        if let Err(error) = read {
            tracing::debug!(dir = %dir.id, "asking for the names in a directory: {error}");
        }
        let back = self.inner.names().known().finished(dir.id, number, all, now());
        self.inner.give_back_names(back);
    }

    /// Requests a delegation of a directory and reads all names in the directory. Returns whether the cache now
    /// contains all these names.
    async fn read_names(&self, dir: &Node, number: u64, epoch: u64) -> Result<bool> {
        let mut compound = self.compound("asking for the names in a directory").cached();
        let gdda_notification_types = Mask::of(&[OWN_CHANGES]).to_bitmap();
        let args = GET_DIR_DELEGATION4args { gdda_notification_types, ..GET_DIR_DELEGATION4args::default() };
        compound.putfh(&dir.handle).op(OP_GET_DIR_DELEGATION, &args);
        // Count GET_DIR_DELEGATION as an unanswered OPEN until its reply arrives. During this time, the client rejects
        // a recall of the delegation, and the mgr repeats the recall later.
        let asking = self.inner.ask();
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let given = match results.raw::<GET_DIR_DELEGATION4res_non_fatal>(OP_GET_DIR_DELEGATION) {
            Ok(GET_DIR_DELEGATION4res_non_fatal::GDD4_OK(given)) => given.gddr_stateid,
            // The mgr granted no delegation, because other clients change the directory or because the mgr does not
            // support directory delegations. Cache nothing.
            Ok(GET_DIR_DELEGATION4res_non_fatal::GDD4_UNAVAIL(_)) | Err(Failed::Nfs(_)) => return Ok(false),
            Err(failed) => return Err(results.error(&failed)),
        };
        let given = DelegationToReturn { handle: dir.handle.clone(), stateid: given };
        let granted = self.inner.names().known().granted(dir.id, number, given, epoch);
        drop(asking);
        if let Err(unwanted) = granted {
            self.inner.give_back_names([unwanted]);
            return Ok(false);
        }
        let (mut cookie, mut cookieverf) = (0, [0; 8]);
        loop {
            let (dircount, maxcount, attr_request) = (PAGE_BYTES, PAGE_BYTES, bitmap4::default());
            let what = "reading the names in a directory";
            let mut compound = self.compound(what);
            let args = READDIR4args { cookie, cookieverf, dircount, maxcount, attr_request };
            compound.putfh(&dir.handle).op(OP_READDIR, &args);
            let mut results = self.inner.session.call(compound).await?;
            results.done(&[OP_PUTFH])?;
            let got: READDIR4resok = results.take(OP_READDIR)?;
            let last = got.reply.entries.last().map(|last| last.cookie);
            got.reply.entries.iter().try_for_each(|entry| check_answer(&entry.name, what))?;
            let names = got.reply.entries.into_iter().map(|entry| entry.name);
            let wanted = self.inner.names().known().read(dir.id, number, names);
            match last {
                _ if !wanted => return Ok(false),
                _ if got.reply.eof => return Ok(true),
                Some(last) if last != cookie => (cookie, cookieverf) = (last, got.cookieverf),
                _ => return Err(Error::protocol(format!("{what}: the mgr returned the same page twice"))),
            }
        }
    }
}

impl Inner {
    pub(crate) fn names(&self) -> &Names {
        &self.inodes.names
    }

    /// Registers with the cache a request that may create a name in a directory, before the client sends the request.
    pub(crate) fn makes<'a>(self: &'a Arc<Self>, dir: &Node, name: &'a [u8]) -> Making<'a> {
        let back = self.names().known().makes(dir.id, name, now());
        self.give_back_names(back);
        Making { mount: self, dir: dir.id, name, answered: false }
    }

    /// Registers with the cache a request that removes or renames a name, before the client sends the request.
    pub(crate) fn removes(&self, dir: &Node, name: &[u8]) -> Option<Removal> {
        self.names().known().removes(dir.id, name)
    }

    /// Records that the mgr has executed a request that removes or renames a name.
    pub(crate) fn removed(&self, removal: Option<Removal>) {
        if let Some(removal) = removal {
            self.names().known().removed(removal);
        }
    }

    /// Returns all directory delegations to the mgr, and waits at most one second for the replies. If the mgr takes
    /// longer, it later revokes the delegations. Changes of these directories by other clients wait until the
    /// delegations are returned or revoked.
    pub(super) async fn leave_names(self: &Arc<Self>) {
        let all = self.names().known().leave();
        let given_back = future::join_all(all.iter().map(|gone| self.give_back(&gone.handle, gone.stateid)));
        let _ = tokio::time::timeout(LEAVING, given_back).await;
    }

    /// Starts to return to the mgr the delegations of directories that the cache has dropped.
    fn give_back_names(self: &Arc<Self>, all: impl IntoIterator<Item = DelegationToReturn>) {
        for gone in all {
            let mount = self.clone();
            net::task::spawn_on(&self.runtime, async move { mount.give_back(&gone.handle, gone.stateid).await });
        }
    }

    async fn give_back(&self, handle: &Bytes, deleg_stateid: stateid4) {
        for attempt in 0..TRIES {
            let mut compound = Compound::new("returning a directory delegation").cached();
            compound.putfh(handle).op(OP_DELEGRETURN, &DELEGRETURN4args { deleg_stateid });
            // Ignore the results. An error means that the directory is removed or the delegation is revoked, so there
            // is nothing to return.
            match self.session.call(compound).await {
                Ok(_) => return,
                Err(error) => tracing::debug!("returning a directory delegation: {error}"),
            }
            tokio::time::sleep(recovery::pause(attempt)).await;
        }
    }
}
