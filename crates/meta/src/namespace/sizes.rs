//! Sizes of regular files, and how far their bytes are on the disks of iods.

use super::Namespace;
use crate::Changed;
use crate::engine::Engine;
use crate::ops;
use crate::schema::{Reach, Whole};
use crate::tx::Tx;
use types::{Cred, FileId, Status, Timestamp};

impl<E: Engine> Namespace<E> {
    /// The file was written as far as `to` says, and iods have it on disk: its size grows to that, its times change (`mtime` if given, else `now`).
    ///
    /// Durable when it completes (LAYOUTCOMMIT, stable writes). Calls for one file never conflict with one another.
    pub async fn set_size(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        to: impl Into<Reach>,
        mtime: Option<Timestamp>,
    ) -> Result<Changed, Status> {
        let to = to.into();
        self.change(cred, now, |tx| ops::set_size::plan(tx, id, to, mtime, true)).await
    }

    /// As [`Self::set_size`], but of bytes that iods may still lose.
    pub async fn grow(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        to: impl Into<Reach>,
        mtime: Option<Timestamp>,
    ) -> Result<Changed, Status> {
        let to = to.into();
        self.change(cred, now, |tx| ops::set_size::plan(tx, id, to, mtime, false)).await
    }

    /// As [`Self::set_size`] for an unstable write: visible when it completes, but durable only by a later
    /// [`Self::settle`] or durable change.
    ///
    /// Notes that arrive together share one commit, and one that arrives with durable changes shares their flush.
    pub async fn note_write(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        to: impl Into<Reach>,
    ) -> Result<Changed, Status> {
        let to = to.into();
        let op = |tx: &mut Tx<'_>| {
            tx.not_durable();
            ops::set_size::plan(tx, id, to, None, false)
        };
        self.change(cred, now, op).await
    }

    /// As [`Self::note_write`], for what iods hold and no writer has told: nothing is changed where the file reaches as far
    /// already, its times included.
    pub async fn learn_size(&self, now: Timestamp, id: FileId, end: u64) -> Result<Changed, Status> {
        self.change(&Cred::root(), now, |tx| ops::set_size::learn(tx, id, end)).await
    }

    /// The objects of a file are on their disks as long as `known` says. No attribute that clients see changes, and what a crash loses of
    /// this is nothing but the knowledge.
    pub async fn note_whole(&self, now: Timestamp, id: FileId, known: Whole) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::set_size::whole(tx, id, known)).await
    }
}
