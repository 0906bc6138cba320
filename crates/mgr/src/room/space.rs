//! How much room files with holes take: their iods are asked, for what they say is nowhere stored.

use super::Room;
use crate::counters::add;
use crate::room::now;
use crate::space::Next;
use futures_util::{StreamExt, stream};
use net::task;
use std::pin::pin;
use std::sync::Arc;
use types::{Attrs, Cred, FileId, Status};

/// Files that are asked for at once, on behalf of one request.
const AT_ONCE: usize = 32;

/// The least that a file takes that is not empty. Programs look no further for the bytes of a file that takes nothing; and some may
/// not have arrived.
const LEAST: u64 = 512;

impl Room {
    /// Corrects how much room files with holes take, as far as that can be learnt soon.
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
            // Before it is looked what there is: an answer in between is not missed.
            answered.as_mut().enable();
            match self.space.next(attrs.id, attrs.change) {
                Next::Tell(used) => break used,
                Next::Ask => self.ask_space(attrs.id, attrs.change),
                // What there is then is looked at in either case.
                Next::Wait(most) => drop(tokio::time::timeout(most, answered).await),
            }
        };
        // Iods count what they keep besides, and whole blocks of their disks.
        known.map_or(attrs.used, |known| known.max(LEAST).min(attrs.used))
    }

    /// Asks, whoever goes on waiting: what iods tell once must not get lost.
    fn ask_space(self: &Arc<Self>, file: FileId, change: u64) {
        let room = self.clone();
        task::spawn(async move {
            let learnt = room.learn_space(file).await;
            room.space.learnt(file, change, learnt.ok());
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
            // As whoever asks for the size does: it is said only once.
            self.namespace.note_write(&Cred::root(), now(), file, end.reached).await?;
        }
        end.allocated.ok_or(Status::Delay)
    }
}
