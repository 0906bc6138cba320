//! The record of exports: a background job that stores the exports whose directories exist.
//!
//! The directory of an export may be created after the export was configured. Without this job, the next start of the
//! mgr treats that export as new and refuses older filehandles.

use super::{Context, Job};
use crate::volume::Volume;
use std::sync::Arc;
use std::time::Duration;
use types::Status;

/// Interval between two updates of the record of exports.
const EVERY: Duration = Duration::from_secs(10);

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
