//! Write gathering for one file: which written bytes stay in memory, when the client or the mgr must send them, and
//! which writes merge.
//!
//! Gathered bytes are in chunks that never overlap: a newer write overwrites the older bytes of the same range.
//! Chunks belong to windows: consecutive file ranges of equal length. As soon as a window is full, the caller sends
//! the window, as whole stripe units. The caller sends all other windows when the oldest gathered byte has waited for
//! the gather delay, or when another operation needs the bytes on the servers. Bytes in flight stay in memory until
//! the servers have acknowledged them. If sending fails, the bytes in flight become gathered bytes again, except
//! where newer writes cover them. Gaps between written bytes are never filled: the caller sends only bytes that a
//! program wrote.

use crate::Distribution;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use types::ByteRange;
use types::limits::PAYLOAD_MAX;

/// Memory in bytes that a chunk of gathered bytes uses in addition to its data.
const CHUNK_BYTES: usize = 128;
/// Memory limit of gathered bytes, as a number of windows (file ranges of equal length). Beyond this limit the caller
/// sends all gathered bytes, because scattered writes fill no window.
const CROWDED: usize = 4;

/// A run: consecutive bytes of a file, with their file offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// File offset of the first byte of the run.
    pub offset: u64,
    /// The bytes of the run; never empty.
    pub data: Bytes,
}

impl Run {
    /// Returns the file range of the run.
    pub fn range(&self) -> ByteRange {
        ByteRange { offset: self.offset, len: self.data.len() as u64 }
    }
}

/// A selection of gathered bytes that the caller wants to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All gathered bytes of the file.
    All,
    /// The chunks of gathered bytes that overlap this file range.
    Overlapping(ByteRange),
    /// The windows (file ranges of equal length) in which every byte is gathered, or all gathered bytes if they
    /// exceed the memory limit.
    Full,
}

/// The gathered writes of one file. Every time is a duration since a fixed moment, which the caller chooses.
#[derive(Debug)]
pub struct Gather {
    window: u64,
    delay: Duration,
    /// Windows (file ranges of equal length) that have gathered bytes, by window number: the file offset divided by the
    /// window size.
    held: BTreeMap<u64, Window>,
    /// Bytes in flight: bytes that the caller has sent and that the servers have not acknowledged yet.
    leaving: Vec<Run>,
    due: Option<Duration>,
    weight: usize,
}

#[derive(Debug, Default)]
struct Window {
    filled: u64,
    /// The chunks of gathered bytes in this window, by file offset. Chunks do not overlap.
    chunks: BTreeMap<u64, Vec<u8>>,
}

impl Gather {
    /// Returns a `Gather` without gathered bytes, whose windows have `window` bytes each. The caller must send gathered
    /// bytes when they have waited for the time `delay`.
    ///
    /// # Panics
    /// If `window` is 0.
    pub fn new(window: u64, delay: Duration) -> Self {
        assert!(window > 0, "a window has bytes");
        Gather { window, delay, held: BTreeMap::new(), leaving: Vec::new(), due: None, weight: 0 }
    }

    /// Returns the size in bytes of the gather windows of files with this distribution. A window has as many full
    /// stripes as fit in one request. If a stripe is longer than a request, a window has as many stripe units as fit in
    /// one request.
    pub fn window_of(distribution: &Distribution) -> u64 {
        let (most, unit) = (PAYLOAD_MAX as u64, distribution.stripe_unit());
        let round = unit.saturating_mul(distribution.count() as u64);
        let step = if round <= most { round } else { unit };
        if step > most { most } else { most - most % step }
    }

    /// Adds the bytes of a write, which replace gathered bytes of earlier writes at the same offsets. Returns whether
    /// the new bytes overlap or adjoin gathered bytes.
    pub fn write(&mut self, now: Duration, offset: u64, data: &[u8]) -> bool {
        let joined = self.lay(offset, data, true);
        if self.due.is_none() && !self.held.is_empty() {
            self.due = Some(now + self.delay);
        }
        joined
    }

    /// Returns the time at which the caller must send the gathered bytes; `None` if no bytes are gathered.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Returns the memory in bytes that gathered bytes and bytes in flight use. Bytes in flight count until the servers
    /// have acknowledged them.
    pub fn weight(&self) -> usize {
        self.weight + self.leaving.iter().map(|run| run.data.len() + CHUNK_BYTES).sum::<usize>()
    }

    /// Returns an upper bound for the growth of [`Self::weight`] (the memory that the bytes use) by a write of `len`
    /// bytes.
    pub fn growth(&self, len: usize) -> usize {
        let windows = len as u64 / self.window + 2;
        // A vector may double its capacity when it grows, so count the bytes of the write twice.
        2 * len + CHUNK_BYTES * windows as usize + self.weight
    }

    /// Returns whether any byte of the selection `part` is gathered or in flight.
    pub fn meets(&self, part: Part) -> bool {
        let leaving = match part {
            Part::All => !self.leaving.is_empty(),
            Part::Overlapping(range) => self.leaving.iter().any(|run| run.range().overlaps(range)),
            Part::Full => false,
        };
        leaving || self.holds(part)
    }

    /// Returns whether no byte is gathered or in flight.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.leaving.is_empty()
    }

    fn holds(&self, part: Part) -> bool {
        match part {
            Part::All => !self.held.is_empty(),
            Part::Overlapping(range) => self.windows(range).any(|(_, window)| window.meeting(range).next().is_some()),
            Part::Full => self.is_crowded() || self.held.values().any(|window| window.filled == self.window),
        }
    }

    fn is_crowded(&self) -> bool {
        self.weight as u64 >= CROWDED as u64 * self.window
    }

    /// Removes the gathered bytes that `part` selects, and returns them in file order for sending. The caller sends the
    /// returned byte ranges to the servers and then reports the outcome with [`Self::arrived`] or [`Self::back`].
    /// Returns `None` if `part` selects no bytes. Also returns `None` while other bytes of the file are in flight:
    /// newer bytes must not reach a server before older bytes.
    pub fn leave(&mut self, part: Part) -> Option<Vec<Run>> {
        if !self.leaving.is_empty() || !self.holds(part) {
            return None;
        }
        let part = if part == Part::Full && self.is_crowded() { Part::All } else { part };
        let gone: Vec<(u64, u64)> = match part {
            Part::All => self.keys(|_, _| true),
            Part::Full => self.keys(|window, _| window.filled == self.window),
            Part::Overlapping(range) => self.keys(|_, chunk| chunk.overlaps(range)),
        };
        let runs = gone.into_iter().filter_map(|(number, offset)| self.take(number, offset));
        self.leaving = runs.collect();
        if self.held.is_empty() {
            self.due = None;
        }
        Some(self.leaving.clone())
    }

    /// Reports that the servers have acknowledged the bytes in flight, or that the caller discards them.
    pub fn arrived(&mut self) {
        self.leaving.clear();
    }

    /// Reports that sending failed. The bytes in flight become gathered bytes again, except where newer writes cover
    /// them. The caller must send these bytes again at the time `due`.
    pub fn back(&mut self, due: Duration) {
        let back = std::mem::take(&mut self.leaving);
        if !back.is_empty() {
            self.due = Some(due);
        }
        for run in back {
            self.lay(run.offset, &run.data, false);
        }
    }

    /// Returns the keys of all chunks of gathered bytes for which `wanted` returns true: the number of the window that
    /// has the chunk, and the file offset of the chunk.
    fn keys(&self, wanted: impl Fn(&Window, ByteRange) -> bool) -> Vec<(u64, u64)> {
        let chunks = self.held.iter().flat_map(|(number, window)| {
            window.chunks.iter().map(move |(offset, data)| (*number, window, range_of(*offset, data)))
        });
        chunks.filter(|(_, window, range)| wanted(window, *range)).map(|(number, _, r)| (number, r.offset)).collect()
    }

    fn take(&mut self, number: u64, offset: u64) -> Option<Run> {
        let window = self.held.get_mut(&number)?;
        let data = window.chunks.remove(&offset)?;
        window.filled -= data.len() as u64;
        if window.chunks.is_empty() {
            self.held.remove(&number);
        }
        self.weight -= data.capacity() + CHUNK_BYTES;
        Some(Run { offset, data: data.into() })
    }

    /// Returns the windows that overlap the file range `range`, with their window numbers.
    fn windows(&self, range: ByteRange) -> impl Iterator<Item = (&u64, &Window)> {
        let last = range.end().saturating_sub(1).max(range.offset) / self.window;
        self.held.range(range.offset / self.window..=last)
    }

    /// Adds bytes to the gathered bytes. The argument `over` says which bytes remain where new and gathered bytes
    /// overlap: the new bytes if `over` is true, the gathered bytes if `over` is false. Returns whether the new bytes
    /// overlap or adjoin gathered bytes.
    fn lay(&mut self, offset: u64, data: &[u8], over: bool) -> bool {
        let mut joined = false;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let number = at / self.window;
            let room = (number + 1).saturating_mul(self.window) - at;
            let len = (data.len() - done).min(usize::try_from(room).unwrap_or(usize::MAX));
            let window = self.held.entry(number).or_default();
            let (grown, touched) = window.lay(at, &data[done..done + len], over);
            self.weight += grown;
            joined |= touched;
            done += len;
        }
        joined
    }
}

fn range_of(offset: u64, data: &[u8]) -> ByteRange {
    ByteRange { offset, len: data.len() as u64 }
}

impl Window {
    fn meeting(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        // The last chunk that begins at or before the start of `range` may overlap `range`, so start the search at this
        // chunk.
        let first = self.chunks.range(..=range.offset).next_back().map_or(range.offset, |(offset, _)| *offset);
        let chunks = self.chunks.range(first..range.end().max(first)).map(|(offset, data)| range_of(*offset, data));
        chunks.filter(move |chunk| chunk.overlaps(range))
    }

    /// Adds bytes to the chunks of this window. The argument `over` says which bytes remain where the new bytes and a
    /// chunk overlap: the new bytes if `over` is true, the bytes of the chunk if `over` is false. Returns the growth
    /// of memory in bytes, and whether the new bytes overlap or adjoin a chunk.
    fn lay(&mut self, offset: u64, mut data: &[u8], over: bool) -> (usize, bool) {
        let (mut at, mut grown, mut joined) = (offset, 0, false);
        while !data.is_empty() {
            let before = self.chunks.range_mut(..=at).next_back();
            let before = before.map(|(start, chunk)| ((at - start) as usize, chunk));
            if let Some((from, chunk)) = before.filter(|(from, chunk)| *from < chunk.len()) {
                let len = data.len().min(chunk.len() - from);
                if over {
                    chunk[from..from + len].copy_from_slice(&data[..len]);
                }
                (at, data, joined) = (at + len as u64, &data[len..], true);
                continue;
            }
            let next = self.chunks.range(at..).next().map(|(start, _)| *start);
            joined |= next.is_some_and(|next| next <= at + data.len() as u64);
            let free = next.map_or(data.len(), |next| data.len().min((next - at) as usize));
            let (front, rest) = data.split_at(free);
            let before = self.chunks.range_mut(..at).next_back();
            match before.filter(|(start, chunk)| **start + chunk.len() as u64 == at) {
                Some((_, chunk)) => {
                    let had = chunk.capacity();
                    chunk.extend_from_slice(front);
                    (grown, joined) = (grown + chunk.capacity() - had, true);
                }
                None => {
                    let chunk = front.to_vec();
                    grown += chunk.capacity() + CHUNK_BYTES;
                    self.chunks.insert(at, chunk);
                }
            }
            self.filled += free as u64;
            (at, data) = (at + free as u64, rest);
        }
        (grown, joined)
    }
}

/// Returns the file ranges of the written bytes `runs`, which must be in file order. Joins contiguous ranges.
pub fn ranges(runs: &[Run]) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    for run in runs.iter().map(Run::range) {
        match ranges.last_mut() {
            Some(last) if last.end() == run.offset => last.len += run.len,
            _ => ranges.push(run),
        }
    }
    ranges
}

/// Returns the bytes of `runs` that lie in the file range `range`, as slices without a copy. `runs` must be in file
/// order.
pub fn slices(runs: &[Run], range: ByteRange) -> impl Iterator<Item = Bytes> {
    let first = runs.partition_point(|run| run.range().end() <= range.offset);
    runs[first..].iter().map_while(move |run| {
        let part = run.range().intersection(range)?;
        let from = (part.offset - run.offset) as usize;
        Some(run.data.slice(from..from + part.len as usize))
    })
}
