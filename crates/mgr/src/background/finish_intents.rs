//! Completion of intents: a background job that queries the iods for file sizes that clients have not reported, and
//! repeats truncations and fences until every iod has executed them.

use super::{Context, Job};
use crate::fs::NfsServer;
use crate::volume::Volume;
use futures_util::{StreamExt, stream};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use types::{FileId, Status};

/// Interval between two passes over the intents. The next pass starts earlier if an iod connects.
const AGAIN: Duration = Duration::from_secs(2);
/// Largest number of files for which the mgr remembers that it has logged a failure to complete an intent. It logs such
/// a failure once for each file.
const TOLD_MAX: usize = 4096;
/// Largest number of files for which the mgr concurrently queries the iods for the size. Before such a query, the mgr
/// may have to fence the file, which takes a flush on each iod of the file.
const AT_ONCE: usize = 16;
/// After an intent is complete, how long the mgr waits for more completed intents, to remove all of them from the store
/// in one batch.
const GATHER: Duration = Duration::from_millis(200);

/// The job that removes the intents of completed work from the metadata store.
pub(super) struct ForgetIntents(Arc<Volume>);

impl Job for ForgetIntents {
    const NAME: &'static str = "removing finished intents";

    fn new(context: &Context) -> Self {
        ForgetIntents(context.volume.clone())
    }

    async fn due(&mut self) {
        self.0.intents.something_done().await;
        tokio::time::sleep(GATHER).await;
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.0.intents.forget().await
    }

    fn failed(&mut self, error: Status) {
        tracing::error!("cannot remove finished intents: {error}");
    }
}

/// The job that completes intents: it queries file sizes, and repeats truncations and fences.
pub(super) struct FinishIntents {
    volume: Arc<Volume>,
    server: Arc<NfsServer>,
    came_up: watch::Receiver<u64>,
    /// Files for which the mgr has already logged a failure to complete an intent.
    told: HashSet<FileId>,
}

impl Job for FinishIntents {
    const NAME: &'static str = "finishing intents";

    fn new(context: &Context) -> Self {
        let (volume, server) = (context.volume.clone(), context.server.clone());
        FinishIntents { volume, server, came_up: context.came_up(), told: HashSet::new() }
    }

    async fn due(&mut self) {
        tokio::select! {
            // Wait until an iod connects. This wait fails only if the sender of the notification is dropped, and
            // `volume` keeps the sender, so ignore the result.
            _ = self.came_up.changed() => {}
            () = tokio::time::sleep(AGAIN) => {}
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.came_up.mark_unchanged();
        let FinishIntents { volume, server, told, .. } = self;
        for file in volume.intents.truncations() {
            log(told, file, "truncate the objects of the file", volume.finish_cut(file).await);
        }
        for file in volume.intents.fences() {
            log(told, file, "fence the objects of the file", volume.finish_fence(file).await);
        }
        // During the grace period, clients that wrote before the restart of the mgr may reconnect and report the file
        // sizes. So the mgr does not query the iods for file sizes yet.
        if !server.inspect(|state| state.in_grace()) {
            let measure = |file| {
                let (server, volume) = (&*server, &*volume);
                async move {
                    // A client that has the file open or holds a write layout may still write, and later reports the
                    // size itself. Do not query the iods for the size now, because other clients must not see the new
                    // size before this client reports it.
                    let may_tell = in_use(server, file) || volume.grants.written(file);
                    let outcome = if may_tell { Ok(()) } else { volume.measure_for_good(file).await };
                    (file, outcome)
                }
            };
            let mut measured = stream::iter(volume.intents.unreported()).map(measure).buffer_unordered(AT_ONCE);
            while let Some((file, outcome)) = measured.next().await {
                log(told, file, "measure the size of the file", outcome);
            }
        }
        Ok(())
    }
}

/// Returns whether a client has the file open or holds a layout of the file.
pub(crate) fn in_use(server: &NfsServer, file: FileId) -> bool {
    server.inspect(|state| state.is_open(file) || !state.layout_holders(file).is_empty())
}

/// Logs a failure to complete an intent, once for each file. The status `Delay` means that an iod is down; the mgr logs
/// this status only at the debug level.
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
