//! Working off what is noted about files: sizes that nobody told, cuts and fences that did not reach every iod.

use crate::gateway::NfsServer;
use crate::room::Room;
use futures_util::{StreamExt, stream};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, Status};

/// How often what is noted is looked at, when no iod came up meanwhile.
const AGAIN: Duration = Duration::from_secs(2);
/// Files about which a complaint is remembered.
const TOLD_MAX: usize = 4096;
/// Files measured at a time: each may have to be fenced on all of its iods, which takes a flush of each.
const AT_ONCE: usize = 16;
/// How long notes that are done are gathered, so that many are forgotten together.
const GATHER: Duration = Duration::from_millis(200);

/// Forgets notes of what is done, for ever.
pub(crate) async fn forget(room: Arc<Room>) {
    loop {
        room.notes.something_done().await;
        tokio::time::sleep(GATHER).await;
        if let Err(e) = room.notes.forget().await {
            tracing::error!("cannot forget what is done about files: {e}");
        }
    }
}

/// Works off notes, for ever.
pub(crate) async fn settle(server: Arc<NfsServer>) {
    let room = server.fs().0.clone();
    let mut came_up = room.iods.came_up.subscribe();
    let mut told = HashSet::new();
    loop {
        came_up.mark_unchanged();
        for file in room.notes.cuts() {
            log(&mut told, file, "cut its objects", room.finish_cut(file).await);
        }
        for file in room.notes.fences() {
            log(&mut told, file, "fence it", room.finish_fence(file).await);
        }
        // Until the grace period is over those who wrote may come back and tell.
        if !server.inspect(|state| state.in_grace()) {
            let measure = |file| {
                let (server, room) = (&server, &room);
                async move {
                    // Who has a layout to write may write on, and tells; what it is about to tell is not for others to find.
                    let may_tell = in_use(server, file) || room.grants.written(file);
                    let outcome = if may_tell { Ok(()) } else { room.measure_for_good(file).await };
                    (file, outcome)
                }
            };
            let mut measured = stream::iter(room.notes.untold()).map(measure).buffer_unordered(AT_ONCE);
            while let Some((file, outcome)) = measured.next().await {
                log(&mut told, file, "learn its size", outcome);
            }
        }
        tokio::select! {
            // The sender lives in `room`.
            _ = came_up.changed() => {}
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// Whether a client may be writing the file or come back to it.
pub(crate) fn in_use(server: &NfsServer, file: FileId) -> bool {
    server.inspect(|state| state.is_open(file) || !state.layout_holders(file).is_empty())
}

/// Says once of a file that something fails for other reasons than an iod that is down.
fn log(told: &mut HashSet<FileId>, file: FileId, what: &str, result: Result<(), Status>) {
    match result {
        Ok(()) => drop(told.remove(&file)),
        Err(e) if e != Status::Delay && told.len() < TOLD_MAX && told.insert(file) => {
            tracing::error!(file = file.0, "cannot {what}: {e}");
        }
        Err(Status::Delay) => tracing::debug!(file = file.0, "cannot {what} yet"),
        Err(e) => tracing::debug!(file = file.0, "still cannot {what}: {e}"),
    }
}
