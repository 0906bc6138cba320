//! The layout swap: the mgr moves the bytes of a file to new objects while clients use the file. The new objects are of
//! the next stream, so they may be on the same iods.
//!
//! The mgr recalls all layouts of the file and grants no new one. Then it locks the file: reads on the mgr path
//! continue, and writes and truncations wait. The mgr records the new objects as unused objects, fences the old
//! objects, copies the bytes, and swaps the layout record. So a write waits as long as the copy takes, but it does not
//! wait for a client that is slow to return its layout.
//!
//! If the mgr stops at any point, one record of unused objects is left. Before the swap, this record names the new
//! objects, and after the swap the old objects. The background job `delete_unused` deletes the objects that the record
//! names. A client that kept its layout was fenced when the mgr revoked the layout. The old objects refuse its
//! requests, and the client requests a new layout.

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

/// Time limit for the return of all layouts of a file, in lease periods. A recall may take one lease period. A second
/// recall, for a layout that the mgr granted during the first recall, may take another lease period.
const LEASES: u32 = 3;
/// Pause between two recalls of the layouts of a file. A further recall is for layouts whose grant was in progress
/// during the previous recall.
const AGAIN: Duration = Duration::from_millis(20);
/// Largest number of attempts to swap the layout record. An attempt fails if a fence that does not belong to the move
/// raises the generation of the file.
const TRIES: usize = 8;

/// The layout records of a file before and after a layout swap.
struct Swap {
    file: FileId,
    from: Layout,
    to: Layout,
}

/// Moves a file to new objects on these iods, as [`crate::Running::swap_layout`] describes.
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
    // The layout record already names the new objects. If fencing the new objects fails now, a background job completes
    // the fence later, because the store has its intent.
    if let Err(e) = volume.finish_fence(file).await {
        tracing::debug!(file = file.0, "the new objects cannot be fenced yet: {e}");
    }
    Ok(())
}

/// Folds a log file: moves it to striped objects on the same iods. Fails with `Inval` for a file of any other stored
/// kind.
pub(crate) async fn fold(server: &NfsServer, file: FileId) -> Result<(), Status> {
    let volume = &server.fs().0;
    let iods = volume.iods_of_log_file(file)?;
    run(server, file, &iods).await
}

/// Recalls the layouts of a file until no client holds one. Fails with `Delay` after the time limit of [`LEASES`].
async fn take_layouts(server: &NfsServer, file: FileId) -> Result<(), Status> {
    let Volume { grants, moves, lease_secs, .. } = &*server.fs().0;
    let limit = Duration::from_secs((*lease_secs).into()) * LEASES;
    let deadline = Instant::now() + limit;
    loop {
        server.recall(file, None, now()).await;
        // Check `is_granting` before `is_held`: a layout grant in progress is recorded in `grants` before it stops
        // being in progress. So these two checks miss no layout.
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
    /// Returns the iods of a log file. Fails with `Inval` for a file of any other stored kind.
    fn iods_of_log_file(&self, file: FileId) -> Result<Vec<u16>, Status> {
        let objects = self.objects(&self.regular(file)?)?.filter(|objects| objects.index().is_some());
        objects.map(|objects| objects.iods().to_vec()).ok_or(Status::Inval)
    }

    /// Returns the layout records of the file before and after a move to these iods.
    fn to_swap(&self, file: FileId, iods: &[u16]) -> Result<Swap, Status> {
        let info = self.regular(file)?;
        let from = info.layout.filter(Layout::is_final).ok_or(Status::Inval)?;
        let old = self.kinds.open(&self.iods, Known::nothing(file, info.generation), &from)?;
        let (known, wanted) = (self.iods.numbers(), BTreeSet::from_iter(iods));
        let are_known = iods.iter().all(|iod| known.contains(iod));
        if iods.len() != old.count() || wanted.len() != iods.len() || !are_known {
            return Err(Status::Inval);
        }
        let to = old.next_layout(iods)?;
        Ok(Swap { file, from, to })
    }

    /// Moves the bytes of a file to new objects and swaps its layout record. No client may hold a layout of the file.
    async fn swap_closed(&self, moving: &Moving<'_>, swap: &Swap) -> Result<(), Status> {
        let file = swap.file;
        // Get the exclusive lock of the file, which waits for changes in progress.
        let _alone = self.locks.alone(file).await;
        self.finish_cut_alone(file).await?;
        self.settled_held(file, Part::All, Why::Layout).await?;
        let begun = self.begin_swap(swap).await?;
        let info = self.regular(file)?;
        let old = self.kinds.open(&self.iods, Known::from(&info), &swap.from)?;
        old.move_to(&swap.to, begun).await?;
        for _ in 0..TRIES {
            // A fence that does not belong to the move may have raised the generation of the file. So read the
            // generation again for each attempt to swap the layout record.
            let generation = self.regular(file)?.generation;
            let swapped = self.namespace.swap_layout(now(), file, (&swap.from, generation), begun).await?;
            if let Some(raised) = swapped {
                moving.swapped();
                self.intents.record_fence(file, raised);
                return Ok(());
            }
        }
        Err(Status::Delay)
    }

    /// Fails with `Exist` if one of the new objects exists. An object exists if an earlier move created it, and the
    /// store was then recovered from an older copy without the record of this move.
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

    /// Records the new objects as unused objects, and fences the old objects, so that the bytes of the old objects no
    /// longer change.
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
        self.intents.record_fence(file, begun);
        self.intents.covered(file);
        self.finish_fence(file).await?;
        Ok(begun)
    }
}
