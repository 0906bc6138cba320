//! Completion of noted work: a background task that learns unreported sizes and finishes truncations and fences on
//! every iod.

use crate::fs::NfsServer;
use crate::volume::Volume;
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
pub(crate) async fn forget(volume: Arc<Volume>) {
    loop {
        volume.notes.something_done().await;
        tokio::time::sleep(GATHER).await;
        if let Err(e) = volume.notes.forget().await {
            tracing::error!("cannot forget what is done about files: {e}");
        }
    }
}

/// Works on the notes, for ever.
pub(crate) async fn settle(server: Arc<NfsServer>) {
    let volume = server.fs().0.clone();
    let mut came_up = volume.iods.came_up.subscribe();
    let mut told = HashSet::new();
    loop {
        came_up.mark_unchanged();
        for file in volume.notes.cuts() {
            log(&mut told, file, "cut its objects", volume.finish_cut(file).await);
        }
        for file in volume.notes.fences() {
            log(&mut told, file, "fence it", volume.finish_fence(file).await);
        }
        // Until the grace period is over, earlier writers may return and report.
        if !server.inspect(|state| state.in_grace()) {
            let measure = |file| {
                let (server, volume) = (&server, &volume);
                async move {
                    // A client with a layout to write may write on, and reports its size; other clients must not see
                    // that size before.
                    let may_tell = in_use(server, file) || volume.grants.written(file);
                    let outcome = if may_tell { Ok(()) } else { volume.measure_for_good(file).await };
                    (file, outcome)
                }
            };
            let mut measured = stream::iter(volume.notes.untold()).map(measure).buffer_unordered(AT_ONCE);
            while let Some((file, outcome)) = measured.next().await {
                log(&mut told, file, "learn its size", outcome);
            }
        }
        tokio::select! {
            // The sender lives in `volume`.
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
