//! Write gathering: which small writes are held in memory, and which requests flush them to the iods.
//!
//! Held bytes reach the iods before any other request can look for them there. A read, a copy, a truncation and a
//! layout grant flush them first. While another client may use the direct path, nothing is held. So no client sees
//! older bytes than without gathering.

use super::Volume;
use crate::counters::add;
use crate::gathered_writes::Small;
use crate::kinds::Stored;
use bytes::Bytes;
use futures_util::future;
use layout::gather::{Part, Run};
use nfs::fs::{Ctx, Stability, WriteOut};
use std::sync::atomic::AtomicU64;
use types::{ByteRange, FileId, Status};

/// Why held bytes are flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// A window is full.
    Full,
    /// The delay has passed.
    Delay,
    /// Their writer sent a COMMIT.
    Commit,
    /// A client reads or copies them, or looks for holes.
    Read,
    /// An overlapping write that is not held, a truncation or a hole.
    Write,
    /// A client gets a layout for the direct path.
    Layout,
    /// Their writer closes the file, or returns a layout, a delegation or a lock.
    Close,
    /// The mgr stops.
    Stop,
}

impl Volume {
    /// Holds an unstable write if it is small and nothing forbids it. The caller holds the file's lock shared.
    pub(super) async fn gather(
        &self,
        ctx: &Ctx,
        objects: &dyn Stored,
        offset: u64,
        data: &Bytes,
    ) -> Result<Option<WriteOut>, Status> {
        let (file, window) = (objects.known().file, objects.window());
        // A write to an iod that is down must fail now, while its writer can still retry it.
        if !self.gathered.is_for(data.len(), window) || objects.all_up().is_err() {
            return Ok(None);
        }
        // The verifier is from before the write is held: a later loss changes the verifier of every COMMIT.
        let verifier = self.iods.verifiers.combine(&[]);
        let writing = self.notes.writing(file).await?;
        // A client of an earlier start may use the direct path without a layout that this start knows.
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
            // The writer that fills a window waits for the flush, so that the mgr never holds more bytes than the iods
            // can take. A failure concerns all writers of the window, so COMMIT reports it.
            let _ = self.let_go_held(file, Part::Full, Why::Full).await;
        }
        Ok(Some(WriteOut { count: data.len() as u32, stable: Stability::Unstable, verifier }))
    }

    /// Flushes a part of a file's held bytes to the iods before another operation uses the objects. Returns `Delay`
    /// while the bytes cannot be written; bytes that can never be written are given up, which does not stop the caller.
    pub(crate) async fn settled(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        match self.let_go(file, part, why).await {
            Err(Status::Delay) => Err(Status::Delay),
            _ => Ok(()),
        }
    }

    /// As [`Self::settled`], for callers that hold the file's lock, shared or exclusive.
    pub(crate) async fn settled_held(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        match self.let_go_held(file, part, why).await {
            Err(Status::Delay) => Err(Status::Delay),
            _ => Ok(()),
        }
    }

    /// Writes a part of a file's held bytes. On `Delay` they stay held; on any other error they are given up.
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
            // The file is gone, so no client can read the bytes.
            Err(Status::Stale) => leaving.end(Ok(())),
            Err(error) => {
                tracing::warn!(file = file.0, "cannot write acknowledged writes to the iods: {error}");
                self.give_up();
                leaving.end(Err(error));
            }
        }
        outcome
    }

    /// Counts a loss and changes the verifier. Called before the bytes in flight are dropped, so that no COMMIT that
    /// finds nothing held returns the old verifier.
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
                // The namespace has known the size since the bytes were held.
                writing.done();
                Ok(())
            }
            // No request waits for a lost iod, and neither does this flush. When the writer sends the bytes again, it
            // learns which of them can be written.
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

    /// Flushes all held bytes, as far as the iods are up.
    pub(crate) async fn let_all_go(&self) {
        let files = self.gathered.files();
        let gone = future::join_all(files.iter().map(|file| self.let_go(*file, Part::All, Why::Stop))).await;
        if let Some(error) = gone.into_iter().find_map(Result::err) {
            tracing::warn!("cannot write all gathered writes to the iods: {error}");
        }
    }
}
