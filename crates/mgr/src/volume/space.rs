//! The space that files with holes use (`st_blocks`), as their iods report it, because it is stored nowhere.

use super::Volume;
use crate::clock::now;
use crate::counters::add;
use crate::space::Next;
use futures_util::{StreamExt, stream};
use net::task;
use std::pin::pin;
use std::sync::Arc;
use types::{Attrs, Cred, FileId, Status};

/// Number of files asked for at a time, per request.
const AT_ONCE: usize = 32;

/// The least space reported for a file that is not empty. Programs take a file without allocated space for one hole,
/// and do not read it; and some data may not have arrived.
const LEAST: u64 = 512;

impl Volume {
    /// Corrects the space of files with holes, as far as the iods answer soon.
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
            // Enabled before the state is read, so that an answer in between is not missed.
            answered.as_mut().enable();
            match self.space.next(attrs.id, attrs.change) {
                Next::Tell(used) => break used,
                Next::Ask => self.ask_space(attrs.id, attrs.change),
                // After the answer or the timeout the state is read again.
                Next::Wait(most) => drop(tokio::time::timeout(most, answered).await),
            }
        };
        // Iods also count their own overhead, and whole disk blocks.
        known.map_or(attrs.used, |known| known.max(LEAST).min(attrs.used))
    }

    /// Asks the iods in a task of its own, even if the caller gives up: an iod reports a change only once.
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
            // As for a request of the size: the iod reports the change only once.
            self.namespace.note_write(&Cred::root(), now(), file, end.reached).await?;
        }
        end.allocated.ok_or(Status::Delay)
    }
}
