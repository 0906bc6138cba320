//! The state of one shard of the index on its iod: durable runs, and runs of writers that have not synced yet.

use super::record::{CHUNK, Record};
use super::run::{LogNumber, Run, Source};
use super::run_set::RunSet;
use super::shard::Shard;
use std::collections::BTreeMap;
use types::ByteRange;

/// Number of the data logs of a file that the index can name. The log number 0 belongs to the mgr, which writes to the
/// striped base.
pub const LOGS_MAX: u32 = 1 << 21;
/// Largest number of pending runs of a shard. A shard refuses further runs until writers make their runs durable.
pub const PENDING_MAX: usize = 1 << 16;
/// Largest number of durable runs of a shard.
pub const RUNS_MAX: usize = 1 << 22;
/// Number of log numbers that a shard reserves with one record.
const RESERVED: u32 = 64;

/// Why a shard refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The shard has [`PENDING_MAX`] pending runs.
    #[error("the index has {PENDING_MAX} pieces of unsynced writes: sync the file more often")]
    Pending,
    /// The shard has [`RUNS_MAX`] durable runs.
    #[error("the index of the file has {RUNS_MAX} pieces: write larger pieces, or fold the file")]
    Full,
    /// The file has had [`LOGS_MAX`] data logs.
    #[error("the file has had {LOGS_MAX} writers: fold the file")]
    Logs,
}

/// A registration whose runs the writer has not made durable yet.
#[derive(Clone, Debug)]
struct Pending {
    log: LogNumber,
    sequence: u64,
    /// The runs, in the order in which they replace one another.
    runs: Vec<Run>,
}

/// One shard of the index of a file.
///
/// A registration is pending at first: every lookup sees it, and it is lost if the iod stops. Its writer makes it
/// durable once the bytes in the data log are durable. If the iod of the data log loses bytes of a pending run before
/// that, a reader finds the older bytes among the durable runs.
///
/// A durable change happens in two steps, so that the shard never knows more durable runs than its disk: the iod writes
/// the record of the change ([`Index::confirmation`]), and then applies it ([`Index::apply`]).
#[derive(Clone, Debug)]
pub struct Index {
    durable: Shard,
    /// The pending registrations, in the order in which they arrived.
    pending: Vec<Pending>,
    /// The sequence number of the last registration of each writer, pending or durable.
    sequences: BTreeMap<LogNumber, u64>,
    /// The sequence number of the last durable registration of each writer.
    durable_sequences: BTreeMap<LogNumber, u64>,
    /// The next log number that the shard gives to a writer.
    next_log: u32,
    /// The end of the reserved log numbers.
    reserved: u32,
    /// Offset after the last byte of the file that is in a log, according to the durable runs.
    end: u64,
}

impl Default for Index {
    fn default() -> Self {
        Index {
            durable: Shard::default(),
            pending: Vec::new(),
            sequences: BTreeMap::new(),
            durable_sequences: BTreeMap::new(),
            next_log: 1,
            reserved: 1,
            end: 0,
        }
    }
}

impl Index {
    /// Restores the state after a restart of the iod from the records on its disk.
    pub fn restored(records: impl IntoIterator<Item = Record>) -> Index {
        let mut index = Index::default();
        records.into_iter().for_each(|record| index.apply(record));
        // The iod may have given the reserved numbers to writers before it stopped.
        index.next_log = index.reserved;
        index
    }

    /// Returns the approximate number of bytes of memory that the shard uses.
    pub fn memory(&self) -> usize {
        let pending: usize =
            self.pending.iter().map(|pending| size_of::<Pending>() + size_of_val(&*pending.runs)).sum();
        size_of::<Index>() + self.durable.memory() + pending + self.sequences.len() * 2 * size_of::<(LogNumber, u64)>()
    }

    /// Returns the number of durable runs.
    pub fn durable_runs(&self) -> usize {
        self.durable.len()
    }

    /// Returns the number of pending runs.
    pub fn pending_runs(&self) -> usize {
        self.pending.iter().map(|pending| pending.runs.len()).sum()
    }

    /// Returns whether no registration is pending.
    pub fn is_durable(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds a registration of a writer, which stays pending until [`Index::confirmation`]. `sequence` increases with
    /// each registration of a data log, so that a repeated request has no effect. The log number 0 has no sequence.
    ///
    /// # Errors
    /// The shard has too many runs; then it adds none of these runs.
    pub fn register(&mut self, log: LogNumber, sequence: u64, runs: Vec<Run>) -> Result<(), Refused> {
        if log.0 != 0 && self.sequences.get(&log).is_some_and(|last| *last >= sequence) {
            return Ok(());
        }
        let runs = self.with_effect(runs);
        if self.durable.len() + runs.len() > RUNS_MAX {
            return Err(Refused::Full);
        }
        if self.pending_runs() + runs.len() > PENDING_MAX {
            return Err(Refused::Pending);
        }
        if log.0 != 0 {
            self.sequences.insert(log, sequence);
        }
        if !runs.is_empty() {
            self.pending.push(Pending { log, sequence, runs });
        }
        Ok(())
    }

    /// Returns the runs without those that change nothing: runs in the base where no run is in a log, unless they
    /// change the end.
    fn with_effect(&self, runs: Vec<Run>) -> Vec<Run> {
        let mut kept: Vec<Run> = Vec::new();
        let mut end = self.end();
        for run in runs {
            let range = run.bounds();
            let before = end;
            end = end_after(end, &run);
            if run.source() != Source::Base
                || end != before
                || kept.iter().any(|earlier| earlier.bounds().overlaps(range))
                || self.pending.iter().flat_map(|pending| &pending.runs).any(|other| other.bounds().overlaps(range))
                || self.durable.runs_in(range).any(|other| other.source() != Source::Base)
            {
                kept.push(run);
            }
        }
        kept
    }

    /// Returns the record that makes the pending registrations of a writer durable, up to a sequence number; `None` if
    /// there are none. The caller writes the record to the disk, and then applies it.
    pub fn confirmation(&self, log: LogNumber, sequence: u64) -> Option<Record> {
        let confirmed = self.pending.iter().filter(|pending| pending.is_of(log, sequence));
        let runs: Vec<Run> = confirmed.flat_map(|pending| pending.runs.iter().copied()).collect();
        (!runs.is_empty()).then_some(Record::Runs { log, sequence, runs })
    }

    /// Returns a log number that no writer of the file has, or the record that reserves more numbers. The caller writes
    /// such a record to the disk durably, applies it, and calls this function again.
    ///
    /// # Errors
    /// The file has had [`LOGS_MAX`] data logs.
    pub fn next_log(&mut self) -> Result<Result<LogNumber, Record>, Refused> {
        if self.next_log == LOGS_MAX {
            return Err(Refused::Logs);
        }
        if self.next_log == self.reserved {
            return Ok(Err(Record::Logs((self.reserved + RESERVED).min(LOGS_MAX))));
        }
        self.next_log += 1;
        Ok(Ok(LogNumber(self.next_log - 1)))
    }

    /// Applies a record that is on the disk. A checkpoint replaces everything, also the pending registrations.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Logs(logs) => self.reserved = logs.max(self.reserved),
            Record::Runs { log, sequence, runs } => {
                self.settle(log, sequence);
                self.end = runs.iter().fold(self.end, end_after);
                self.durable.register(runs);
                for sequences in [&mut self.sequences, &mut self.durable_sequences].into_iter().filter(|_| log.0 != 0) {
                    let last = sequences.entry(log).or_default();
                    *last = sequence.max(*last);
                }
            }
            Record::Checkpoint { logs, end, sequences } => {
                let sequences: BTreeMap<LogNumber, u64> = sequences.into_iter().collect();
                *self = Index { end, durable_sequences: sequences.clone(), sequences, ..Index::default() };
                self.reserved = logs.max(1);
            }
        }
    }

    /// Removes the pending registrations of a writer up to a sequence number. Their bytes are removed from the
    /// registrations that arrived before them, because the later registration wins whichever becomes durable first.
    fn settle(&mut self, log: LogNumber, sequence: u64) {
        let mut kept: Vec<Pending> = Vec::new();
        for pending in std::mem::take(&mut self.pending) {
            if !pending.is_of(log, sequence) {
                kept.push(pending);
                continue;
            }
            for earlier in &mut kept {
                for run in &pending.runs {
                    earlier.runs = earlier.runs.iter().flat_map(|older| older.minus(run)).collect();
                }
            }
        }
        kept.retain(|pending| !pending.runs.is_empty());
        self.pending = kept;
    }

    /// Returns the records of a checkpoint: the durable state of the shard. A writer whose pending registrations are
    /// lost registers them again, so the checkpoint has only the sequence numbers of durable registrations.
    pub fn checkpoint(&self) -> impl Iterator<Item = Record> {
        let sequences = self.durable_sequences.iter().map(|(log, sequence)| (*log, *sequence)).collect();
        let first = Record::Checkpoint { logs: self.reserved, end: self.end, sequences };
        let mut runs = self.durable.runs();
        let chunks = std::iter::from_fn(move || {
            let chunk: Vec<Run> = runs.by_ref().take(CHUNK).collect();
            (!chunk.is_empty()).then_some(Record::Runs { log: LogNumber(0), sequence: 0, runs: chunk })
        });
        std::iter::once(first).chain(chunks)
    }

    /// Returns the runs of a file range, cut to the range, in no order; they do not overlap. Bytes that are in no run
    /// are in the base. If the range has more than `max` runs, returns those of a shorter range that begins at the same
    /// offset; the first result is the range that the runs describe. With `only_durable`, ignores pending runs.
    ///
    /// # Panics
    /// If `max` is 0.
    pub fn lookup(&self, mut range: ByteRange, only_durable: bool, max: usize) -> (ByteRange, Vec<Run>) {
        assert!(max > 0, "a lookup returns at least one run");
        loop {
            let mut runs: Vec<Run> = self.durable.runs_in(range).take(max + 1).collect();
            if runs.len() <= max && !only_durable && !self.pending.is_empty() {
                runs = self.with_pending(range, runs);
            }
            if runs.len() <= max {
                runs.retain(|run| run.source() != Source::Base);
                return (range, runs);
            }
            range.len = range.len.div_ceil(2);
        }
    }

    fn with_pending(&self, range: ByteRange, durable: Vec<Run>) -> Vec<Run> {
        let mut set = RunSet::default();
        durable.into_iter().for_each(|run| set.add(run));
        let pending = self.pending.iter().flat_map(|pending| &pending.runs);
        pending.flat_map(|run| run.clip(range)).for_each(|run| set.insert(run));
        set.runs().collect()
    }

    /// Returns the offset after the last byte of the file that is in a log; at least 0. May be too large after a run in
    /// the base replaced the last bytes, unless that run reaches to the end.
    pub fn end(&self) -> u64 {
        self.pending.iter().flat_map(|pending| &pending.runs).fold(self.end, end_after)
    }
}

impl Pending {
    fn is_of(&self, log: LogNumber, sequence: u64) -> bool {
        self.log == log && self.sequence <= sequence
    }
}

/// Returns the offset after the last byte that is in a log, if it was `end` before `run` was registered.
fn end_after(end: u64, run: &Run) -> u64 {
    let bounds = run.bounds();
    match run.source() {
        Source::Log { .. } => end.max(bounds.end()),
        Source::Base if run.count() == 1 && bounds.end() >= end => end.min(bounds.offset),
        Source::Base => end,
    }
}
