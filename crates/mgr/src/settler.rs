//! Completion of noted work: a background task that learns unreported sizes and finishes truncations and fences on
//! every iod.

use crate::gateway::NfsServer;
use crate::room::Room;
use futures_util::{StreamExt, stream};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, Status};

/// Interval of the passes over the notes, if no iod comes up.
const AGAIN: Duration = Duration::from_secs(2);
/// Number of files whose failure is remembered as logged.
const TOLD_MAX: usize = 4096;
/// Number of files measured at a time: each may have to be fenced, which takes a flush on each of its iods.
const AT_ONCE: usize = 16;
/// How long finished notes are collected, so that many are forgotten together.
const GATHER: Duration = Duration::from_millis(200);

/// Forgets the notes of finished work, for ever.
pub(crate) async fn forget(room: Arc<Room>) {
    loop {
        room.notes.something_done().await;
        tokio::time::sleep(GATHER).await;
        if let Err(e) = room.notes.forget().await {
            tracing::error!("cannot forget what is done about files: {e}");
        }
    }
}

/// Works on the notes, for ever.
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
        // Until the grace period is over, earlier writers may return and report.
        if !server.inspect(|state| state.in_grace()) {
            let measure = |file| {
                let (server, room) = (&server, &room);
                async move {
                    // A client with a layout to write may write on, and reports its size; other clients must not see
                    // that size before.
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

/// Returns whether a client may be writing the file or return to it.
pub(crate) fn in_use(server: &NfsServer, file: FileId) -> bool {
    server.inspect(|state| state.is_open(file) || !state.layout_holders(file).is_empty())
}

/// Logs a failure once per file, unless an iod is only down.
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
