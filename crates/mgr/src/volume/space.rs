//! Allocated space of files with holes (`st_blocks`): the mgr queries the iods, because the namespace does not store
//! this space.

use super::Volume;
use crate::clock::now;
use crate::counters::add;
use crate::space::Next;
use futures_util::{StreamExt, stream};
use net::task;
use std::pin::pin;
use std::sync::Arc;
use types::{Attrs, Cred, FileId, Status};

/// Number of files for which one client request queries the iods at a time.
const AT_ONCE: usize = 32;

/// Smallest allocated space in bytes that the mgr reports for a file with data. Programs treat a file without allocated
/// space as a single hole, and do not read it. Also, some data may not have reached the iods yet.
const LEAST: u64 = 512;

impl Volume {
    /// Corrects the allocated space in the attributes of files with holes, from the cache or by a query of the iods.
    /// Waits only for a limited time for the replies of the iods.
    pub(crate) async fn correct_space(self: &Arc<Self>, files: &mut [&mut Attrs]) {
        let with_holes = files.iter_mut().filter(|attrs| attrs.holes);
        stream::iter(with_holes)
            .for_each_concurrent(AT_ONCE, |attrs| async {
                attrs.used = self.space_of(attrs).await;
            })
            .await;
    }

    async fn space_of(self: &Arc<Self>, attrs: &Attrs) -> u64 {
        let known = loop {
            let mut answered = pin!(self.space.answered.notified());
            // Enable the notification before reading the cache. Otherwise this task misses the end of a query that ends
            // before the task waits.
            answered.as_mut().enable();
            match self.space.next(attrs.id, attrs.change) {
                Next::Tell(used) => break used,
                Next::Ask => self.ask_space(attrs.id, attrs.change),
                // Wait for the end of a query to the iods, or for the timeout. Then the next iteration of the loop
                // reads the cache again.
                Next::Wait(most) => drop(tokio::time::timeout(most, answered).await),
            }
        };
        // Return at most the allocated space that the namespace gives (`attrs.used`), because the iods also count their
        // own overhead and whole disk blocks.
        known.map_or(attrs.used, |known| known.max(LEAST).min(attrs.used))
    }

    /// Queries the iods for the allocated space of a file in a separate task, which continues even if the caller is
    /// cancelled. An iod reports each change of an object only once, so the mgr must not lose the reply.
    fn ask_space(self: &Arc<Self>, file: FileId, change: u64) {
        let volume = self.clone();
        task::spawn(async move {
            let learnt = volume.learn_space(file).await;
            volume.space.learnt(file, change, learnt.ok());
        });
    }

    async fn learn_space(&self, file: FileId) -> Result<u64, Status> {
        let _shared = self.shared(file).await?;
        let info = self.regular(file)?;
        let Some(objects) = self.objects(&info)? else {
            return Ok(self
                .namespace
                .read_inline(file)?
                .map_or(0, |(bytes, _)| bytes.len() as u64)
                .next_multiple_of(512));
        };
        add(&self.counters.space_queries, 1);
        let end = objects.end().await;
        if end.changed {
            // Record in the namespace now that the file has changed, because the iod reports each change only once.
            self.namespace.record_write(&Cred::root(), now(), file, end.reached).await?;
        }
        Ok(end.allocated.ok_or(Status::Delay)? + objects.logs_allocated().await?)
    }
}
