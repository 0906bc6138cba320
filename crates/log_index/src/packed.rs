//! The older runs of a shard, in their encoded form, which takes a few bytes for each run.

use super::encoding::{decode, encode};
use super::run::{Run, Source};
use super::run_set::RunSet;
use types::ByteRange;

/// Number of runs in a block. A lookup decodes whole blocks.
const BLOCK: usize = 256;

/// Runs that do not overlap. The runs of one piece are encoded, in blocks that are sorted by file offset.
#[derive(Clone, Default, Debug)]
pub(super) struct Packed {
    blocks: Vec<Block>,
    strided: Vec<Run>,
    /// Number of runs in `blocks` and `strided`.
    count: usize,
}

/// The encoded runs of a part of the file, in the order of their file offsets.
#[derive(Clone, Debug)]
struct Block {
    bounds: ByteRange,
    runs: Box<[u8]>,
}

impl Block {
    /// Decodes the runs of the block.
    fn runs(&self) -> Vec<Run> {
        decode(&self.runs, BLOCK).expect("the runs of a block were encoded by this process")
    }
}

impl Packed {
    /// Returns the number of runs.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes of memory that the runs use.
    pub(super) fn memory(&self) -> usize {
        let blocks = self.blocks.iter().map(|block| size_of::<Block>() + block.runs.len());
        blocks.sum::<usize>() + self.strided.len() * size_of::<Run>()
    }

    /// Returns the runs, cut to `range`.
    pub(super) fn runs_in(&self, range: ByteRange) -> impl Iterator<Item = Run> {
        let first = self.blocks.partition_point(|block| block.bounds.end() <= range.offset);
        let blocks = self.blocks[first..].iter().take_while(move |block| block.bounds.offset < range.end());
        blocks.flat_map(Block::runs).chain(self.strided.iter().copied()).flat_map(move |run| run.clip(range))
    }

    /// Merges newer runs into the older ones, which the newer runs replace where they overlap. Drops runs in the striped
    /// base, because bytes of which the index knows nothing are in the base too.
    pub(super) fn merge(&mut self, mut newer: RunSet) {
        let older = std::mem::take(&mut self.strided);
        let left: Vec<Run> = older.iter().flat_map(|run| newer.missing(run)).collect();
        left.into_iter().for_each(|run| newer.add(run));
        let mut blocks = BlockWriter::default();
        let mut added = newer.runs().take_while(|run| run.count() == 1).peekable();
        let older = std::mem::take(&mut self.blocks);
        for run in older.iter().flat_map(Block::runs).flat_map(|run| newer.missing(&run)) {
            while let Some(earlier) = added.next_if(|added| added.first().offset < run.first().offset) {
                blocks.push(earlier);
            }
            blocks.push(run);
        }
        added.for_each(|run| blocks.push(run));
        (self.blocks, self.count) = blocks.end();
        self.strided = newer.runs().filter(|run| run.count() > 1 && run.source() != Source::Base).collect();
        self.count += self.strided.len();
    }
}

/// Collects runs of one piece into blocks, in the order of their file offsets.
#[derive(Default)]
struct BlockWriter {
    blocks: Vec<Block>,
    runs: Vec<Run>,
    /// Number of runs in all blocks.
    count: usize,
}

impl BlockWriter {
    fn push(&mut self, run: Run) {
        if run.source() == Source::Base {
            return;
        }
        self.count += 1;
        self.runs.push(run);
        if self.runs.len() == BLOCK {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        let (Some(first), Some(last)) = (self.runs.first(), self.runs.last()) else { return };
        let bounds = first.bounds().around(last.bounds());
        self.blocks.push(Block { bounds, runs: encode(self.runs.drain(..)).into() });
    }

    /// Returns all blocks, and the number of their runs.
    fn end(mut self) -> (Vec<Block>, usize) {
        self.end_block();
        (self.blocks, self.count)
    }
}
