//! Sizes of regular files, and how many of their bytes are on the disks of iods.

use super::Namespace;
use crate::Changed;
use crate::engine::Engine;
use crate::ops;
use crate::schema::{Reach, Whole};
use crate::tx::Tx;
use types::{Cred, FileId, Status, Timestamp};

impl<E: Engine> Namespace<E> {
    /// Records that a file was written up to `to` and that iods have these bytes on disk. The size grows to `to`, and
    /// the times change (`mtime` if given, else `now`).
    ///
    /// The change is durable when it completes (LAYOUTCOMMIT, stable writes). Calls for one file never conflict with
    /// one another.
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

    /// As [`Self::set_size`], but for bytes that iods may still lose.
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
    /// Calls that arrive together share one commit, and a call that arrives with durable changes shares their flush.
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

    /// As [`Self::note_write`], for bytes that iods hold and no writer has reported. If the file already reaches to
    /// `end`, nothing changes, the times included.
    pub async fn learn_size(&self, now: Timestamp, id: FileId, end: u64) -> Result<Changed, Status> {
        self.change(&Cred::root(), now, |tx| ops::set_size::learn(tx, id, end)).await
    }

    /// Records that the objects of a file are as long on their disks as `known` says. No attribute that clients see
    /// changes. A crash can lose only this knowledge.
    pub async fn note_whole(&self, now: Timestamp, id: FileId, known: Whole) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::set_size::whole(tx, id, known)).await
    }
}
