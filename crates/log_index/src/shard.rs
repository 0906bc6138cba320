//! The durable runs of one shard of the index, in the order in which they became durable.

use super::packed::Packed;
use super::run::{Run, Source};
use super::run_set::RunSet;
use types::ByteRange;
use types::limits::FILE_SIZE_MAX;

/// Least number of runs that a shard keeps in the form for insertion before it merges them into the encoded ones.
const RECENT_LEAST: usize = 4096;
/// A shard merges its recent runs when they are more than this fraction of its encoded runs. So each run is encoded
/// again only a few times, however many runs follow it.
const RECENT_FRACTION: usize = 16;

/// The durable runs of one shard. A shard may also keep runs of bytes of the file that another shard is responsible for.
#[derive(Clone, Default, Debug)]
pub struct Shard {
    recent: RunSet,
    packed: Packed,
}

impl Shard {
    /// Returns the number of runs.
    pub fn len(&self) -> usize {
        self.packed.len() + self.recent.len()
    }

    /// Returns whether the shard has no runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the approximate number of bytes of memory that the runs use.
    pub fn memory(&self) -> usize {
        self.packed.memory() + self.recent.len() * size_of::<Run>()
    }

    /// Applies a registration: each of its runs replaces what earlier runs say about its bytes.
    pub fn register(&mut self, runs: impl IntoIterator<Item = Run>) {
        for run in runs {
            self.recent.insert(run);
            if self.recent.len() >= RECENT_LEAST.max(self.packed.len() / RECENT_FRACTION) {
                self.pack();
            }
        }
    }

    /// Encodes all runs, so that they use as little memory as possible.
    pub fn pack(&mut self) {
        self.packed.merge(std::mem::take(&mut self.recent));
    }

    /// Returns the runs, cut to `range`. They do not overlap. Bytes that are in no run are in the
    /// striped base.
    pub fn runs_in(&self, range: ByteRange) -> impl Iterator<Item = Run> {
        let older = self.packed.runs_in(range).flat_map(|run| self.recent.missing(&run));
        self.recent.runs_in(range).chain(older)
    }

    /// Returns all runs that are in a log.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.runs_in(ByteRange { offset: 0, len: FILE_SIZE_MAX }).filter(|run| run.source() != Source::Base)
    }
}
