//! The rebuilder: a background job that restores lost copies of objects from another copy.
//!
//! The job repairs files in which a read found a lost copy. When an iod connects, the job also checks all files with
//! copies on this iod, because the iod may have lost copies while it was down.

use super::{Context, Job};
use crate::iods::Link;
use crate::proxy::Suspect;
use crate::proxy::remember;
use crate::volume::{Suspects, Volume};
use futures_util::{StreamExt, stream};
use meta::FileState;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use types::{FileId, Status};

/// Largest number of inodes that one read of the namespace returns.
const PAGE: usize = 256;
/// Largest number of files that the job checks and rebuilds concurrently. Most of this work waits for a disk of an iod.
const AT_ONCE: usize = 16;
/// Seconds for which the job sleeps after each second of checking files without lost copies.
const REST: u32 = 4;
/// Shortest sleep after the check of one page of files ([`PAGE`]).
const REST_MIN: Duration = Duration::from_millis(5);
/// Largest number of files with postponed repairs that the job remembers. If more repairs are postponed, the job checks
/// all files again.
const WAITING_MAX: usize = 65_536;
/// Time until the job retries a failed repair or check.
const AGAIN: Duration = Duration::from_secs(10);

pub(super) struct RebuildCopies {
    volume: Arc<Volume>,
    came_up: watch::Receiver<u64>,
    /// For each iod number: the link (connections) to the iod during the last pass over all files.
    walked: HashMap<u16, Weak<Link>>,
    /// Files whose repair is postponed, because an iod is down or a client may write them.
    left: Suspects,
    /// Whether the job completed its last pass over all files.
    done: bool,
}

impl Job for RebuildCopies {
    const NAME: &'static str = "rebuilding copies";

    fn new(context: &Context) -> Self {
        let (volume, came_up) = (context.volume.clone(), context.came_up());
        RebuildCopies { volume, came_up, walked: HashMap::new(), left: Suspects::new(), done: true }
    }

    async fn due(&mut self) {
        tokio::select! {
            // Wait until an iod connects. This wait fails only if the sender of the notification is dropped, and
            // `volume` keeps the sender, so ignore the result.
            _ = self.came_up.changed() => {}
            () = self.volume.damaged.met.notified() => {}
            () = tokio::time::sleep(AGAIN), if !self.left.is_empty() || !self.done => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.came_up.mark_unchanged();
        let volume = &*self.volume;
        // If reads have found further damage in a file whose repair is postponed, repair the old and the new damage
        // together.
        for (file, suspects) in volume.damaged.take() {
            remember(self.left.entry(file).or_default(), &suspects);
        }
        self.left = retry(volume, std::mem::take(&mut self.left)).await;
        let up = volume.iods.up();
        let is_new = |(number, link): &&(u16, Arc<Link>)| {
            self.walked.get(number).is_none_or(|old| old.as_ptr() != Arc::as_ptr(link))
        };
        let new: BTreeSet<u16> = up.iter().filter(is_new).map(|(number, _)| *number).collect();
        let walked = if new.is_empty() { Ok(()) } else { walk(volume, &new, &mut self.left).await };
        self.done = walked.is_ok();
        if walked.is_ok() && !new.is_empty() {
            self.walked = up.iter().map(|(number, link)| (*number, Arc::downgrade(link))).collect();
        }
        volume.damaged.set_left(self.left.len(), None);
        walked
    }

    fn failed(&mut self, error: Status) {
        // `Delay` means that more repairs are postponed than the job can remember. The job then checks all files again,
        // so do not log an error.
        if error != Status::Delay {
            tracing::warn!("cannot check the copies of all files: {error}");
        }
    }
}

/// Tries to repair each file once. Returns the files whose repair is still postponed.
async fn retry(volume: &Volume, files: Suspects) -> Suspects {
    let mut left = Suspects::new();
    for (file, suspects) in files {
        if !is_rebuilt(volume, file, &suspects).await {
            left.insert(file, suspects);
        }
    }
    left
}

/// Repairs the copies of a file. Returns `false` if the repair is postponed, because an iod is down or a client may
/// write the file.
async fn is_rebuilt(volume: &Volume, file: FileId, suspects: &[Suspect]) -> bool {
    match volume.rebuild(file, suspects).await {
        Ok(_) | Err(Status::Stale) => {}
        Err(Status::Delay) => return false,
        Err(e) => {
            volume.tell_lost(file, e);
            tracing::debug!(file = file.0, "cannot rebuild a copy of the file: {e}");
        }
    }
    true
}

/// The result of checking the copies of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CopiesResult {
    Whole,
    /// The job has rebuilt the lost copies of the file, or found that no copy has the lost bytes.
    Rebuilt,
    /// The repair is postponed, because an iod is down or a client may write the file.
    Waits,
}

/// Checks a file that may have a copy on one of the iods `iods`, and rebuilds the lost copies of the file.
async fn look(volume: &Volume, file: &FileState, iods: &BTreeSet<u16>) -> CopiesResult {
    match volume.has_lost_copy(file, iods).await {
        Ok(true) if is_rebuilt(volume, file.id, &[]).await => CopiesResult::Rebuilt,
        Ok(true) | Err(Status::Delay) => CopiesResult::Waits,
        Ok(false) => CopiesResult::Whole,
        Err(e) => {
            tracing::debug!(file = file.id.0, "cannot check the copies of the file: {e}");
            CopiesResult::Waits
        }
    }
}

/// Checks all files that have a copy on one of the iods `iods`, and rebuilds their lost copies. Adds to `left` each
/// file whose repair is postponed.
///
/// # Errors
/// `Delay` if the repairs of more files are postponed than `left` may hold.
async fn walk(volume: &Volume, iods: &BTreeSet<u16>, left: &mut Suspects) -> Result<(), Status> {
    let mut after = Some(FileId(0));
    let mut outcome = Ok(());
    while let Some(from) = after {
        let begun = Instant::now();
        // Report no progress during the first page of files: a small file system has only this page, and one page takes
        // almost no time.
        volume.damaged.set_left(left.len(), Some(from).filter(|from| from.0 > 0));
        let (files, next) = volume.namespace.files_after(from, PAGE)?;
        after = next;
        // Before the check of this page of files, repair the damage that reads have found during the check of the
        // previous page.
        for (file, suspects) in retry(volume, volume.damaged.take()).await {
            remember(left.entry(file).or_default(), &suspects);
        }
        let looks = files.into_iter().map(|file| async move { (file.id, look(volume, &file, iods).await) });
        let looked: Vec<(FileId, CopiesResult)> = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
        for (file, _) in looked.iter().filter(|(_, looked)| *looked == CopiesResult::Waits) {
            if left.len() < WAITING_MAX {
                left.entry(*file).or_default();
            } else {
                outcome = Err(Status::Delay);
            }
        }
        // Sleep between two pages of files, so that the iods have time for the requests of clients. Sleep less after a
        // page with a repair, because a file with only one intact copy is at risk.
        let rest = if looked.iter().any(|(_, looked)| *looked == CopiesResult::Rebuilt) { 1 } else { REST };
        tokio::time::sleep((begun.elapsed() * rest).max(REST_MIN)).await;
    }
    outcome
}
