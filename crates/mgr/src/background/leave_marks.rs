//! Marks for the iods: a background task that leaves a new mark every ten minutes while files change, and after the
//! clock of this host was set.
//!
//! An iod refuses a store that lacks its mark. It uses the clock to check whether a right has expired.

use super::{Context, Job};
use crate::volume::Volume;
use net::clock::unix_now;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::Status;

/// Interval of the checks whether a new mark is due.
const LOOK: Duration = Duration::from_secs(10);
/// Clock step of this host, in seconds, after which iods get the time again: far less than the lifetime of rights.
const CLOCK_OFF: u64 = 10;
/// Number of [`LOOK`] intervals between new marks while files change: an older copy of the store than this can be
/// detected.
const EVERY: u32 = 60;

/// The job that leaves marks with the iods.
pub(super) struct LeaveMarks {
    volume: Arc<Volume>,
    begun: Instant,
    /// Number of checks since the last mark.
    looks: u32,
    /// Number of batches that the store had at the last mark.
    batches: Option<u64>,
    /// The start of the job, by the clock of this host at the last mark.
    told: u64,
}

impl LeaveMarks {
    /// Returns the start of the job by the current clock: constant unless the clock is set.
    fn beginning(&self) -> u64 {
        unix_now().saturating_sub(self.begun.elapsed().as_secs())
    }

    fn batches_now(&self) -> u64 {
        self.volume.namespace.standing().counters.batches
    }
}

impl Job for LeaveMarks {
    const NAME: &'static str = "leaving marks on iods";

    fn new(context: &Context) -> Self {
        let (volume, told) = (context.volume.clone(), unix_now());
        LeaveMarks { volume, begun: Instant::now(), looks: 0, batches: None, told }
    }

    async fn due(&mut self) {
        tokio::time::sleep(LOOK).await;
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.looks += 1;
        let set = self.told.abs_diff(self.beginning()) > CLOCK_OFF;
        let now = self.batches_now();
        let short = self.volume.iods.is_short_of_numbers().await;
        if !set && !short && (self.looks < EVERY || self.batches == Some(now)) {
            return Ok(());
        }
        if set {
            tracing::warn!("the clock of this host was set: sending its new time to the iods");
        }
        let told = self.beginning();
        self.volume.iods.leave_mark().await?;
        (self.looks, self.batches, self.told) = (0, Some(self.batches_now()), told);
        Ok(())
    }

    fn failed(&mut self, error: Status) {
        tracing::warn!("cannot leave a new mark on the iods: {error}");
    }
}
