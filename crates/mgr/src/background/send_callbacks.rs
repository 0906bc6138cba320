//! Callbacks to clients: a background task that sends the messages for which no request waits.

use super::{Context, Job};
use crate::fs::NfsServer;
use std::sync::Arc;
use types::Status;

/// The job that sends callbacks to clients.
pub(super) struct SendCallbacks(Arc<NfsServer>);

impl Job for SendCallbacks {
    const NAME: &'static str = "sending callbacks";

    fn new(context: &Context) -> Self {
        SendCallbacks(context.server.clone())
    }

    /// A pass is always due, and never ends: the NFS server knows when there is a message.
    async fn due(&mut self) {}

    async fn pass(&mut self) -> Result<(), Status> {
        self.0.deliver().await;
        Ok(())
    }
}
