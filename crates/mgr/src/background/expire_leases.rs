//! Lease expiry: a background job that discards the state of clients whose leases have expired. After the grace period,
//! the job also frees orphans.

use super::{Context, Job};
use crate::clock::now;
use crate::fs::{NfsServer, own_ctx};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use types::{FileId, Status};

/// Interval at which the job checks for expired leases.
const TICK: Duration = Duration::from_millis(500);
/// Largest number of orphans that one read of the orphan list returns.
const ORPHANS: usize = 256;

pub(super) struct ExpireLeases {
    server: Arc<NfsServer>,
    /// Whether the job has made no pass yet. The first pass starts at once; each later pass starts one interval after
    /// the pass before it.
    first: bool,
}

impl Job for ExpireLeases {
    const NAME: &'static str = "expiring leases";

    fn new(context: &Context) -> Self {
        ExpireLeases { server: context.server.clone(), first: true }
    }

    async fn due(&mut self) {
        if !std::mem::take(&mut self.first) {
            tokio::time::sleep(TICK).await;
        }
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.server.tick(now()).await;
        let orphans_left = &self.server.fs().0.orphans_left;
        if self.server.inspect(|state| state.in_grace()) || !orphans_left.swap(false, SeqCst) {
            return Ok(());
        }
        reap_orphans(&self.server).await
    }

    fn failed(&mut self, error: Status) {
        self.server.fs().0.orphans_left.store(true, SeqCst);
        tracing::error!("cannot free all orphans: {error}");
    }
}

/// Frees every orphan that no client has open. Such an orphan exists if a crash interrupted the removal or the last
/// close of a file.
async fn reap_orphans(server: &NfsServer) -> Result<(), Status> {
    let mut after = FileId(0);
    loop {
        let page = server.fs().0.namespace.orphans(after, ORPHANS)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = *last;
        for file in page {
            server.free_orphan(&own_ctx(), file).await?;
        }
    }
}
