//! Making lost copies of objects again, in the background: of files that were read with one, and of all files with copies on an iod that
//! has come up, which may have lost some while it was away.

use crate::proxy::Suspect;
use crate::proxy::remember;
use crate::room::{Room, Suspects};
use futures_util::{StreamExt, stream};
use meta::FileState;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{FileId, Status};

/// Inodes looked at in one go.
const PAGE: usize = 256;
/// Files looked at, and made whole, at a time: most wait for a disk.
const AT_ONCE: usize = 16;
/// For each second of looking at files that are whole, so many seconds of rest.
const REST: u32 = 4;
/// Shortest rest.
const REST_MIN: Duration = Duration::from_millis(5);
/// Most files that wait here; if there are more, all are looked at again.
const WAITING_MAX: usize = 65_536;
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
            done = walk(&room, &new, &mut left).await;
            if done {
                walked = up.iter().map(|(number, link)| (*number, Arc::downgrade(link))).collect();
            }
        }
        room.damaged.set_left(left.len(), None);
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
        if !is_rebuilt(room, file, &suspects).await {
            left.insert(file, suspects);
        }
    }
    left
}

/// Makes the copies of a file whole, as far as that can be; `false`: it has to wait.
async fn is_rebuilt(room: &Room, file: FileId, suspects: &[Suspect]) -> bool {
    match room.rebuild(file, suspects).await {
        Ok(_) | Err(Status::Stale) => {}
        Err(Status::Delay) => return false,
        Err(e) => {
            room.tell_lost(file, e);
            tracing::debug!(file = file.0, "cannot make a copy again: {e}");
        }
    }
    true
}

/// What became of a file that was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Looked {
    Whole,
    /// Or cannot be.
    Rebuilt,
    /// It has to wait for its writers, or for an iod.
    Waits,
}

/// Looks at a file that may have a copy on these iods, and makes again what is lost.
async fn look(room: &Room, file: &FileState, iods: &BTreeSet<u16>) -> Looked {
    match room.has_lost_copy(file, iods).await {
        Ok(true) if is_rebuilt(room, file.id, &[]).await => Looked::Rebuilt,
        Ok(true) | Err(Status::Delay) => Looked::Waits,
        Ok(false) => Looked::Whole,
        Err(e) => {
            tracing::debug!(file = file.id.0, "cannot look at its copies: {e}");
            Looked::Waits
        }
    }
}

/// Looks at all files with copies that have one on these iods, and makes again what is lost; `left` gets those that have to wait. Whether all were looked
/// at, and remembered if they have to wait.
async fn walk(room: &Room, iods: &BTreeSet<u16>, left: &mut Suspects) -> bool {
    let mut after = Some(FileId(0));
    let mut done = true;
    while let Some(from) = after {
        let begun = Instant::now();
        // The first page is looked at in no time, and small file systems have no other.
        room.damaged.set_left(left.len(), Some(from).filter(|from| from.0 > 0));
        let page = room.namespace.files_after(from, PAGE);
        let (files, next) = match page {
            Ok(page) => page,
            Err(e) => {
                tracing::warn!("cannot look at all files with copies: {e}");
                return false;
            }
        };
        after = next;
        // What readers meet meanwhile goes first.
        for (file, suspects) in retry(room, room.damaged.take()).await {
            remember(left.entry(file).or_default(), &suspects);
        }
        let looks = files.into_iter().map(|file| async move { (file.id, look(room, &file, iods).await) });
        let looked: Vec<(FileId, Looked)> = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
        for (file, _) in looked.iter().filter(|(_, looked)| *looked == Looked::Waits) {
            if left.len() < WAITING_MAX {
                left.entry(*file).or_default();
            } else {
                done = false;
            }
        }
        // Requests go first; but a file with one copy left is in danger.
        let rest = if looked.iter().any(|(_, looked)| *looked == Looked::Rebuilt) { 1 } else { REST };
        tokio::time::sleep((begun.elapsed() * rest).max(REST_MIN)).await;
    }
    done
}
