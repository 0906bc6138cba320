//! Joins the writes of one client into runs, with constant work for each write.

use super::run::{LogNumber, Run, Source};
use types::ByteRange;

/// Joins the writes that a client appends to its data log into runs.
///
/// Only consecutive writes are joined. So the runs, applied in their order, have the same effect as the writes in
/// theirs, also where the writes overlap. Between two registrations of a client, a shard may apply registrations of
/// other clients. So a caller takes all runs ([`RunBuilder::take`]) at each registration, and later writes are not
/// joined to them (PLFS joins them, and returns old data).
#[derive(Debug)]
pub struct RunBuilder {
    log: LogNumber,
    runs: Vec<Run>,
    /// Offset in the data log after the last write.
    position: u64,
}

impl RunBuilder {
    /// Creates a builder without writes. The next write is at offset `position` of the data log `log`.
    pub fn new(log: LogNumber, position: u64) -> Self {
        RunBuilder { log, runs: Vec::new(), position }
    }

    /// Returns the offset in the data log after the last write.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the runs of all writes since the last call of [`RunBuilder::take`].
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Adds a write of a file range, whose bytes the client appended to the data log.
    ///
    /// # Errors
    /// The file or the log would exceed the largest size of a file. The write is not added.
    pub fn append(&mut self, file: ByteRange) -> Result<(), super::BadRun> {
        let write = Run::single(file, Source::Log { log: self.log, position: self.position })?;
        self.position += file.len;
        match self.runs.last_mut().and_then(|last| extended(last, &write).map(|longer| (last, longer))) {
            Some((last, longer)) => *last = longer,
            None => self.runs.push(write),
        }
        self.join_last();
        Ok(())
    }

    /// Takes the runs of all writes since the last call.
    pub fn take(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.runs)
    }

    /// Joins the last run to the run before it, if the last run is the next piece of that run.
    fn join_last(&mut self) {
        let [.., before, last] = &self.runs[..] else { return };
        if last.count() == 1
            && let Some(joined) = with_piece(before, last)
        {
            self.runs.pop();
            self.runs.pop();
            self.runs.push(joined);
        }
    }
}

/// Returns a run of one piece, extended by the write that follows it in the file.
fn extended(last: &Run, write: &Run) -> Option<Run> {
    let ByteRange { offset, len } = last.first();
    let adjacent = last.count() == 1 && last.first().end() == write.first().offset;
    let longer = ByteRange { offset, len: len + write.first().len };
    adjacent.then(|| Run::single(longer, last.source()).ok())?
}

/// Returns `run` with `piece` as one more piece, if `piece` has the length and the distance of the pieces of `run`.
fn with_piece(run: &Run, piece: &Run) -> Option<Run> {
    let (first, next) = (run.first(), piece.first());
    let stride = match run.count() {
        1 => next.offset.checked_sub(first.offset)?,
        _ => run.stride(),
    };
    if next.len != first.len || piece.source() != run.source().after(run.bytes()) {
        return None;
    }
    let expected = run.count().checked_mul(stride)?.checked_add(first.offset)?;
    if next.offset != expected { None } else { Run::new(first, run.source(), stride, run.count() + 1).ok() }
}
