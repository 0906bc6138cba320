//! Asking for the names of directories, and giving them back: see [`crate::negative`].

use super::names::check_answer;
use super::{Inner, Mount, Node};
use crate::compound::{Caller, Compound, Failed};
use crate::counters::add;
use crate::negative::{Gone, Negative, Removal};
use crate::{Error, Result};
use bytes::Bytes;
use futures_util::future;
use nfs::attrs::Mask;
use nfs::client::recovery;
use nfs::names::OWN_CHANGES;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use types::limits::PAYLOAD_MAX;
use types::{FileId, Status, Timestamp};
use wire::nfs4::*;

/// Bytes of names asked for in one READDIR.
const PAGE_BYTES: u32 = 512 << 10;
const _: () = assert!((PAGE_BYTES as usize) < PAYLOAD_MAX);
/// How often it is tried to give a delegation back.
const TRIES: u32 = 8;
/// How long a mount that ends waits for that.
const LEAVING: Duration = Duration::from_secs(1);

/// The names that are known not to be there.
#[derive(Default)]
pub(crate) struct Names {
    known: Mutex<Negative<Caller>>,
    /// Who asks.
    mount: OnceLock<Weak<Inner>>,
}

/// A request that may make a name, until it is dropped.
pub(crate) struct Making<'a> {
    mount: &'a Arc<Inner>,
    dir: FileId,
    name: &'a [u8],
    answered: bool,
}

impl Making<'_> {
    /// The mgr has answered: nothing more will come of it.
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

    /// Who gives back what is asked back.
    pub(super) fn belong_to(&self, mount: &Arc<Inner>) {
        let _ = self.mount.set(Arc::downgrade(mount));
    }

    /// The mgr asks a delegation back; whether there is one, which then happens.
    pub(crate) fn recall(&self, stateid: &stateid4) -> bool {
        let Some(gone) = self.known().lose(stateid, now()) else { return false };
        if let Some(mount) = self.mount.get().and_then(Weak::upgrade) {
            mount.give_back_names([gone]);
        }
        true
    }

    /// Whether no answer is on its way that may bring a delegation.
    pub(crate) fn are_opens_answered(&self) -> bool {
        let counts = self.mount.get().and_then(Weak::upgrade).map(|mount| mount.opens_asked());
        counts.is_some_and(|(asked, answered)| asked == answered)
    }

    /// Gives back a delegation that nobody here knows.
    pub(crate) fn give_back_unknown(&self, handle: &Bytes, stateid: stateid4) {
        if let Some(mount) = self.mount.get().and_then(Weak::upgrade) {
            mount.give_back_names([Gone { handle: handle.clone(), stateid }]);
        }
    }

    /// The mgr has taken a delegation away.
    pub(crate) fn lose(&self, stateid: &stateid4) {
        self.known().lose(stateid, now());
    }

    /// This mount has changed who may do what with a directory, perhaps.
    pub(super) fn permissions_changed(&self, dir: FileId) {
        self.known().permissions_changed(dir);
    }

    /// All delegations of names.
    pub(crate) fn held(&self) -> Vec<stateid4> {
        self.known().held()
    }
}

impl Mount {
    /// The error of a name that is not there, if the mgr need not be asked for that.
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

    /// The mgr has said that there is no such name in a directory. Where that happens often, its names are asked for, beside everything else.
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

    /// Asks for the delegation, and reads all names; whether they are all known now.
    async fn read_names(&self, dir: &Node, number: u64, epoch: u64) -> Result<bool> {
        let mut compound = self.compound("asking for the names in a directory").cached();
        let gdda_notification_types = Mask::of(&[OWN_CHANGES]).to_bitmap();
        let args = GET_DIR_DELEGATION4args { gdda_notification_types, ..GET_DIR_DELEGATION4args::default() };
        compound.putfh(&dir.handle).op(OP_GET_DIR_DELEGATION, &args);
        // A recall that comes before the answer is not of something unknown.
        let asking = self.inner.ask();
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let given = match results.raw::<GET_DIR_DELEGATION4res_non_fatal>(OP_GET_DIR_DELEGATION) {
            Ok(GET_DIR_DELEGATION4res_non_fatal::GDD4_OK(given)) => given.gddr_stateid,
            // Others change it, or the mgr is of another kind.
            Ok(GET_DIR_DELEGATION4res_non_fatal::GDD4_UNAVAIL(_)) | Err(Failed::Nfs(_)) => return Ok(false),
            Err(failed) => return Err(results.error(&failed)),
        };
        let given = Gone { handle: dir.handle.clone(), stateid: given };
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
                _ => return Err(Error::protocol(format!("{what}: the mgr does not get on"))),
            }
        }
    }
}

impl Inner {
    pub(crate) fn names(&self) -> &Names {
        &self.inodes.names
    }

    /// A request is about to be sent that may make a name in a directory.
    pub(crate) fn makes<'a>(self: &'a Arc<Self>, dir: &Node, name: &'a [u8]) -> Making<'a> {
        let back = self.names().known().makes(dir.id, name, now());
        self.give_back_names(back);
        Making { mount: self, dir: dir.id, name, answered: false }
    }

    /// A request is about to be sent that removes a name, or moves it away.
    pub(crate) fn removes(&self, dir: &Node, name: &[u8]) -> Option<Removal> {
        self.names().known().removes(dir.id, name)
    }

    /// The mgr has done that.
    pub(crate) fn removed(&self, removal: Option<Removal>) {
        if let Some(removal) = removal {
            self.names().known().removed(removal);
        }
    }

    /// Gives all delegations of names back, if the mgr answers soon: others would not wait for them for long.
    pub(super) async fn leave_names(self: &Arc<Self>) {
        let all = self.names().known().leave();
        let given_back = future::join_all(all.iter().map(|gone| self.give_back(&gone.handle, gone.stateid)));
        let _ = tokio::time::timeout(LEAVING, given_back).await;
    }

    /// Gives delegations back of which nothing is known any more.
    fn give_back_names(self: &Arc<Self>, all: impl IntoIterator<Item = Gone>) {
        for gone in all {
            let mount = self.clone();
            net::task::spawn_on(&self.runtime, async move { mount.give_back(&gone.handle, gone.stateid).await });
        }
    }

    async fn give_back(&self, handle: &Bytes, deleg_stateid: stateid4) {
        for attempt in 0..TRIES {
            let mut compound = Compound::new("giving back the names of a directory").cached();
            compound.putfh(handle).op(OP_DELEGRETURN, &DELEGRETURN4args { deleg_stateid });
            // Without the directory there is no delegation of it, and what was taken away is gone as well.
            match self.session.call(compound).await {
                Ok(_) => return,
                Err(error) => tracing::debug!("giving back the names of a directory: {error}"),
            }
            tokio::time::sleep(recovery::pause(attempt)).await;
        }
    }
}
