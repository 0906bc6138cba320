//! Making lost copies of objects again, in the background: of files that were read with one, and of all files with copies on an iod that
//! has come up, which may have lost some while it was away.

use crate::proxy::remember;
use crate::room::{Room, Suspects};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{FileId, Status};

/// Inodes looked at in one go.
const PAGE: usize = 256;
/// For each second of work, so many seconds of rest.
const REST: u32 = 4;
/// Shortest rest.
const REST_MIN: Duration = Duration::from_millis(5);
/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Rebuilds, for ever.
pub(crate) async fn rebuild(room: Arc<Room>) {
    let mut came_up = room.iods.came_up.subscribe();
    // Per iod: the way over which all files were last looked at.
    let mut walked: HashMap<u16, std::sync::Weak<crate::iods::Link>> = HashMap::new();
    let mut left = Suspects::new();
    loop {
        came_up.mark_unchanged();
        // What was met since with a file that waits goes with it.
        for (file, suspects) in room.damaged.take() {
            remember(left.entry(file).or_default(), &suspects);
        }
        left = retry(&room, left).await;
        let up = room.iods.up();
        let new: BTreeSet<u16> = up
            .iter()
            .filter(|(number, link)| walked.get(number).is_none_or(|old| old.as_ptr() != Arc::as_ptr(link)))
            .map(|(number, _)| *number)
            .collect();
        let mut done = true;
        if !new.is_empty() {
            match walk(&room, &new).await {
                Ok(()) => walked = up.iter().map(|(number, link)| (*number, Arc::downgrade(link))).collect(),
                Err(e) => {
                    tracing::debug!("cannot look at all files with copies yet: {e}");
                    done = false;
                }
            }
        }
        tokio::select! {
            // The sender lives in `room`.
            _ = came_up.changed() => {}
            () = room.damaged.met.notified() => {}
            () = tokio::time::sleep(AGAIN), if !left.is_empty() || !done => {}
        }
    }
}

/// Tries each file once; those that have to wait.
async fn retry(room: &Room, files: Suspects) -> Suspects {
    let mut left = Suspects::new();
    for (file, suspects) in files {
        match room.rebuild(file, &suspects).await {
            Ok(_) | Err(Status::Stale) => {}
            Err(Status::Delay) => drop(left.insert(file, suspects)),
            Err(e) => {
                room.tell_lost(file, e);
                tracing::debug!(file = file.0, "cannot make a copy again: {e}");
            }
        }
    }
    left
}

/// Looks at all files with copies that have one on these iods.
async fn walk(room: &Room, iods: &BTreeSet<u16>) -> Result<(), Status> {
    let mut after = Some(FileId(0));
    while let Some(from) = after {
        let begun = Instant::now();
        let (files, next) = room.namespace.files_after(from, PAGE)?;
        after = next;
        for file in files {
            if room.has_lost_copy(&file, iods).await? {
                room.damaged.found(file.id, &[]);
            }
        }
        // Requests go first.
        tokio::time::sleep((begun.elapsed() * REST).max(REST_MIN)).await;
    }
    Ok(())
}
