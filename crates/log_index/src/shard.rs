//! One shard of the index: the runs of a part of the file, in the order in which their registrations arrived.

use super::packed::Packed;
use super::run::Run;
use super::run_set::RunSet;
use std::collections::BTreeMap;
use types::ByteRange;

/// Length of the part of the file that one shard covers, in bytes.
pub const SHARD_LEN: u64 = 64 << 20;
/// Least number of runs that a shard keeps in the form for insertion before it merges them into the encoded ones.
const RECENT_LEAST: usize = 4096;
/// A shard merges its recent runs when they are more than this fraction of its encoded runs. So each run is encoded
/// again only a few times, however many runs follow it.
const RECENT_FRACTION: usize = 16;

/// The runs of a part of the file.
#[derive(Clone, Default, Debug)]
pub struct Shard {
    version: u64,
    recent: RunSet,
    packed: Packed,
}

impl Shard {
    /// Returns the number of registrations so far. An unchanged version means that the runs are unchanged.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the approximate number of bytes of memory that the runs use.
    pub fn memory(&self) -> usize {
        self.packed.memory() + self.recent.len() * size_of::<Run>()
    }

    /// Applies a registration: each of its runs replaces what earlier runs say about its bytes. Returns the version of
    /// the shard after the registration.
    pub fn register(&mut self, runs: impl IntoIterator<Item = Run>) -> u64 {
        for run in runs {
            self.recent.insert(run);
            if self.recent.len() >= RECENT_LEAST.max(self.packed.len() / RECENT_FRACTION) {
                self.pack();
            }
        }
        self.version += 1;
        self.version
    }

    /// Encodes all runs, so that they use as little memory as possible.
    pub fn pack(&mut self) {
        self.packed.merge(std::mem::take(&mut self.recent));
    }

    /// Returns the runs, cut to `range`. They do not overlap. Bytes that are in no run are a hole.
    pub fn runs_in(&self, range: ByteRange) -> impl Iterator<Item = Run> {
        let older = self.packed.runs_in(range).flat_map(|run| self.recent.missing(&run));
        self.recent.runs_in(range).chain(older)
    }
}

/// Divides runs among the shards of a file: returns, for the number of each shard, the runs that it has to register, in
/// their order. Shard `n` covers [`SHARD_LEN`] bytes from file offset `n * SHARD_LEN`.
///
/// The number of shards grows with the length of the longest piece, so the runs must be of bytes that the caller wrote:
/// a hole to the end of the largest file, or a run that a peer sent, would have 2^36 shards.
pub fn by_shard(runs: &[Run]) -> BTreeMap<u64, Vec<Run>> {
    let mut shards: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
    for run in runs {
        let bounds = run.bounds();
        let mut shard = bounds.offset / SHARD_LEN;
        // If the pieces are far apart, most shards have no bytes of the run. Continue with the next piece after each
        // shard.
        while let Some(next) = run.next_piece(shard * SHARD_LEN) {
            shard = shard.max(next.offset / SHARD_LEN);
            let range = ByteRange { offset: shard * SHARD_LEN, len: SHARD_LEN };
            shards.entry(shard).or_default().extend(run.clip(range));
            shard += 1;
        }
    }
    shards
}
