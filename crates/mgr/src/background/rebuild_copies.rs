//! The rebuilder: a background task that restores lost copies of objects from another copy.
//!
//! It works on files in which a read met a lost copy. When an iod has come up, it checks all files with copies on that
//! iod, which may have lost some while it was down.

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

/// Number of inodes that one read of the namespace returns at most.
const PAGE: usize = 256;
/// Number of files checked and rebuilt at a time: most of them wait for a disk.
const AT_ONCE: usize = 16;
/// Seconds of rest for each second spent on files that are whole.
const REST: u32 = 4;
/// Shortest rest.
const REST_MIN: Duration = Duration::from_millis(5);
/// Largest number of files that wait here; if there are more, all files are checked again.
const WAITING_MAX: usize = 65_536;
/// Time until the next attempt after a failure.
const AGAIN: Duration = Duration::from_secs(10);

/// The rebuilder.
pub(super) struct RebuildCopies {
    volume: Arc<Volume>,
    came_up: watch::Receiver<u64>,
    /// Per iod: the link at the last pass over all files.
    walked: HashMap<u16, Weak<Link>>,
    /// Files that have to wait for an iod or for their writers.
    left: Suspects,
    /// Whether the last pass over all files checked all of them.
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
            // This cannot fail: `volume` keeps the sender.
            _ = self.came_up.changed() => {}
            () = self.volume.damaged.met.notified() => {}
            () = tokio::time::sleep(AGAIN), if !self.left.is_empty() || !self.done => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.came_up.mark_unchanged();
        let volume = &*self.volume;
        // Damage found since in a file that waits is repaired together with it.
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
        // `Delay`: more files wait than are remembered.
        if error != Status::Delay {
            tracing::warn!("cannot check the copies of all files: {error}");
        }
    }
}

/// Tries each file once; returns the files that still have to wait.
async fn retry(volume: &Volume, files: Suspects) -> Suspects {
    let mut left = Suspects::new();
    for (file, suspects) in files {
        if !is_rebuilt(volume, file, &suspects).await {
            left.insert(file, suspects);
        }
    }
    left
}

/// Repairs the copies of a file as far as possible; returns `false` if the file has to wait.
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

/// The result of the check of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Looked {
    Whole,
    /// The file was rebuilt, or cannot be.
    Rebuilt,
    /// The file has to wait for its writers, or for an iod.
    Waits,
}

/// Checks a file that may have a copy on these iods, and rebuilds lost copies.
async fn look(volume: &Volume, file: &FileState, iods: &BTreeSet<u16>) -> Looked {
    match volume.has_lost_copy(file, iods).await {
        Ok(true) if is_rebuilt(volume, file.id, &[]).await => Looked::Rebuilt,
        Ok(true) | Err(Status::Delay) => Looked::Waits,
        Ok(false) => Looked::Whole,
        Err(e) => {
            tracing::debug!(file = file.id.0, "cannot check the copies of the file: {e}");
            Looked::Waits
        }
    }
}

/// Checks all files with a copy on these iods and rebuilds lost copies; adds files that have to wait to `left`.
///
/// # Errors
/// `Delay` if more files have to wait than `left` may hold.
async fn walk(volume: &Volume, iods: &BTreeSet<u16>, left: &mut Suspects) -> Result<(), Status> {
    let mut after = Some(FileId(0));
    let mut outcome = Ok(());
    while let Some(from) = after {
        let begun = Instant::now();
        // The first page takes almost no time, and small file systems have no other.
        volume.damaged.set_left(left.len(), Some(from).filter(|from| from.0 > 0));
        let (files, next) = volume.namespace.files_after(from, PAGE)?;
        after = next;
        // Damage that readers find in the meantime is repaired first.
        for (file, suspects) in retry(volume, volume.damaged.take()).await {
            remember(left.entry(file).or_default(), &suspects);
        }
        let looks = files.into_iter().map(|file| async move { (file.id, look(volume, &file, iods).await) });
        let looked: Vec<(FileId, Looked)> = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
        for (file, _) in looked.iter().filter(|(_, looked)| *looked == Looked::Waits) {
            if left.len() < WAITING_MAX {
                left.entry(*file).or_default();
            } else {
                outcome = Err(Status::Delay);
            }
        }
        // Requests have priority; but a file with only one copy left is in danger.
        let rest = if looked.iter().any(|(_, looked)| *looked == Looked::Rebuilt) { 1 } else { REST };
        tokio::time::sleep((begun.elapsed() * rest).max(REST_MIN)).await;
    }
    outcome
}
