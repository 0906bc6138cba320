//! Joining small writes: what is held in memory first, and who lets it go to the iods.
//!
//! Held bytes are on the iods before anybody can look for them there: whoever reads, copies, cuts, or gets a layout lets them go
//! first, and while others may go to the iods by themselves nothing is held. So nobody meets older bytes than without it.

use super::Room;
use crate::counters::add;
use crate::gathered::Small;
use crate::proxy::Objects;
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, future};
use layout::gather::{Gather, Part, Run};
use nfs::fs::{Ctx, Stability, WriteOut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use types::{ByteRange, FileId, Status};

/// Files let go at a time because they have waited for long enough.
const AT_ONCE: usize = 256;

/// Why held bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// There are enough of them.
    Full,
    /// They have waited for long enough.
    Delay,
    /// Their writer wants them to be durable.
    Commit,
    /// Somebody reads them, copies them or looks for holes.
    Read,
    /// A write over them that is not held, or a cut or hole.
    Write,
    /// Somebody is to go to the iods by itself.
    Layout,
    /// Their writer closes the file, or gives something back.
    Close,
    /// The mgr stops.
    Stop,
}

impl Room {
    /// Holds an unstable write, if it is small and may be held. Called by who shares the file.
    pub(super) async fn gather(
        &self,
        ctx: &Ctx,
        objects: &Objects<'_>,
        offset: u64,
        data: &Bytes,
    ) -> Result<Option<WriteOut>, Status> {
        let (file, window) = (objects.file, Gather::window_of(&objects.distribution));
        // What goes to an iod that is away is to fail now, as long as its writer is there to try again.
        if !self.gathered.is_for(data.len(), window) || objects.all_up().is_err() {
            return Ok(None);
        }
        // From before it is held: whatever happens to it later makes that of a COMMIT another one.
        let verifier = self.iods.verifiers.combine(&[]);
        let writing = self.notes.writing(file).await?;
        // Somebody of an earlier start may write past the mgr and know of nothing.
        let may = || !self.notes.is_exposed(file) && self.grants.all_come_here(file, ctx.client);
        let small = Small { client: ctx.client, offset, data, window };
        let Some(taken) = self.gathered.take(file, small, may) else {
            writing.done();
            return Ok(None);
        };
        let range = ByteRange { offset, len: data.len() as u64 };
        self.namespace.note_write(&ctx.cred, ctx.now, file, range).await?;
        writing.done();
        add(&self.counters.gathered_writes, 1);
        add(&self.counters.gathered_bytes, data.len() as u64);
        add(&self.counters.gathered_joined, u64::from(taken.joined));
        if taken.full {
            // Whoever fills a window waits for it, so that there is never more than the iods can take. What fails is no
            // more this writer's than that of others: it is told by COMMIT.
            let _ = self.let_go_held(file, Part::Full, Why::Full).await;
        }
        Ok(Some(WriteOut { count: data.len() as u32, stable: Stability::Unstable, verifier }))
    }

    /// Has a part of what is held of a file on the iods before others work on them. `Delay` while it cannot be written; what can never
    /// be is given up, and no reason not to go on.
    pub(crate) async fn settled(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        match self.let_go(file, part, why).await {
            Err(Status::Delay) => Err(Status::Delay),
            _ => Ok(()),
        }
    }

    /// As [`Self::settled`], for who shares the file or has it alone.
    pub(crate) async fn settled_held(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        match self.let_go_held(file, part, why).await {
            Err(Status::Delay) => Err(Status::Delay),
            _ => Ok(()),
        }
    }

    /// Writes a part of what is held of a file. `Delay`: it is held on. Any other failure: it is given up.
    pub(crate) async fn let_go(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        if !self.gathered.meets(file, part) {
            return Ok(());
        }
        let _shared = self.shared(file).await?;
        self.let_go_held(file, part, why).await
    }

    async fn let_go_held(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        let Some(leaving) = self.gathered.leave(file, part).await else { return Ok(()) };
        add(self.counter(why), 1);
        let outcome = self.write_held(file, &leaving.runs).await;
        match outcome {
            Ok(()) => leaving.end(Ok(())),
            Err(Status::Delay) => drop(leaving),
            // Nobody can ask for it any more.
            Err(Status::Stale) => leaving.end(Ok(())),
            Err(error) => {
                tracing::warn!(file = file.0, "bytes that were answered for could not be written: {error}");
                self.give_up();
                leaving.end(Err(error));
            }
        }
        outcome
    }

    /// What is on its way is given up. Called before that is over, so that no COMMIT that finds nothing has the verifier from before.
    fn give_up(&self) {
        add(&self.counters.gather_losses, 1);
        self.iods.verifiers.lost();
    }

    async fn write_held(&self, file: FileId, runs: &[Run]) -> Result<(), Status> {
        let info = self.regular(file)?;
        let Some(objects) = self.objects(&info)? else { return Err(Status::ServerFault) };
        let writing = self.notes.writing(file).await?;
        match objects.write(runs, false).await {
            Ok(_) => {
                // Its size is known since it is held.
                writing.done();
                Ok(())
            }
            // As nobody waits for such an iod, nothing waits for it here: who sends it again is told which of it can be written.
            Err(Status::Delay) if objects.lost_in(None) => {
                self.give_up();
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn counter(&self, why: Why) -> &AtomicU64 {
        match why {
            Why::Full => &self.counters.gather_full,
            Why::Delay => &self.counters.gather_delay,
            Why::Commit => &self.counters.gather_commit,
            Why::Read => &self.counters.gather_read,
            Why::Write => &self.counters.gather_write,
            Why::Layout => &self.counters.gather_layout,
            Why::Close => &self.counters.gather_close,
            Why::Stop => &self.counters.gather_stop,
        }
    }

    /// Lets everything go, as far as the iods are there.
    pub(crate) async fn let_all_go(&self) {
        let files = self.gathered.files();
        let gone = future::join_all(files.iter().map(|file| self.let_go(*file, Part::All, Why::Stop))).await;
        if let Some(error) = gone.into_iter().find_map(Result::err) {
            tracing::warn!("not all that small writers have written could be written: {error}");
        }
    }
}

/// Lets go what has waited for long enough, for ever.
pub(crate) async fn watch(room: Arc<Room>) {
    let mut going = FuturesUnordered::new();
    loop {
        for file in room.gathered.due(AT_ONCE - going.len()) {
            let room = &room;
            going.push(async move { room.let_go(file, Part::All, Why::Delay).await });
        }
        tokio::select! {
            biased;
            Some(outcome) = going.next() => {
                if let Err(error) = outcome {
                    tracing::debug!("what is held is not written yet: {error}");
                }
            }
            () = room.gathered.wait(), if going.len() < AT_ONCE => {}
        }
    }
}
