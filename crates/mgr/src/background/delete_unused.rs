//! Deletion of unused objects: a background task that removes the objects that layout swaps left unused, from every
//! iod.
//!
//! Unused objects stay for one lease period after the task has first seen their record. A client that lost its layout
//! may not know that yet. While the object exists, it refuses the client's requests, because it is fenced. A missing
//! object would read as zeros.

use super::{Context, Job};
use crate::clock::now;
use crate::counters::add;
use crate::kinds::{Known, Stored};
use crate::moves::Stage;
use crate::volume::Volume;
use meta::Unused;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use types::{FileId, Generation, Status};

/// Number of records that one read of the list returns at most.
const PAGE: usize = 256;
/// Time until the next pass after a failure, if no iod comes up and no move ends.
const AGAIN: Duration = Duration::from_secs(10);

/// When the task has first seen each record.
type Seen = HashMap<(FileId, Generation), Instant>;

/// The deletion of unused objects.
pub(super) struct DeleteUnused {
    volume: Arc<Volume>,
    came_up: watch::Receiver<u64>,
    seen: Seen,
    /// When to retry the objects that the last pass could not remove.
    next: Option<Instant>,
}

impl Job for DeleteUnused {
    const NAME: &'static str = "deleting unused objects";

    fn new(context: &Context) -> Self {
        DeleteUnused { volume: context.volume.clone(), came_up: context.came_up(), seen: Seen::new(), next: None }
    }

    async fn due(&mut self) {
        let next = self.next;
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.volume.moves.ended.notified() => {}
            // The sender lives in `volume`.
            _ = self.came_up.changed() => {}
            () = due => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.came_up.mark_unchanged();
        self.next = walk(&self.volume, &mut self.seen).await?;
        Ok(())
    }

    fn failed(&mut self, error: Status) {
        tracing::error!("cannot read or change the list of unused objects: {error}");
        self.next = Some(Instant::now() + AGAIN);
    }
}

/// Tries every record once; returns when to try the rest, if any is left.
async fn walk(volume: &Volume, seen: &mut Seen) -> Result<Option<Instant>, Status> {
    let lease = Duration::from_secs(volume.lease_secs.into());
    let (mut after, mut next, mut still) = (FileId(0), None::<Instant>, Seen::new());
    loop {
        let page = volume.namespace.unused(after, PAGE)?;
        let Some(last) = page.last() else { break };
        after = last.file;
        for unused in page {
            // An older copy of the store does not know which of the objects have the bytes.
            if unused.file < volume.kept_below {
                continue;
            }
            let key = (unused.file, unused.generation);
            let first = seen.get(&key).copied().unwrap_or_else(Instant::now);
            still.insert(key, first);
            let due = match first + lease {
                due if due > Instant::now() => due,
                _ if remove(volume, &unused).await? => continue,
                _ => Instant::now() + AGAIN,
            };
            next = Some(next.map_or(due, |next| next.min(due)));
        }
    }
    *seen = still;
    Ok(next)
}

/// Deletes unused objects and forgets them; returns `false` if they have to wait.
async fn remove(volume: &Volume, unused: &Unused) -> Result<bool, Status> {
    // While a swap of the file runs, these may be its new objects.
    let Ok(_removing) = volume.moves.begin(unused.file, Stage::Removing) else { return Ok(false) };
    if volume.namespace.unused_of(unused.file)?.as_ref() != Some(unused) {
        return Ok(true);
    }
    // A power failure may undo a swap that is not durable yet: then the file must still have its bytes.
    volume.namespace.settle().await?;
    let known = Known::nothing(unused.file, unused.generation);
    let objects = volume.kinds.open(&volume.iods, known, &unused.layout);
    let removed = match objects {
        // No later layout of the file names these objects: a late write must not create one again.
        Ok(objects) if is_retired(volume, &*objects)? => objects.remove().await,
        Ok(objects) => objects.remove_unused().await,
        Err(e) => Err(e),
    };
    if let Err(e) = removed {
        tracing::debug!(file = unused.file.0, "unused objects cannot be deleted yet: {e}");
        return Ok(false);
    }
    add(&volume.counters.unused_swept, 1);
    volume.namespace.forget_unused(now(), unused).await?;
    Ok(true)
}

/// Returns whether no layout of the file will ever name these unused objects: the file is gone, or its objects are of a
/// later stream. Then clients may have rights to the objects. Only the mgr ever had rights to the others, the new
/// objects of an unfinished move.
fn is_retired(volume: &Volume, unused: &dyn Stored) -> Result<bool, Status> {
    let info = match volume.namespace.info(unused.known().file) {
        Err(Status::Stale) => return Ok(true),
        info => info?,
    };
    let used = volume.objects(&info)?;
    Ok(used.is_some_and(|used| unused.object().stream < used.object().stream))
}
