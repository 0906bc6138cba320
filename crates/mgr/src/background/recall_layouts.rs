//! Recall of layouts that use lost iods: a background job that recalls such layouts from kernel clients.
//!
//! A kernel client whose data server refuses connections switches to the mgr without a recall. If the data server does
//! not reply at all, the kernel client retries for minutes. In both cases the client later tries the data server again,
//! unless the mgr recalls the layout.

use super::{Context, Job};
use crate::clock::now;
use crate::fs::NfsServer;
use crate::volume::Volume;
use futures_util::{StreamExt, stream};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, Status};

/// Interval at which the job checks which iods are lost.
const AGAIN: Duration = Duration::from_secs(1);
/// Largest number of files whose layouts the job recalls concurrently.
const AT_ONCE: usize = 64;

pub(super) struct RecallLayouts {
    volume: Arc<Volume>,
    server: Arc<NfsServer>,
    /// Numbers of the iods that were lost at the last pass.
    known: BTreeSet<u16>,
}

impl Job for RecallLayouts {
    const NAME: &'static str = "recalling layouts";

    fn new(context: &Context) -> Self {
        let (volume, server) = (context.volume.clone(), context.server.clone());
        RecallLayouts { volume, server, known: BTreeSet::new() }
    }

    async fn due(&mut self) {
        tokio::time::sleep(AGAIN).await;
    }

    async fn pass(&mut self) -> Result<(), Status> {
        let RecallLayouts { volume, server, known } = self;
        let lost = volume.iods.lost();
        let new: BTreeSet<u16> = lost.difference(known).copied().collect();
        *known = lost;
        if new.is_empty() {
            return Ok(());
        }
        let mut held = server.inspect(|state| state.files_with_layouts());
        let is_recalled = |kind| volume.kinds.layout_type(kind).is_ok_and(|layout| layout.is_recalled_when_lost());
        held.retain(|(file, kind)| is_recalled(*kind) && leads_to(volume, *file, &new));
        tracing::info!(iods = ?new, layouts = held.len(), "recalling layouts that lead to lost iods");
        let recalls = stream::iter(held).map(|(file, kind)| server.recall_kind(file, kind, now()));
        recalls.buffer_unordered(AT_ONCE).collect::<()>().await;
        Ok(())
    }
}

/// Returns whether a file has objects on any of the iods `lost`.
fn leads_to(volume: &Volume, file: FileId, iods: &BTreeSet<u16>) -> bool {
    let Ok(info) = volume.namespace.info(file) else { return false };
    let objects = volume.objects(&info);
    objects.is_ok_and(|objects| objects.is_some_and(|o| o.iods().iter().any(|number| iods.contains(number))))
}
