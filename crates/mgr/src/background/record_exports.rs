//! The record of exports: a background task that keeps it up to date, so that a directory that is created after it was
//! configured as an export is no new export at the next start.

use super::{Context, Job};
use crate::volume::Volume;
use std::sync::Arc;
use std::time::Duration;
use types::Status;

/// Interval of the passes.
const EVERY: Duration = Duration::from_secs(10);

/// The record of exports.
pub(super) struct RecordExports(Arc<Volume>);

impl Job for RecordExports {
    const NAME: &'static str = "recording exports";

    fn new(context: &Context) -> Self {
        RecordExports(context.volume.clone())
    }

    async fn due(&mut self) {
        tokio::time::sleep(EVERY).await;
    }

    async fn pass(&mut self) -> Result<(), Status> {
        self.0.exports.record().await
    }

    fn failed(&mut self, error: Status) {
        tracing::debug!("cannot record the exports: {error}");
    }
}
