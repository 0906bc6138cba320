//! A set of runs that do not overlap: the state of a part of a file after a sequence of registrations.

use super::run::{Extent, Run, cut};
use std::collections::BTreeMap;
use types::ByteRange;

/// Runs that do not overlap. A run that is inserted replaces what earlier runs say about its bytes.
#[derive(Clone, Default, Debug)]
pub struct RunSet {
    /// The runs of one piece, by their file offset.
    singles: BTreeMap<u64, Extent>,
    /// The runs of several pieces, in no order.
    strided: Vec<Run>,
}

impl RunSet {
    /// Returns the number of runs in the set.
    pub fn len(&self) -> usize {
        self.singles.len() + self.strided.len()
    }

    /// Returns whether the set has no runs.
    pub fn is_empty(&self) -> bool {
        self.singles.is_empty() && self.strided.is_empty()
    }

    /// Returns all runs of the set, first the runs of one piece in the order of their file offsets.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.singles.values().map(|single| Run::from(*single)).chain(self.strided.iter().copied())
    }

    /// Inserts a run. The bytes of earlier runs that the run contains are removed from the set.
    pub fn insert(&mut self, run: Run) {
        for offset in self.overlapped(&run) {
            if let Some(single) = self.singles.remove(&offset) {
                Run::from(single).minus(&run).into_iter().for_each(|left| self.add(left));
            }
        }
        let (overlapped, kept): (Vec<Run>, Vec<Run>) =
            std::mem::take(&mut self.strided).into_iter().partition(|strided| strided.overlaps(&run));
        self.strided = kept;
        overlapped.iter().flat_map(|strided| strided.minus(&run)).for_each(|left| self.add(left));
        self.add(run);
    }

    /// Adds a run that overlaps no run of the set.
    pub(super) fn add(&mut self, run: Run) {
        if run.count() > 1 {
            self.strided.push(run);
            return;
        }
        let mut single = Extent { file: run.first(), source: run.source() };
        if let Some((_, before)) = self.singles.range(..single.file.offset).next_back()
            && let Some(joined) = joined(before, &single)
        {
            single = joined;
        }
        if let Some(next) = self.singles.get(&single.file.end())
            && let Some(joined) = joined(&single, next)
        {
            self.singles.remove(&single.file.end());
            single = joined;
        }
        self.singles.insert(single.file.offset, single);
    }

    /// Returns the file offsets of the runs of one piece that overlap `run`.
    fn overlapped(&self, run: &Run) -> Vec<u64> {
        if run.count() as usize > self.singles.len() {
            let bounds = run.bounds();
            let inside = self.singles_in(bounds).filter(|single| run.overlaps(&Run::from(**single)));
            return inside.map(|single| single.file.offset).collect();
        }
        let pieces = run.extents_in(run.bounds());
        let mut offsets: Vec<u64> =
            pieces.flat_map(|piece| self.singles_in(piece.file)).map(|single| single.file.offset).collect();
        offsets.dedup();
        offsets
    }

    /// Returns the runs of one piece that have bytes in `range`, in the order of their file offsets.
    fn singles_in(&self, range: ByteRange) -> impl Iterator<Item = &Extent> {
        let before = self.singles.range(..range.offset).next_back().map(|(_, single)| single);
        let inside = self.singles.range(range.offset..range.end()).map(|(_, single)| single);
        before.filter(move |single| single.file.overlaps(range)).into_iter().chain(inside)
    }

    /// Returns the runs, cut to `range`; first the runs of one piece in the order of their file offsets.
    pub fn runs_in(&self, range: ByteRange) -> impl Iterator<Item = Run> {
        let singles = self.singles_in(range).filter_map(move |single| cut(*single, range)).map(Run::from);
        singles.chain(self.strided.iter().flat_map(move |run| run.clip(range)))
    }

    /// Returns where the bytes of `range` are, in the order of their file offsets, in as few extents as possible. Bytes
    /// of which the set knows nothing are in no extent.
    pub fn extents_in(&self, range: ByteRange) -> Vec<Extent> {
        let mut pieces: Vec<Extent> = self.runs_in(range).flat_map(|run| run.extents_in(range)).collect();
        pieces.sort_unstable_by_key(|piece| piece.file.offset);
        let mut extents: Vec<Extent> = Vec::new();
        for piece in pieces {
            match extents.last_mut().and_then(|last| joined(last, &piece).map(|longer| (last, longer))) {
                Some((last, longer)) => *last = longer,
                None => extents.push(piece),
            }
        }
        extents
    }

    /// Returns the part of `run` of which the set knows nothing.
    pub(super) fn missing(&self, run: &Run) -> Vec<Run> {
        let singles = self.singles_in(run.bounds()).map(|single| Run::from(*single));
        let known = singles.chain(self.strided.iter().copied()).filter(|known| known.overlaps(run));
        known.fold(vec![*run], |left, known| left.iter().flat_map(|part| part.minus(&known)).collect())
    }
}

/// Returns two extents as one, if the second follows the first in the file and in the log.
fn joined(first: &Extent, second: &Extent) -> Option<Extent> {
    let follows = first.file.end() == second.file.offset && first.source.after(first.file.len) == second.source;
    let file = ByteRange { offset: first.file.offset, len: first.file.len + second.file.len };
    follows.then_some(Extent { file, source: first.source })
}
