//! Swaps of a file's layout, which move the bytes of the file to other objects, and the list of objects that a swap
//! leaves unused.

use super::Namespace;
use crate::engine::Engine;
use crate::{Layout, Unused, ops};
use types::{Cred, FileId, Generation, Status, Timestamp};

impl<E: Engine> Namespace<E> {
    /// Returns the unused objects of up to `max` files with inode numbers above `after`.
    pub fn unused(&self, after: FileId, max: usize) -> Result<Vec<Unused>, Status> {
        self.read(&Cred::root(), |tx| ops::unused::read(tx, after, max))
    }

    /// Returns the unused objects of a file; `None` if there are none.
    pub fn unused_of(&self, file: FileId) -> Result<Option<Unused>, Status> {
        self.read(&Cred::root(), |tx| ops::unused::of(tx, file))
    }

    /// Begins a swap from the layout `from` to the layout `to`. Records that the caller is about to create the objects
    /// of `to`, and fences the file as [`Self::fence`] does. Returns the new generation; `None` if the layout of the
    /// file is not `from`.
    ///
    /// # Errors
    /// `Delay` while the file has unused objects of an earlier swap.
    pub async fn begin_swap(
        &self,
        now: Timestamp,
        id: FileId,
        from: &Layout,
        to: &Layout,
    ) -> Result<Option<Generation>, Status> {
        self.change(&Cred::root(), now, |tx| ops::swap_layout::begin(tx, id, from, to)).await
    }

    /// Completes a swap: the file gets the layout whose objects the caller has made durable, and its old objects
    /// become unused. Fences the file as [`Self::fence`] does and returns the new generation.
    ///
    /// Returns `None` and changes nothing if the file no longer has the layout and the generation `from`, or if the
    /// swap did not begin with the generation `begun` (from [`Self::begin_swap`]).
    pub async fn swap_layout(
        &self,
        now: Timestamp,
        id: FileId,
        from: (&Layout, Generation),
        begun: Generation,
    ) -> Result<Option<Generation>, Status> {
        self.change(&Cred::root(), now, |tx| ops::swap_layout::plan(tx, id, from, begun)).await
    }

    /// Removes the record `done` of a file's unused objects after the objects were removed from every iod. Does
    /// nothing if the store now has another record. The removal becomes durable only with a later durable change, so
    /// the record may reappear after a crash.
    pub async fn forget_unused(&self, now: Timestamp, done: &Unused) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::unused::forget(tx, done)).await
    }
}
