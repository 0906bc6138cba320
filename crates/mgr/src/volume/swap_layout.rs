//! The swap of a file's objects: the mgr moves the bytes of a file to other objects while clients use it. The new
//! objects are of the next stream, so they may be on the same iods.
//!
//! The mgr recalls all layouts of the file and grants no other one. Then it locks the file: reads through the mgr go
//! on, writes and truncations wait. It notes the new objects durably, fences the old ones, copies them, and swaps the
//! layout record. So a write waits for as long as the copy takes, and not while a client is slow to return its layout.
//!
//! A mgr that stops at any point leaves one record of unused objects: the new ones before the swap, the old ones after
//! it. `background/delete_unused.rs` removes them. A client that kept its layout was fenced when the layout was
//! revoked. The old objects refuse its requests, and it asks for a layout again.

use super::Volume;
use super::gathering::Why;
use crate::clock::now;
use crate::counters::add;
use crate::fs::NfsServer;
use crate::kinds::{Known, Stored};
use crate::moves::{Moving, Stage};
use layout::gather::Part;
use meta::Layout;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use types::{FileId, Generation, Status};

/// How long layouts may be held, in lease periods: a recall takes one, and a layout granted meanwhile another one.
const LEASES: u32 = 3;
/// The pause after which layouts are recalled that were granted during the recall.
const AGAIN: Duration = Duration::from_millis(20);
/// How often the swap is tried again after a fence that came in between.
const TRIES: usize = 8;

/// The layouts of a file before and after the swap.
struct Swap {
    file: FileId,
    from: Layout,
    to: Layout,
}

/// Moves a file to new objects on these iods; see [`crate::Running::swap_layout`].
pub(crate) async fn run(server: &NfsServer, file: FileId, iods: &[u16]) -> Result<(), Status> {
    let volume = &server.fs().0;
    let moving = volume.moves.begin(file, Stage::Recalling)?;
    let swap = volume.to_swap(file, iods)?;
    let frozen = server.freeze_layouts(file);
    take_layouts(server, file).await?;
    moving.close();
    volume.swap_closed(&moving, &swap).await?;
    drop((moving, frozen));
    add(&volume.counters.layouts_swapped, 1);
    // The file has its new objects. A fence that fails now is noted, and finished in the background.
    if let Err(e) = volume.finish_fence(file).await {
        tracing::debug!(file = file.0, "the new objects cannot be fenced yet: {e}");
    }
    Ok(())
}

/// Recalls the layouts of a file until no client has one.
async fn take_layouts(server: &NfsServer, file: FileId) -> Result<(), Status> {
    let Volume { grants, moves, lease_secs, .. } = &*server.fs().0;
    let limit = Duration::from_secs((*lease_secs).into()) * LEASES;
    let deadline = Instant::now() + limit;
    loop {
        server.recall(file, None, now()).await;
        // Ask in this order: a grant is recorded as held before it stops counting as in progress.
        if !moves.is_granting(file) && !grants.is_held(file) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Status::Delay);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Volume {
    /// Returns the layouts of a move to these iods.
    fn to_swap(&self, file: FileId, iods: &[u16]) -> Result<Swap, Status> {
        let info = self.regular(file)?;
        let from = info.layout.filter(Layout::is_final).ok_or(Status::Inval)?;
        let old = self.kinds.open(&self.iods, Known::nothing(file, info.generation), &from)?;
        let (known, wanted) = (self.iods.numbers(), BTreeSet::from_iter(iods));
        let are_known = iods.iter().all(|iod| known.contains(iod));
        if iods.len() != old.count() || wanted.len() != iods.len() || !are_known {
            return Err(Status::Inval);
        }
        let to = Layout { kind: from.kind, body: old.next_record(iods)? };
        Ok(Swap { file, from, to })
    }

    /// Moves the bytes of a file of which no client has a layout, and swaps its layout.
    async fn swap_closed(&self, moving: &Moving<'_>, swap: &Swap) -> Result<(), Status> {
        let file = swap.file;
        // Waits for the changes that have begun.
        let _alone = self.locks.alone(file).await;
        self.finish_cut_alone(file).await?;
        self.settled_held(file, Part::All, Why::Layout).await?;
        let begun = self.begin_swap(swap).await?;
        let info = self.regular(file)?;
        let old = self.kinds.open(&self.iods, Known::from(&info), &swap.from)?;
        old.move_to(&swap.to.body, begun).await?;
        for _ in 0..TRIES {
            // A fence for another reason may have raised the generation.
            let generation = self.regular(file)?.generation;
            let swapped = self.namespace.swap_layout(now(), file, (&swap.from, generation), begun).await?;
            if let Some(raised) = swapped {
                moving.swapped();
                self.notes.fence_noted(file, raised);
                return Ok(());
            }
        }
        Err(Status::Delay)
    }

    /// Returns `Exist` if one of the new objects exists. A store that was recovered from an older copy does not know
    /// the objects that a later move made.
    async fn check_absent(&self, new: &dyn Stored) -> Result<(), Status> {
        #[cfg(feature = "planted")]
        if types::planted::is_planted(types::planted::Planted::SameStream) {
            return Ok(());
        }
        if new.any_exists().await? {
            tracing::error!(object = %new.object(), "a move needs an object that exists already");
            return Err(Status::Exist);
        }
        Ok(())
    }

    /// Notes the new objects, and fences the old ones: from then on their bytes do not change.
    async fn begin_swap(&self, swap: &Swap) -> Result<Generation, Status> {
        let file = swap.file;
        let known = Known::from(&self.regular(file)?);
        self.kinds.open(&self.iods, known, &swap.from)?.all_up()?;
        let new = self.kinds.open(&self.iods, known, &swap.to)?;
        new.all_up()?;
        if self.namespace.unused_of(file)?.is_some() {
            return Err(Status::Delay);
        }
        self.check_absent(&*new).await?;
        let begun = self.namespace.begin_swap(now(), file, &swap.from, &swap.to).await?.ok_or(Status::Delay)?;
        self.notes.fence_noted(file, begun);
        self.notes.covered(file);
        self.finish_fence(file).await?;
        Ok(begun)
    }
}
