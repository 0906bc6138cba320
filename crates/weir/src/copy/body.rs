//! The transfer of one file's bytes, shared by the threads that work on the file.

use super::buffers::{PIECE, Pool};
use super::end::{End, Open};
use super::entry::Spot;
use super::job::FileJob;
use super::local;
use super::remote::Weir;
use super::report::Report;
use crate::failure::Failure;
use crate::stop::Stop;
use client::Segment;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use types::ByteRange;

/// Bytes that one thread takes at a time; a multiple of every usual stripe unit.
pub const CHUNK: u64 = 16 << 20;
/// Bytes per read from Weir: enough pieces to keep several iods busy.
const READ: usize = 4 * PIECE;
/// Minimum length of a range that the iods copy themselves if both sides are one file system. Asking them costs some
/// requests.
const BY_IODS_FROM: u64 = 2 << 20;
/// Files of a Weir file system below this size are read without asking for their holes first: the answer to each read
/// reports holes.
const PROBE_HOLES_FROM: u64 = 64 << 20;

/// A file being copied into its temporary name.
pub struct Body {
    /// The source and the destination.
    pub job: FileJob,
    /// The open source file.
    pub source: Open,
    /// The open new file.
    pub sink: Open,
    /// The new file's spot.
    pub spot: Spot,
    /// The temporary name of the file.
    pub temporary: Vec<u8>,
    cursor: Mutex<u64>,
    /// `false` once the iods have failed to copy a range of the file.
    by_iods: AtomicBool,
    written: AtomicU64,
    failure: Mutex<Option<Failure>>,
}

/// What a transfer needs besides the two files.
pub struct Means<'a> {
    /// The source side.
    pub from: &'a End,
    /// The destination side.
    pub to: &'a End,
    /// Buffers for local reads.
    pub pool: &'a Pool,
    /// Receives the progress.
    pub report: &'a Report,
    /// Set when the user asks to stop.
    pub stop: &'a Stop,
}

impl Body {
    /// Returns the body of a file of which nothing is copied yet.
    pub fn new(job: FileJob, source: Open, sink: Open, spot: Spot, temporary: Vec<u8>) -> Self {
        let (cursor, failure, by_iods) = (Mutex::new(0), Mutex::new(None), AtomicBool::new(true));
        Body { job, source, sink, spot, temporary, cursor, by_iods, written: AtomicU64::new(0), failure }
    }

    /// Moves chunks until none is left or one has failed.
    pub fn work(&self, means: &Means) {
        if let Err(failure) = self.move_chunks(means) {
            let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(failure);
            // The other threads find no chunk left.
            *self.cursor.lock().unwrap_or_else(PoisonError::into_inner) = self.size();
        }
    }

    /// Returns the first failure, if there is one.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the end of the last byte written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Attributes a write failure to the destination file.
    fn at_target(&self, failure: Failure) -> Failure {
        failure.of(super::named(&self.job.folder.spot, &self.job.name))
    }

    fn size(&self) -> u64 {
        self.job.meta.attrs.size
    }

    fn move_chunks(&self, means: &Means) -> Result<(), Failure> {
        while let Some(chunk) = self.next_chunk(means)? {
            match (&self.source, &self.sink, means.from, means.to) {
                (Open::Local(source), Open::Weir(sink), _, End::Weir(weir)) => {
                    self.local_to_weir(means, source, sink, weir, chunk)?;
                }
                (Open::Weir(source), Open::Weir(sink), End::Weir(weir), End::Weir(to))
                    if weir.is_same(to) && self.copy_by_iods(means, source, weir, sink, chunk)? => {}
                (Open::Weir(source), sink, End::Weir(weir), to) => {
                    self.weir_to_any(means, source, weir, sink, to, chunk)?
                }
                _ => return Err(Failure::new("both sides are local")),
            }
        }
        Ok(())
    }

    fn next_chunk(&self, means: &Means) -> Result<Option<ByteRange>, Failure> {
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
        // Chunks end at multiples of their size, so that threads do not share stripe units.
        let end = data.end().min((start / CHUNK + 1) * CHUNK);
        *cursor = end;
        Ok(ByteRange::new(start, end - start))
    }

    fn local_to_weir(
        &self,
        means: &Means,
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

    /// Asks the iods to copy a chunk and returns whether they did. If not, the caller copies it through this machine,
    /// which also reports the error.
    fn copy_by_iods(
        &self,
        means: &Means,
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
        means: &Means,
        source: &client::File,
        weir: &Weir,
        sink: &Open,
        to: &End,
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
                    (Open::Weir(file), End::Weir(weir)) => weir.wait(file.write_at(here, data)),
                    (Open::Weir(_), End::Local) => Err(Failure::new("the file belongs to the other side of the copy")),
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
