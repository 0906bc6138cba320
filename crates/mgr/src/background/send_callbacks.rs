//! Callbacks to clients: a background job that sends the callbacks for which no client request waits.

use super::{Context, Job};
use crate::fs::NfsServer;
use std::sync::Arc;
use types::Status;

pub(super) struct SendCallbacks(Arc<NfsServer>);

impl Job for SendCallbacks {
    const NAME: &'static str = "sending callbacks";

    fn new(context: &Context) -> Self {
        SendCallbacks(context.server.clone())
    }

    /// The job has one pass, which starts at once and never ends. In this pass, the NFS server sends all queued
    /// callbacks, and waits for further callbacks.
    async fn due(&mut self) {}

    async fn pass(&mut self) -> Result<(), Status> {
        self.0.deliver().await;
        Ok(())
    }
}
