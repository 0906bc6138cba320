//! One client of a replay. It runs its operations of the trace one after another.

use super::store::{Buffer, Connection, Opened};
use super::{Latencies, Shared, Sums, aligned, verify};
use crate::failure::Failure;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use trace::written::Written;
use trace::{Action, Op, content};

/// A client of a replay, which runs in its own thread.
pub(super) struct Client {
    shared: Arc<Shared>,
    pub(super) connection: Connection,
    copy: usize,
    number: usize,
    open: HashMap<u32, Opened>,
    /// For each file, a model of the bytes that this client has written.
    models: HashMap<u32, Written>,
    /// Number of writes that this client has started.
    writes: u64,
    buffer: Buffer,
}

/// What one client reports when it ends.
pub(super) struct ClientResult {
    pub(super) copy: usize,
    pub(super) latencies: Latencies,
    pub(super) sums: Sums,
    pub(super) threshold: Option<u64>,
    pub(super) models: HashMap<u32, Written>,
    pub(super) failure: Option<Failure>,
}

/// Returns the name of a file, which contains the index of the copy of the trace and the index of the file in the
/// trace.
pub(super) fn name(copy: usize, file: u32) -> String {
    format!("{copy}-{file}")
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>, connection: Connection, copy: usize, number: usize) -> Client {
        let (open, models) = (HashMap::new(), HashMap::new());
        Client { shared, connection, copy, number, open, models, writes: 0, buffer: Buffer::default() }
    }

    /// Writes zeros to the files that the trace reads, for one copy of the trace. Fills each file up to the highest
    /// offset that the trace reads in the file.
    pub(super) fn fill(&mut self, copy: usize) -> Result<(), Failure> {
        const PIECE: u64 = 1 << 20;
        let zeros = aligned(PIECE as usize, |_| {});
        for (file, end) in &self.shared.filled {
            let opened = self.connection.open(&name(copy, *file))?;
            // Use only writes of exactly 1 MiB, because O_DIRECT requires aligned lengths.
            for at in (0..end.div_ceil(PIECE)).map(|piece| piece * PIECE) {
                self.shared.stop.check()?;
                self.connection.write(&opened, at, zeros.clone())?;
            }
            self.connection.fsync(&opened)?;
            self.connection.close(opened)?;
        }
        Ok(())
    }

    /// Runs all operations of the trace that belong to this client.
    pub(super) fn work(mut self) -> ClientResult {
        let shared = self.shared.clone();
        let mut latencies = Latencies::default();
        let mut failure = None;
        for (at, op) in shared.trace.clients[self.number].iter().enumerate() {
            if shared.is_over() {
                break;
            }
            let begun = Instant::now();
            let outcome = self.data(op).and_then(|data| {
                let begun = Instant::now();
                self.one(op, data)?;
                Ok(begun.elapsed())
            });
            let took = match outcome {
                Ok(took) => took,
                Err(error) => {
                    let what = format!(
                        "client {}, operation {}, {} of file {}",
                        self.number,
                        at + 1,
                        op.action.word(),
                        op.file
                    );
                    failure = Some(error.about(what));
                    shared.failed.store(true, Relaxed);
                    begun.elapsed()
                }
            };
            if at >= shared.warm {
                latencies.record(op, took);
            }
            shared.bar.inc(1);
        }
        for (_, file) in std::mem::take(&mut self.open) {
            if let Err(error) = self.connection.close(file) {
                failure = failure.or(Some(error));
            }
        }
        let (sums, threshold) = (self.connection.sums(), self.connection.threshold());
        self.connection.leave();
        ClientResult { copy: self.copy, latencies, sums, threshold, models: self.models, failure }
    }

    /// Returns the bytes that a write operation writes; empty for other operations.
    fn data(&mut self, op: &Op) -> Result<bytes::Bytes, Failure> {
        if op.action != Action::Write {
            return Ok(bytes::Bytes::new());
        }
        self.writes += 1;
        if !self.shared.verify {
            return Ok(self.shared.pool.slice(..op.len as usize));
        }
        // Give each write its own number. The content of the write follows from this number, so a read shows which
        // write stored the bytes.
        let number = ((self.number as u64) << 40) + self.writes;
        self.models.entry(op.file).or_default().write(op.offset, u64::from(op.len), number);
        Ok(aligned(op.len as usize, |out| content::fill(op.file, number, op.offset, out)))
    }

    fn one(&mut self, op: &Op, data: bytes::Bytes) -> Result<(), Failure> {
        let name = || name(self.copy, op.file);
        match op.action {
            Action::Open => {
                let opened = self.connection.open(&name())?;
                self.open.insert(op.file, opened);
                return Ok(());
            }
            Action::Remove => {
                self.models.remove(&op.file);
                return self.connection.remove(&name());
            }
            Action::Close => {
                let file = self.open.remove(&op.file);
                return file.map_or(Ok(()), |file| self.connection.close(file));
            }
            Action::Read | Action::Write | Action::Fsync => {}
        }
        // This error indicates a bug, because the parser and the generators of traces ensure that every operation uses
        // an open file.
        let Some(file) = self.open.get(&op.file) else { return Err(Failure::new("the file is not open")) };
        match op.action {
            Action::Write => self.connection.write(file, op.offset, data),
            Action::Fsync => self.connection.fsync(file),
            _ => {
                let alone = self.shared.users.get(&op.file).is_some_and(Option::is_some);
                let compare = self.shared.verify && alone;
                let range = (op.offset, op.len as usize);
                let len = self.connection.read(file, range, &mut self.buffer, compare)?;
                let model = self.models.get(&op.file);
                match compare {
                    true => {
                        let filled = self.shared.filled.get(&op.file).copied().unwrap_or(0);
                        verify::read(op, model, filled, self.buffer.space(len))
                    }
                    false => Ok(()),
                }
            }
        }
    }
}
