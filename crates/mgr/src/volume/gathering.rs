//! Write gathering: which small writes the mgr holds in memory, and which requests flush them to the iods.
//!
//! The mgr flushes held bytes before any other request can read or change the objects: a read, a copy, a truncation or
//! a layout grant. While another client may use the direct path, the mgr holds no writes. So gathering never makes a
//! client read older bytes.

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

/// Why the mgr flushes held bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// A gathering window is full.
    Full,
    /// The gather delay of the held bytes has passed.
    Delay,
    /// A client sent a COMMIT for the file.
    Commit,
    /// A client reads or copies the held bytes, or searches for data or holes (SEEK).
    Read,
    /// A client truncates the file, punches a hole, or overwrites held bytes by a write that the mgr does not hold.
    Write,
    /// A client gets a layout for the direct path.
    Layout,
    /// A client closes the file, or returns a layout, a delegation or a lock.
    Close,
    /// The mgr stops, and first flushes the held bytes of all files.
    Stop,
}

impl Volume {
    /// Holds an unstable write in memory, if the write is small and no other client may use the direct path. Returns
    /// `None` if the caller must write the bytes to the iods at once. The caller has the file's shared lock.
    pub(super) async fn gather(
        &self,
        ctx: &Ctx,
        objects: &dyn Stored,
        offset: u64,
        data: &Bytes,
    ) -> Result<Option<WriteOut>, Status> {
        let (file, window) = (objects.known().file, objects.window());
        // A write to an iod that is down must fail at once, so that the client can retry it. So do not hold this write.
        if !self.gathered.is_for(data.len(), window) || objects.all_up().is_err() {
            return Ok(None);
        }
        // Get the verifier before holding the write. If the mgr loses the held bytes later, every COMMIT then returns a
        // different verifier.
        let verifier = self.iods.verifiers.combine(&[]);
        let writing = self.intents.writing(file).await?;
        // Hold no writes if a client from before the restart of the mgr may use the direct path, under a layout that
        // this start has not granted.
        let may = || !self.intents.is_unfenced(file) && self.grants.all_come_here(file, ctx.client);
        let small = Small { client: ctx.client, offset, data, window };
        let Some(taken) = self.gathered.take(file, small, may) else {
            writing.done();
            return Ok(None);
        };
        let range = ByteRange { offset, len: data.len() as u64 };
        self.namespace.record_write(&ctx.cred, ctx.now, file, range).await?;
        writing.done();
        add(&self.counters.gathered_writes, 1);
        add(&self.counters.gathered_bytes, data.len() as u64);
        add(&self.counters.gathered_joined, u64::from(taken.joined));
        if taken.full {
            // The client whose write fills a gathering window waits for the flush, so clients cannot write faster than
            // the iods process the bytes. A failed flush concerns all clients that wrote into the window, so COMMIT
            // returns the error to each of them.
            let _ = self.let_go_held(file, Part::Full, Why::Full).await;
        }
        Ok(Some(WriteOut { count: data.len() as u32, stable: Stability::Unstable, verifier }))
    }

    /// Flushes the held bytes in a range of a file to the iods before another operation uses the objects. Fails with
    /// `Delay` if the mgr cannot write the bytes now. If the bytes can never be written, discards them, and the
    /// operation of the caller continues.
    pub(crate) async fn settled(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        match self.let_go(file, part, why).await {
            Err(Status::Delay) => Err(Status::Delay),
            _ => Ok(()),
        }
    }

    /// Flushes like [`Self::settled`], for callers that have the file's lock, shared or exclusive.
    pub(crate) async fn settled_held(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        match self.let_go_held(file, part, why).await {
            Err(Status::Delay) => Err(Status::Delay),
            _ => Ok(()),
        }
    }

    /// Flushes the held bytes in a range of a file to the iods. After `Delay`, the mgr still holds the bytes. After any
    /// other error, it has discarded them.
    pub(crate) async fn let_go(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        if !self.gathered.meets(file, part) {
            return Ok(());
        }
        let _shared = self.shared(file).await?;
        self.let_go_held(file, part, why).await
    }

    async fn let_go_held(&self, file: FileId, part: Part, why: Why) -> Result<(), Status> {
        let Some(flush) = self.gathered.begin_flush(file, part).await else { return Ok(()) };
        add(self.counter(why), 1);
        let outcome = self.write_held(file, &flush.runs).await;
        match outcome {
            Ok(()) => flush.end(Ok(())),
            Err(Status::Delay) => drop(flush),
            // The file was deleted, so no client can read the held bytes, and they need no flush.
            Err(Status::Stale) => flush.end(Ok(())),
            Err(error) => {
                tracing::warn!(file = file.0, "cannot write acknowledged writes to the iods: {error}");
                self.give_up();
                flush.end(Err(error));
            }
        }
        outcome
    }

    /// Counts discarded bytes and changes the write verifier. The caller calls this function before it discards the
    /// bytes. Otherwise a COMMIT could find no held bytes and return the old verifier.
    fn give_up(&self) {
        add(&self.counters.gather_losses, 1);
        self.iods.verifiers.lost();
    }

    async fn write_held(&self, file: FileId, runs: &[Run]) -> Result<(), Status> {
        let info = self.regular(file)?;
        let Some(objects) = self.objects(&info)? else { return Err(Status::ServerFault) };
        let writing = self.intents.writing(file).await?;
        match objects.write(runs, false).await {
            Ok(_) => {
                // The namespace has had the new size since the mgr began to hold the bytes, so the write is complete.
                writing.done();
                Ok(())
            }
            // An iod of the file is lost, so discard the bytes instead of waiting for the iod. The client sends the
            // bytes again, and the replies show which of the bytes can be written.
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

    /// Flushes the held bytes of all files to those iods that are up.
    pub(crate) async fn let_all_go(&self) {
        let files = self.gathered.files();
        let gone = future::join_all(files.iter().map(|file| self.let_go(*file, Part::All, Why::Stop))).await;
        if let Some(error) = gone.into_iter().find_map(Result::err) {
            tracing::warn!("cannot write all gathered writes to the iods: {error}");
        }
    }
}
