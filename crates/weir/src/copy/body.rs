//! The transfer of one file's bytes, by several threads at the same time if the file is large.

use super::buffers::{PIECE, Pool};
use super::entry::Location;
use super::job::FileJob;
use super::local;
use super::remote::Weir;
use super::report::Report;
use super::side::{Open, Side};
use crate::failure::Failure;
use crate::stop::Stop;
use client::Segment;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use types::ByteRange;

/// Number of bytes of a chunk, which one thread copies at a time; a multiple of every usual stripe unit.
pub const CHUNK: u64 = 16 << 20;
/// Length of one read from Weir in bytes. It is large enough that several iods work at the same time.
const READ: usize = 4 * PIECE;
/// Minimum length of a range that iods copy from one to another if source and destination are one file system. For a
/// shorter range, the additional requests to the iods cost more time than they save.
const BY_IODS_FROM: u64 = 2 << 20;
/// Minimum size of a file in Weir whose holes the copy looks up before it reads the file. In a smaller file, the copy
/// finds the holes by its READ requests alone, because a READ reply reports holes.
const PROBE_HOLES_FROM: u64 = 64 << 20;

/// A source file whose bytes are being copied to a new file, which has a temporary name until it is complete.
pub struct Body {
    /// The copy task: the source file, the destination directory, and the destination name.
    pub job: FileJob,
    /// The source file, open for reading.
    pub source: Open,
    /// The new file, open for writing.
    pub sink: Open,
    /// The location of the new file, under its temporary name.
    pub location: Location,
    /// The temporary name of the new file.
    pub temporary: Vec<u8>,
    cursor: Mutex<u64>,
    /// Whether the iods may copy ranges of the file. `false` once the iods have failed to copy a range.
    by_iods: AtomicBool,
    written: AtomicU64,
    failure: Mutex<Option<Failure>>,
}

/// The source, destination, buffers, report and stop flag that all file transfers of a copy share.
pub struct TransferContext<'a> {
    /// The source of the copy.
    pub from: &'a Side,
    /// The destination of the copy.
    pub to: &'a Side,
    /// Buffers for reads of local files.
    pub pool: &'a Pool,
    /// The report that receives the progress.
    pub report: &'a Report,
    /// The stop flag, which is set when the user asks the command to stop.
    pub stop: &'a Stop,
}

impl Body {
    /// Returns a transfer that has not copied any byte of the file yet.
    pub fn new(job: FileJob, source: Open, sink: Open, location: Location, temporary: Vec<u8>) -> Self {
        let (cursor, failure, by_iods) = (Mutex::new(0), Mutex::new(None), AtomicBool::new(true));
        Body { job, source, sink, location, temporary, cursor, by_iods, written: AtomicU64::new(0), failure }
    }

    /// Copies chunks of the file until no chunk is left or a chunk has failed.
    pub fn work(&self, means: &TransferContext) {
        if let Err(failure) = self.move_chunks(means) {
            let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(failure);
            // A chunk has failed. Move the position of the next chunk to the end of the file, so that the other threads
            // find no chunk left.
            *self.cursor.lock().unwrap_or_else(PoisonError::into_inner) = self.size();
        }
    }

    /// Returns the first failure of any thread that copies the file; `None` if no thread has failed.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the highest end offset of all bytes that the threads have written to the new file.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Adds the final path of the destination file to a write failure, as the name that the failure message shows.
    fn at_target(&self, failure: Failure) -> Failure {
        failure.of(super::named(&self.job.folder.location, &self.job.name))
    }

    fn size(&self) -> u64 {
        self.job.meta.attrs.size
    }

    fn move_chunks(&self, means: &TransferContext) -> Result<(), Failure> {
        while let Some(chunk) = self.next_chunk(means)? {
            match (&self.source, &self.sink, means.from, means.to) {
                (Open::Local(source), Open::Weir(sink), _, Side::Weir(weir)) => {
                    self.local_to_weir(means, source, sink, weir, chunk)?;
                }
                (Open::Weir(source), Open::Weir(sink), Side::Weir(weir), Side::Weir(to))
                    if weir.is_same(to) && self.copy_by_iods(means, source, weir, sink, chunk)? => {}
                (Open::Weir(source), sink, Side::Weir(weir), to) => {
                    self.weir_to_any(means, source, weir, sink, to, chunk)?
                }
                _ => return Err(Failure::new("both sides are local")),
            }
        }
        Ok(())
    }

    fn next_chunk(&self, means: &TransferContext) -> Result<Option<ByteRange>, Failure> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let probe = matches!(self.source, Open::Local(_)) || self.size() >= PROBE_HOLES_FROM;
        let data = match probe {
            true => means.from.next_data(&self.source, *cursor, self.size())?,
            false => ByteRange::new(*cursor, self.size() - *cursor).filter(|rest| !rest.is_empty()),
        };
        let start = data.map_or(self.size(), |data| data.offset);
        means.report.moved(0, start - *cursor);
        *cursor = start;
        let Some(data) = data else { return Ok(None) };
        // End each chunk at a multiple of the chunk size, so that no two threads write to the same stripe unit.
        let end = data.end().min((start / CHUNK + 1) * CHUNK);
        *cursor = end;
        Ok(ByteRange::new(start, end - start))
    }

    fn local_to_weir(
        &self,
        means: &TransferContext,
        source: &std::fs::File,
        sink: &client::File,
        weir: &Weir,
        chunk: ByteRange,
    ) -> Result<(), Failure> {
        let piece = PIECE as u64;
        let mut at = chunk.offset;
        while at < chunk.end() {
            means.stop.check()?;
            let len = chunk.end().min((at / piece + 1) * piece) - at;
            let mut buffer = means.pool.take();
            let got = local::read(source, at, len as usize, &mut buffer)?;
            if (got as u64) < len {
                return Err(shrank());
            }
            weir.wait(sink.write_at(at, buffer.filled(got))).map_err(|e| self.at_target(e))?;
            means.report.moved(len, 0);
            at += len;
            self.written.fetch_max(at, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Requests the iods to copy a chunk. Returns `false` if the iods did not copy the chunk. The caller then copies
    /// the chunk through this machine, and reports an error only if this second copy fails too.
    fn copy_by_iods(
        &self,
        means: &TransferContext,
        source: &client::File,
        weir: &Weir,
        sink: &client::File,
        chunk: ByteRange,
    ) -> Result<bool, Failure> {
        if chunk.len < BY_IODS_FROM || !self.by_iods.load(Ordering::Relaxed) {
            return Ok(false);
        }
        means.stop.check()?;
        match weir.wait(sink.copy_range(chunk.offset, source, chunk)) {
            Ok(copied) if copied == chunk.len => {
                means.report.moved(copied, 0);
                self.written.fetch_max(chunk.end(), Ordering::AcqRel);
                Ok(true)
            }
            Ok(_) => Err(shrank()),
            Err(failure) => {
                means.stop.check()?;
                tracing::debug!(%failure, "the iods cannot copy the file: copying it through this client");
                self.by_iods.store(false, Ordering::Relaxed);
                Ok(false)
            }
        }
    }

    fn weir_to_any(
        &self,
        means: &TransferContext,
        source: &client::File,
        weir: &Weir,
        sink: &Open,
        to: &Side,
        chunk: ByteRange,
    ) -> Result<(), Failure> {
        let mut at = chunk.offset;
        while at < chunk.end() {
            means.stop.check()?;
            let len = (chunk.end() - at).min(READ as u64) as usize;
            let found = weir.wait(source.read_at(at, len))?;
            if found.len() < len as u64 {
                return Err(shrank());
            }
            for segment in found.segments {
                let here = at;
                at += segment.len();
                let Segment::Data(data) = segment else {
                    means.report.moved(0, at - here);
                    continue;
                };
                let written = match (sink, to) {
                    (Open::Local(file), _) => file.write_all_at(&data, here).map_err(Failure::from),
                    (Open::Weir(file), Side::Weir(weir)) => weir.wait(file.write_at(here, data)),
                    (Open::Weir(_), Side::Local) => Err(Failure::new("the file belongs to the other side of the copy")),
                };
                written.map_err(|e| self.at_target(e))?;
                means.report.moved(at - here, 0);
                self.written.fetch_max(at, Ordering::AcqRel);
            }
        }
        Ok(())
    }
}

fn shrank() -> Failure {
    Failure::new("the file became shorter while it was copied").next("copy it again when no program writes it")
}
