//! Sizes of regular files, and how many bytes of each file are durable on the iods.

use super::Namespace;
use crate::Changed;
use crate::engine::Engine;
use crate::ops;
use crate::schema::{Whole, WriteEnd};
use crate::tx::Tx;
use types::{Cred, FileId, Status, Timestamp};

impl<E: Engine> Namespace<E> {
    /// Records a write that ended at the file offset `to` and whose bytes are durable on iods. A file size below `to`
    /// grows to `to`. The modification time becomes `mtime`, or `now` if `mtime` is `None`.
    ///
    /// The change is durable on completion (for LAYOUTCOMMIT and stable writes). Calls for the same file never
    /// conflict with one another.
    pub async fn set_size(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        to: impl Into<WriteEnd>,
        mtime: Option<Timestamp>,
    ) -> Result<Changed, Status> {
        let to = to.into();
        self.change(cred, now, |tx| ops::set_size::plan(tx, id, to, mtime, true)).await
    }

    /// Records a write as [`Self::set_size`] does, but for bytes that are not durable on the iods yet.
    pub async fn grow(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        to: impl Into<WriteEnd>,
        mtime: Option<Timestamp>,
    ) -> Result<Changed, Status> {
        let to = to.into();
        self.change(cred, now, |tx| ops::set_size::plan(tx, id, to, mtime, false)).await
    }

    /// Records an unstable write as [`Self::grow`] does. The change is visible on completion, but becomes durable only
    /// with a later [`Self::settle`] or a later durable change.
    ///
    /// Concurrent calls share one commit, and use the flush of concurrent durable changes.
    pub async fn record_write(
        &self,
        cred: &Cred,
        now: Timestamp,
        id: FileId,
        to: impl Into<WriteEnd>,
    ) -> Result<Changed, Status> {
        let to = to.into();
        let op = |tx: &mut Tx<'_>| {
            tx.not_durable();
            ops::set_size::plan(tx, id, to, None, false)
        };
        self.change(cred, now, op).await
    }

    /// Records that iods have bytes up to the file offset `end` that no LAYOUTCOMMIT has reported to the mgr. If the
    /// file size is already at least `end`, nothing changes, not even the times. Otherwise the file grows to `end`, and
    /// the change becomes durable only with a later [`Self::settle`] or a later durable change.
    pub async fn learn_size(&self, now: Timestamp, id: FileId, end: u64) -> Result<Changed, Status> {
        self.change(&Cred::root(), now, |tx| ops::set_size::learn(tx, id, end)).await
    }

    /// Raises [`crate::FileInfo::whole`], the file length for which every object durably has the required length.
    /// `known` says which object lengths have become durable. No attribute that clients see changes. A crash may undo
    /// the change, but loses no data.
    pub async fn record_whole(&self, now: Timestamp, id: FileId, known: Whole) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::set_size::whole(tx, id, known)).await
    }
}
