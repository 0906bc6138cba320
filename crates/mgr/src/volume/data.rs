//! READ, WRITE, COMMIT, SEEK, ALLOCATE, DEALLOCATE and server-side copy on the mgr path.

use super::Volume;
use super::gathering::Why;
use crate::counters::add;
use crate::proxy::zeros;
use bytes::Bytes;
use layout::gather::{Part, Run};
use meta::schema::{Holes, Whole, WriteEnd};
use nfs::fs::{Content, Ctx, ReadOut, SeekOut, Stability, WriteOut};
use types::{ByteRange, FileId, Status, Verifier, limits};

/// Number of times that the mgr repeats a read that found lost bytes. Bytes can seem lost to a read during which a
/// client truncates the file and writes it again.
const LOST_TRIES: usize = 3;
/// Page size of kernel clients in bytes, which is the unit of their reads.
const PAGE: u64 = 4096;

impl Volume {
    /// Reads a range of a file. Repeats the read if a truncation or a move during the read may have turned bytes of the
    /// range into zeros.
    pub(crate) async fn read(&self, ctx: &Ctx, file: FileId, offset: u64, len: u32) -> Result<ReadOut, Status> {
        let mut tries = LOST_TRIES;
        loop {
            let swapped = self.moves.swapped();
            let (out, reached) = match self.read_once(ctx, file, offset, len).await {
                Err(Status::Lost) if tries > 0 => {
                    tries -= 1;
                    continue;
                }
                read => read.inspect_err(|e| self.tell_lost(file, *e))?,
            };
            // If a move has ended during the read, the read may have used old objects, which read as zeros after their
            // deletion. A truncation changes the size of the file before it truncates objects. So if the size is
            // unchanged, no truncation interfered with the read.
            if self.moves.swapped() == swapped && self.regular(file)?.attrs.size >= reached {
                return Ok(out);
            }
        }
    }

    /// Reads a range like [`Self::read`], but does not repeat the read. Also returns the end of the range that it has
    /// read, at most the file size.
    async fn read_once(&self, ctx: &Ctx, file: FileId, offset: u64, len: u32) -> Result<(ReadOut, u64), Status> {
        let mut info = self.regular(file)?;
        let wanted = u64::from(len).min(limits::PAYLOAD_MAX as u64);
        if offset.saturating_add(wanted) > info.attrs.size {
            info.attrs = self.attrs(ctx, file).await?;
        }
        let size = info.attrs.size;
        let range = ByteRange { offset, len: wanted.min(size.saturating_sub(offset)) };
        let eof = range.end() >= size;
        if range.is_empty() {
            return Ok((ReadOut { data: Default::default(), eof }, 0));
        }
        if !self.is_in_objects(&info)
            && let Some(data) = self.read_inline(file, range)?
        {
            add(&self.counters.proxy_read_bytes, range.len);
            return Ok((ReadOut { data, eof }, 0));
        }
        self.settled(file, Part::Overlapping(range), Why::Read).await?;
        // Read the state of the file again, because another request may have moved the inline bytes to objects.
        let data = match self.objects(&self.regular(file)?)? {
            Some(objects) => {
                let read = objects.read(range).await;
                if objects.is_damaged() && objects.mirrors() > 1 {
                    self.damaged.found(file, &objects.suspects());
                }
                read?
            }
            None => zeros(range),
        };
        add(&self.counters.proxy_reads, 1);
        add(&self.counters.proxy_read_bytes, range.len);
        Ok((ReadOut { data, eof }, range.end()))
    }

    /// Writes bytes to a file. If a copy has lost bytes, first repairs the file from its other copy. Without another
    /// copy, fails with `Lost`, because the write would turn the lost bytes into zeros.
    pub(crate) async fn write(
        &self,
        ctx: &Ctx,
        file: FileId,
        offset: u64,
        data: Bytes,
        wanted: Stability,
    ) -> Result<WriteOut, Status> {
        match self.write_once(ctx, file, offset, data.clone(), wanted).await {
            Err(Status::Lost) => {
                self.rebuild(file, &[]).await.inspect_err(|e| self.tell_lost(file, *e))?;
                self.write_once(ctx, file, offset, data, wanted).await
            }
            other => other,
        }
    }

    async fn write_once(
        &self,
        ctx: &Ctx,
        file: FileId,
        offset: u64,
        mut data: Bytes,
        wanted: Stability,
    ) -> Result<WriteOut, Status> {
        data.truncate(limits::PAYLOAD_MAX);
        self.moves.check_changes(file)?;
        let _shared = self.shared(file).await?;
        let info = self.regular(file)?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= limits::FILE_SIZE_MAX);
        end.ok_or(Status::FBig)?;
        if data.is_empty() {
            return Ok(WriteOut { count: 0, stable: wanted, verifier: self.iods.verifiers.combine(&[]) });
        }
        if let Some(out) = self.write_inline(ctx, &info, offset, &data, wanted).await? {
            return Ok(self.counted(out));
        }
        let objects = self.objects_now(ctx.now, &info).await?;
        // While an iod is lost, make the write stable on the other iods, because a later COMMIT of the file could not
        // reach all its iods.
        let stable = wanted > Stability::Unstable || objects.lost_in(None);
        if !stable && let Some(out) = self.gather(ctx, &*objects, offset, &data).await? {
            return Ok(self.counted(out));
        }
        let run = Run { offset, data };
        self.settled_held(file, Part::Overlapping(run.range()), Why::Write).await?;
        let writing = self.intents.writing(file).await?;
        let written = objects.write(std::slice::from_ref(&run), stable).await?;
        if stable && !written.stable {
            tracing::error!(file = file.0, "an iod answered a stable write without making it durable");
            return Err(Status::Io);
        }
        if stable {
            self.namespace.set_size(&ctx.cred, ctx.now, file, run.range(), None).await?;
        } else {
            self.namespace.record_write(&ctx.cred, ctx.now, file, run.range()).await?;
        }
        writing.done();
        // Reply with the stability that the client requested, even if the iods have made the bytes durable: the
        // namespace has made the new file size only as durable as the client requested.
        let stable = if stable { Stability::FileSync } else { Stability::Unstable };
        Ok(self.counted(WriteOut { count: run.data.len() as u32, stable, verifier: written.verifier }))
    }

    fn counted(&self, out: WriteOut) -> WriteOut {
        add(&self.counters.proxy_writes, 1);
        add(&self.counters.proxy_write_bytes, out.count.into());
        out
    }

    pub(crate) async fn commit(&self, ctx: &Ctx, file: FileId) -> Result<Verifier, Status> {
        self.regular(file)?;
        let gone = self.let_go(file, Part::All, Why::Commit).await;
        // Return the error of a failed flush once to each client that wrote the lost bytes, whether the flush of this
        // COMMIT or an earlier flush failed.
        let failed = if gone == Err(Status::Delay) { None } else { self.gathered.take_error(file, ctx.client) };
        gone.and(failed.map_or(Ok(()), Err))?;
        // The shared lock excludes truncations and moves of the objects.
        let shared = self.locks.shared(file).await;
        let info = self.regular(file)?;
        let verifier = match self.objects(&info)? {
            Some(objects) if !self.intents.is_unwritten(file) => {
                let (size, known) = (info.attrs.size, info.whole);
                let (verifier, whole) = objects.commit(size).await?;
                if whole && known < size && self.intents.truncation(file).is_none() {
                    self.namespace.record_whole(ctx.now, file, Whole { from: 0, end: size }).await?;
                }
                verifier
            }
            _ => self.iods.verifiers.combine(&[]),
        };
        drop(shared);
        self.intents.settle(file).await?;
        add(&self.counters.proxy_commits, 1);
        Ok(verifier)
    }

    pub(crate) async fn seek(&self, ctx: &Ctx, file: FileId, offset: u64, what: Content) -> Result<SeekOut, Status> {
        self.regular(file)?;
        let size = self.attrs(ctx, file).await?.size;
        if offset >= size {
            return Err(Status::NxIo);
        }
        self.settled(file, Part::All, Why::Read).await?;
        let found = match self.seek_inline(file, offset, what)? {
            Some(found) => found,
            None => match self.objects(&self.regular(file)?)? {
                Some(objects) => objects.seek(offset, what).await?,
                None => return Err(Status::ServerFault),
            },
        };
        match (what, found) {
            (Content::Data, Some(at)) if at < size => Ok(SeekOut { offset: at, eof: false }),
            (Content::Data, _) => Err(Status::NxIo),
            (Content::Hole, at) => {
                let offset = at.unwrap_or(size).min(size);
                Ok(SeekOut { offset, eof: offset == size })
            }
        }
    }

    /// Makes the iods copy the beginning of a range of one file to the offset `target` of another file, as an unstable
    /// write. Returns `None` if the iods cannot copy. The client must then read and write the bytes itself, and any
    /// part of them may be written already.
    pub(crate) async fn copy(
        &self,
        ctx: &Ctx,
        (from, range): (FileId, ByteRange),
        (to, target): (FileId, u64),
    ) -> Result<Option<WriteOut>, Status> {
        self.settled(from, Part::Overlapping(range), Why::Read).await?;
        self.settled(to, Part::Overlapping(ByteRange { offset: target, len: range.len }), Why::Write).await?;
        self.moves.check_changes(to)?;
        // The shared locks exclude truncations. All tasks lock the file with the lower inode number first, so that no
        // two tasks deadlock.
        let _first = self.shared(from.min(to)).await?;
        let _second = self.shared(from.max(to)).await?;
        let (source, info) = (self.regular(from)?, self.regular(to)?);
        let len = range.end().min(source.attrs.size).saturating_sub(range.offset);
        let Some(from) = self.objects(&source)?.filter(|_| len > 0) else { return Ok(None) };
        let objects = self.objects_now(ctx.now, &info).await?;
        let len = objects.copied_at_once(&*from, len);
        let end = target.checked_add(len).filter(|end| *end <= limits::FILE_SIZE_MAX).ok_or(Status::FBig)?;
        if objects.all_up().is_err() {
            return Ok(None);
        }
        let writing = self.intents.writing(to).await?;
        let range = ByteRange { offset: range.offset, len };
        let Some(written) = objects.copy(&*from, range, target).await? else { return Ok(None) };
        // A hole of the source file may become a hole of the target file, so record that the target file has holes.
        let holes = if source.attrs.holes { Holes::Made } else { Holes::Before(target) };
        self.namespace.record_write(&ctx.cred, ctx.now, to, WriteEnd { end, holes, whole: None }).await?;
        writing.done();
        add(&self.counters.iod_copied_bytes, len);
        Ok(Some(WriteOut { count: len as u32, stable: Stability::Unstable, verifier: written.verifier }))
    }

    /// Reserves space for a range of a file on all its iods, and then extends the file to the end of the range.
    ///
    /// The objects grow before the file. If the mgr dies before the file has grown, or an iod has no space, the mgr
    /// later measures the size of the file by its objects.
    pub(crate) async fn allocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> Result<(), Status> {
        self.settled(file, Part::Overlapping(range), Why::Write).await?;
        self.moves.check_changes(file)?;
        let _shared = self.shared(file).await?;
        let info = self.regular(file)?;
        if range.end() > limits::FILE_SIZE_MAX {
            return Err(Status::FBig);
        }
        let objects = self.objects_now(ctx.now, &info).await?;
        let writing = self.intents.writing(file).await?;
        // If a client reads a page of the file in which an object ends, the data server of this object has to request
        // the file length from the mgr. To avoid this, also reserve the rest of the last page, as far as the file
        // extends.
        let end = range.end().next_multiple_of(PAGE).min(info.attrs.size).max(range.end());
        objects.reserve(ByteRange { offset: range.offset, len: end - range.offset }).await?;
        self.namespace.set_size(&ctx.cred, ctx.now, file, range, None).await?;
        writing.done();
        add(&self.counters.allocations, 1);
        Ok(())
    }

    /// Extends a file to `end` bytes, unless the file has at least this length. Other clients may extend the file at
    /// the same time.
    pub(crate) async fn extend(&self, ctx: &Ctx, file: FileId, end: u64) -> Result<(), Status> {
        self.moves.check_changes(file)?;
        let _shared = self.shared(file).await?;
        self.regular(file)?;
        if end > limits::FILE_SIZE_MAX {
            return Err(Status::FBig);
        }
        self.namespace
            .record_write(&ctx.cred, ctx.now, file, WriteEnd { end, holes: Holes::Before(end), whole: None })
            .await
            .map(drop)
    }

    pub(crate) async fn deallocate(&self, ctx: &Ctx, file: FileId, range: ByteRange) -> Result<(), Status> {
        self.settled(file, Part::Overlapping(range), Why::Write).await?;
        self.moves.check_changes(file)?;
        let _shared = self.shared(file).await?;
        let info = self.regular(file)?;
        // Bytes after the end of the file need not be punched. But while clients hold write layouts, the objects may
        // reach beyond the recorded size, so punch the whole range then.
        let end = if self.grants.written(file) { limits::FILE_SIZE_MAX } else { info.attrs.size };
        let len = range.end().min(end).saturating_sub(range.offset);
        if len == 0 {
            return Ok(());
        }
        let range = ByteRange { offset: range.offset, len };
        if !self.is_in_objects(&info) && self.punch_inline(ctx, file, range).await? {
            return Ok(());
        }
        let Some(objects) = self.objects(&self.regular(file)?)? else { return Err(Status::ServerFault) };
        objects.punch(range).await?;
        // Update the times and the change attribute of the file in the namespace. The size of the file stays the same.
        let punched = WriteEnd { end: 0, holes: Holes::Made, whole: None };
        self.namespace.set_size(&ctx.cred, ctx.now, file, punched, None).await.map(drop)
    }
}
