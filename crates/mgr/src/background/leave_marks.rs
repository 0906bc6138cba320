//! Marks: random numbers that the mgr stores on every iod. This background job stores a new mark every ten minutes
//! while files change, after the clock of this host was set, and when the metadata store has allocated most of the
//! inode numbers that the current claim covers.
//!
//! An iod refuses a metadata store that does not have the mark of the iod in its records. With each mark, the iod also
//! gets the time of this host, by which the iod checks whether a capability has expired.

use super::{Context, Job};
use crate::volume::Volume;
use net::clock::unix_now;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::Status;

/// Interval at which the job checks whether it must store a new mark.
const LOOK: Duration = Duration::from_secs(10);
/// If the clock of this host was set by more than this many seconds, the mgr sends its time to the iods again. A
/// smaller change matters little, because a capability is valid for much longer than this time by default.
const CLOCK_OFF: u64 = 10;
/// Number of [`LOOK`] intervals between new marks while files change. The iods detect an older copy of the store only
/// if the copy is from before the last mark.
const EVERY: u32 = 60;

pub(super) struct LeaveMarks {
    volume: Arc<Volume>,
    begun: Instant,
    /// Number of checks that the job has made since it stored the last mark.
    looks: u32,
    /// Number of batches that the metadata store had committed when the job stored the last mark.
    batches: Option<u64>,
    /// The result of [`Self::beginning`] when the job stored the last mark. If a later call returns a different time,
    /// the clock of this host was set.
    sent_start: u64,
}

impl LeaveMarks {
    /// Returns the start time of the job in Unix seconds: the current time of the host's clock minus the time that the
    /// job has run. The result changes only if the clock is set.
    fn beginning(&self) -> u64 {
        unix_now().saturating_sub(self.begun.elapsed().as_secs())
    }

    fn batches_now(&self) -> u64 {
        self.volume.namespace.status().counters.batches
    }
}

impl Job for LeaveMarks {
    const NAME: &'static str = "leaving marks on iods";

    fn new(context: &Context) -> Self {
        let (volume, sent_start) = (context.volume.clone(), unix_now());
        LeaveMarks { volume, begun: Instant::now(), looks: 0, batches: None, sent_start }
    }

    async fn due(&mut self) {
        tokio::time::sleep(LOOK).await;
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.looks += 1;
        let set = self.sent_start.abs_diff(self.beginning()) > CLOCK_OFF;
        let now = self.batches_now();
        let short = self.volume.iods.is_short_of_numbers().await;
        if !set && !short && (self.looks < EVERY || self.batches == Some(now)) {
            return Ok(());
        }
        if set {
            tracing::warn!("the clock of this host was set: sending its new time to the iods");
        }
        let sent_start = self.beginning();
        self.volume.iods.leave_mark().await?;
        (self.looks, self.batches, self.sent_start) = (0, Some(self.batches_now()), sent_start);
        Ok(())
    }

    fn failed(&mut self, error: Status) {
        tracing::warn!("cannot leave a new mark on the iods: {error}");
    }
}
