//! Swaps of layouts, and the objects that they leave unused.

use super::Namespace;
use crate::engine::Engine;
use crate::{Layout, Unused, ops};
use types::{Cred, FileId, Generation, Status, Timestamp};

impl<E: Engine> Namespace<E> {
    /// Returns the unused objects of up to `max` files with numbers above `after`.
    pub fn unused(&self, after: FileId, max: usize) -> Result<Vec<Unused>, Status> {
        self.read(&Cred::root(), |tx| ops::unused::read(tx, after, max))
    }

    /// Returns the unused objects of a file, if there are any.
    pub fn unused_of(&self, file: FileId) -> Result<Option<Unused>, Status> {
        self.read(&Cred::root(), |tx| ops::unused::of(tx, file))
    }

    /// Notes that objects of the layout `to` are about to be made for a file with the layout `from`, and fences the
    /// file as [`Self::fence`] does. Returns the new generation; `None` if the file does not have this layout.
    ///
    /// # Errors
    /// `Delay` while the file has unused objects.
    pub async fn begin_swap(
        &self,
        now: Timestamp,
        id: FileId,
        from: &Layout,
        to: &Layout,
    ) -> Result<Option<Generation>, Status> {
        self.change(&Cred::root(), now, |tx| ops::swap_layout::begin(tx, id, from, to)).await
    }

    /// Gives a file the layout of its unused objects, which have its bytes durably. The objects that it used so far are
    /// unused from then on. Fences the file as [`Self::fence`] does and returns the new generation.
    ///
    /// `None` if the file has changed: `from` is its expected layout, with its generation, and `begun` the generation
    /// that [`Self::begin_swap`] returned.
    pub async fn swap_layout(
        &self,
        now: Timestamp,
        id: FileId,
        from: (&Layout, Generation),
        begun: Generation,
    ) -> Result<Option<Generation>, Status> {
        self.change(&Cred::root(), now, |tx| ops::swap_layout::plan(tx, id, from, begun)).await
    }

    /// Forgets unused objects that are gone from every iod, unless their record has changed since. Only a later durable
    /// change makes this durable: after a crash they may be listed again.
    pub async fn forget_unused(&self, now: Timestamp, done: &Unused) -> Result<(), Status> {
        self.change(&Cred::root(), now, |tx| ops::unused::forget(tx, done)).await
    }
}
