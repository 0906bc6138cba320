//! Deletion of the objects of deleted files: a background job that works through the durable deletion list. A file
//! stays on this list until every iod has deleted its objects of the file.

use super::{Context, Job};
use crate::clock::now;
use crate::counters::add;
use crate::kinds::Known;
use crate::volume::Volume;
use futures_util::{StreamExt, stream};
use meta::Doomed;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use types::{FileId, Status};

/// Largest number of files whose objects the job deletes concurrently.
const AT_ONCE: usize = 32;
/// Largest number of files that one read of the deletion list returns.
const PAGE: usize = 256;
/// Time until the job retries a deletion that failed because an iod was down or returned an error. The job retries
/// earlier if an iod connects.
const AGAIN: Duration = Duration::from_secs(10);

pub(super) struct DeleteObjects {
    volume: Arc<Volume>,
    came_up: watch::Receiver<u64>,
    /// Whether some files of the deletion list still had objects after the last pass of the job.
    left: bool,
}

impl Job for DeleteObjects {
    const NAME: &'static str = "deleting objects";

    fn new(context: &Context) -> Self {
        DeleteObjects { volume: context.volume.clone(), came_up: context.came_up(), left: false }
    }

    async fn due(&mut self) {
        tokio::select! {
            biased;
            () = self.volume.doomed.notified() => {}
            // Wait until an iod connects. This wait fails only if the sender of the notification is dropped, and
            // `volume` keeps the sender, so ignore the result.
            _ = self.came_up.changed() => {}
            () = tokio::time::sleep(AGAIN), if self.left => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.came_up.mark_unchanged();
        self.left = walk(&self.volume).await?;
        Ok(())
    }

    fn failed(&mut self, error: Status) {
        tracing::error!("cannot read or change the list of files to be deleted: {error}");
        self.left = true;
    }
}

/// Tries once to delete the objects of every file on the deletion list. Returns whether some file still has objects.
async fn walk(volume: &Volume) -> Result<bool, Status> {
    let mut after = FileId(0);
    let mut left = false;
    loop {
        let page = volume.namespace.doomed(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(left) };
        // Wait until the removals of the names of these files are durable. A power failure may undo a removal that is
        // not durable, and the file must then still have its bytes.
        volume.namespace.settle().await?;
        after = last.id;
        let count = page.len();
        let ends: Vec<_> = page.into_iter().map(|doomed| end(volume, doomed)).collect();
        let outcomes: Vec<Option<FileId>> = stream::iter(ends).buffer_unordered(AT_ONCE).collect().await;
        let done: Vec<FileId> = outcomes.into_iter().flatten().collect();
        add(&volume.counters.objects_swept, done.len() as u64);
        add(&volume.counters.sweeps_postponed, (count - done.len()) as u64);
        left |= done.len() < count;
        volume.namespace.forget_doomed(now(), &done).await?;
    }
}

/// Deletes the objects of one file. Returns the file if every iod has deleted its objects.
async fn end(volume: &Volume, doomed: Doomed) -> Option<FileId> {
    let known = Known::nothing(doomed.id, doomed.generation);
    let objects = volume.kinds.open(&volume.iods, known, &doomed.layout);
    let removed = match objects {
        Ok(objects) => objects.remove().await,
        Err(e) => Err(e),
    };
    match removed {
        Ok(()) => Some(doomed.id),
        Err(e) => {
            tracing::debug!(file = doomed.id.0, "objects cannot be deleted yet: {e}");
            None
        }
    }
}
