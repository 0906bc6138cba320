//! Write reports of data servers: a background job that starts tasks for every iod that connects and serves NFS. The
//! tasks receive the iod's reports of NFS writes (WRITE_REPORTS) and its requests for file lengths (LENGTHS).

use super::{Context, Job};
use crate::data_server_reports::listen;
use crate::iods::Link;
use crate::volume::Volume;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use types::Status;

pub(super) struct ListenToDataServers {
    volume: Arc<Volume>,
    came_up: watch::Receiver<u64>,
    /// For each iod number: the link (connections) to the iod, and the tasks that receive write reports (WRITE_REPORTS)
    /// and length requests (LENGTHS) over this link.
    listening: HashMap<u16, (Arc<Link>, JoinSet<()>)>,
}

impl Job for ListenToDataServers {
    const NAME: &'static str = "receiving write reports";

    fn new(context: &Context) -> Self {
        let (volume, came_up) = (context.volume.clone(), context.came_up());
        ListenToDataServers { volume, came_up, listening: HashMap::new() }
    }

    async fn due(&mut self) {
        // Wait until an iod connects. This wait fails only if the sender of the notification is dropped, and `volume`
        // keeps the sender, so ignore the result.
        let _ = self.came_up.changed().await;
    }

    async fn pass(&mut self) -> Result<(), Status> {
        for (number, link) in self.volume.iods.up().into_iter().filter(|(_, link)| link.has_write_reports()) {
            if self.listening.get(&number).is_none_or(|(old, _)| !Arc::ptr_eq(old, &link)) {
                let listener = listen(&self.volume, number, &link);
                self.listening.insert(number, (link, listener));
            }
        }
        Ok(())
    }
}
