//! Deletion of unused objects: a background job that deletes the objects that a layout swap has left on the iods.
//!
//! The job keeps the objects for one lease period after it has first read their record in the metadata store. A client
//! may not have noticed yet that it lost its old layout. The old object is fenced, so the iod refuses the requests of
//! this client as long as the object exists. If the object were missing, the client would read zeros.

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

/// Largest number of records that one read of the list of unused objects returns.
const PAGE: usize = 256;
/// Time until the job retries a failed deletion. The job retries earlier if an iod connects or a move ends.
const AGAIN: Duration = Duration::from_secs(10);

/// For each record of unused objects: when the job read the record for the first time.
type Seen = HashMap<(FileId, Generation), Instant>;

pub(super) struct DeleteUnused {
    volume: Arc<Volume>,
    came_up: watch::Receiver<u64>,
    seen: Seen,
    /// When the job retries the deletions that failed in its last pass; `None` if none failed.
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
            // Wait until an iod connects. This wait fails only if the sender of the notification is dropped, and
            // `volume` keeps the sender, so ignore the result.
            _ = self.came_up.changed() => {}
            () = due => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.came_up.mark_unchanged();
        // A cancelled move wakes this job while the store may still be committing the record of the move's unused
        // objects. So wait for the commit. Otherwise the job could miss the record, and sleep until the next move ends.
        self.volume.namespace.settle().await?;
        self.next = walk(&self.volume, &mut self.seen).await?;
        Ok(())
    }

    fn failed(&mut self, error: Status) {
        tracing::error!("cannot read or change the list of unused objects: {error}");
        self.next = Some(Instant::now() + AGAIN);
    }
}

/// Tries once to delete the unused objects of every record. Returns when the job must retry, or `None` if no record is
/// left.
async fn walk(volume: &Volume, seen: &mut Seen) -> Result<Option<Instant>, Status> {
    let lease = Duration::from_secs(volume.lease_secs.into());
    let (mut after, mut next, mut still) = (FileId(0), None::<Instant>, Seen::new());
    loop {
        let page = volume.namespace.unused(after, PAGE)?;
        let Some(last) = page.last() else { break };
        after = last.file;
        for unused in page {
            // The metadata store was recovered from an older copy (`weir mgr --recover-old-store`). Its outdated record
            // may name the objects that now have the bytes of this file, so keep these objects.
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

/// Deletes the unused objects that a record names, and then the record. Returns `false` if the objects cannot be
/// deleted yet.
async fn remove(volume: &Volume, unused: &Unused) -> Result<bool, Status> {
    // While a move of the file runs, the unused objects may be the new objects of this move, so keep them.
    let Ok(_removing) = volume.moves.begin(unused.file, Stage::Removing) else { return Ok(false) };
    if volume.namespace.unused_of(unused.file)?.as_ref() != Some(unused) {
        return Ok(true);
    }
    // A power failure may undo a layout swap that is not durable. The old objects must then still have the bytes of the
    // file, so wait until the swap is durable.
    volume.namespace.settle().await?;
    let known = Known::nothing(unused.file, unused.generation);
    let objects = volume.kinds.open(&volume.iods, known, &unused.layout);
    let removed = match objects {
        // No later layout of the file names these objects, so let the iods keep tombstones. A late write then cannot
        // create an object again.
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

/// Returns whether no layout of the file will ever name these unused objects. This holds if the file is deleted, or if
/// the objects belong to an older stream than the objects of the file. Clients may still have rights to such objects.
/// All other unused objects are the new objects of an unfinished move, to which only the mgr has rights.
fn is_retired(volume: &Volume, unused: &dyn Stored) -> Result<bool, Status> {
    let info = match volume.namespace.info(unused.known().file) {
        Err(Status::Stale) => return Ok(true),
        info => info?,
    };
    let used = volume.objects(&info)?;
    Ok(used.is_some_and(|used| unused.object().stream < used.object().stream))
}
