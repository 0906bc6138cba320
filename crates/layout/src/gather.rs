//! Gathering of small writes of one file: which bytes are held, when they must be sent, and which writes join.
//!
//! Held bytes are in chunks that never overlap: a newer write overwrites the older bytes of the same range. Chunks are
//! in windows of the file. A window that has all its bytes is sent at once, as whole stripe units. Other windows are
//! sent when the oldest byte has waited long enough, or when another operation needs the bytes on their servers. Sent
//! bytes are remembered until they have arrived. If they do not arrive, they are held again, beneath newer writes.
//! Bytes that no program wrote are never filled in: only written bytes are sent.

use crate::Distribution;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use types::ByteRange;
use types::limits::PAYLOAD_MAX;

/// Memory of a chunk besides its bytes.
const CHUNK_BYTES: usize = 128;
/// When held bytes take the memory of so many windows, all of them are sent, because scattered writes fill no window.
const CROWDED: usize = 4;

/// Bytes with their offset in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// The bytes, at least one.
    pub data: Bytes,
}

impl Run {
    /// Returns the range of the bytes in the file.
    pub fn range(&self) -> ByteRange {
        ByteRange { offset: self.offset, len: self.data.len() as u64 }
    }
}

/// Which held bytes to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All bytes that are held.
    All,
    /// The chunks that have a byte of this range.
    Meeting(ByteRange),
    /// The full windows, or all bytes if they take much memory.
    Full,
}

/// The gathered writes of one file. Times are measured from any moment, the same for all calls.
#[derive(Debug)]
pub struct Gather {
    window: u64,
    delay: Duration,
    /// Windows by their number.
    held: BTreeMap<u64, Window>,
    /// Bytes that were sent and are not known to have arrived.
    leaving: Vec<Run>,
    due: Option<Duration>,
    weight: usize,
}

#[derive(Debug, Default)]
struct Window {
    filled: u64,
    /// Chunks by their offset in the file; they are inside the window and never overlap.
    chunks: BTreeMap<u64, Vec<u8>>,
}

impl Gather {
    /// Returns an empty gather. Bytes are sent after `delay`, or when a window of `window` bytes is full.
    ///
    /// # Panics
    /// When the window has no bytes.
    pub fn new(window: u64, delay: Duration) -> Self {
        assert!(window > 0, "a window has bytes");
        Gather { window, delay, held: BTreeMap::new(), leaving: Vec::new(), due: None, weight: 0 }
    }

    /// Returns the window for files with this distribution: as many whole rounds over the iods as fit in a request,
    /// otherwise as many stripe units.
    pub fn window_of(distribution: &Distribution) -> u64 {
        let (most, unit) = (PAYLOAD_MAX as u64, distribution.stripe_unit());
        let round = unit.saturating_mul(distribution.count() as u64);
        let step = if round <= most { round } else { unit };
        if step > most { most } else { most - most % step }
    }

    /// Takes a write that is newer than all earlier ones. Returns whether it joined held bytes.
    pub fn write(&mut self, now: Duration, offset: u64, data: &[u8]) -> bool {
        let joined = self.lay(offset, data, true);
        if self.due.is_none() && !self.held.is_empty() {
            self.due = Some(now + self.delay);
        }
        joined
    }

    /// Returns when the held bytes must be sent.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Returns the memory in use, in bytes. Sent bytes count until they have arrived.
    pub fn weight(&self) -> usize {
        self.weight + self.leaving.iter().map(|run| run.data.len() + CHUNK_BYTES).sum::<usize>()
    }

    /// Returns the most by which [`Self::weight`] can grow when so many bytes are written.
    pub fn growth(&self, len: usize) -> usize {
        let windows = len as u64 / self.window + 2;
        // A buffer may double its capacity when it grows.
        2 * len + CHUNK_BYTES * windows as usize + self.weight
    }

    /// Returns whether a byte of this part is held or in transit.
    pub fn meets(&self, part: Part) -> bool {
        let leaving = match part {
            Part::All => !self.leaving.is_empty(),
            Part::Meeting(range) => self.leaving.iter().any(|run| run.range().overlaps(range)),
            Part::Full => false,
        };
        leaving || self.holds(part)
    }

    /// Returns whether no byte is held or in transit.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.leaving.is_empty()
    }

    fn holds(&self, part: Part) -> bool {
        match part {
            Part::All => !self.held.is_empty(),
            Part::Meeting(range) => self.windows(range).any(|(_, window)| window.meeting(range).next().is_some()),
            Part::Full => self.is_crowded() || self.held.values().any(|window| window.filled == self.window),
        }
    }

    fn is_crowded(&self) -> bool {
        self.weight as u64 >= CROWDED as u64 * self.window
    }

    /// Takes out a part for sending, in file order. The caller writes the returned runs and then reports the outcome by
    /// [`Self::arrived`] or [`Self::back`]. `None` when the part is empty, and while other bytes are in transit,
    /// because newer bytes must not overtake them.
    pub fn leave(&mut self, part: Part) -> Option<Vec<Run>> {
        if !self.leaving.is_empty() || !self.holds(part) {
            return None;
        }
        let part = if part == Part::Full && self.is_crowded() { Part::All } else { part };
        let gone: Vec<(u64, u64)> = match part {
            Part::All => self.keys(|_, _| true),
            Part::Full => self.keys(|window, _| window.filled == self.window),
            Part::Meeting(range) => self.keys(|_, chunk| chunk.overlaps(range)),
        };
        let runs = gone.into_iter().filter_map(|(number, offset)| self.take(number, offset));
        self.leaving = runs.collect();
        if self.held.is_empty() {
            self.due = None;
        }
        Some(self.leaving.clone())
    }

    /// Reports that the sent bytes have arrived, or that the caller gives them up.
    pub fn arrived(&mut self) {
        self.leaving.clear();
    }

    /// Reports that the sent bytes have not arrived: they are held again, beneath newer writes, and are due at `due`.
    pub fn back(&mut self, due: Duration) {
        let back = std::mem::take(&mut self.leaving);
        if !back.is_empty() {
            self.due = Some(due);
        }
        for run in back {
            self.lay(run.offset, &run.data, false);
        }
    }

    /// Returns window and offset of the chunks that `wanted` selects.
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

    /// Returns the windows that overlap this range, with their numbers.
    fn windows(&self, range: ByteRange) -> impl Iterator<Item = (&u64, &Window)> {
        let last = range.end().saturating_sub(1).max(range.offset) / self.window;
        self.held.range(range.offset / self.window..=last)
    }

    /// Puts bytes over or beneath the held ones. Returns whether they overlap or adjoin held bytes.
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
        // The last chunk that begins before the range may reach into the range.
        let first = self.chunks.range(..=range.offset).next_back().map_or(range.offset, |(offset, _)| *offset);
        let chunks = self.chunks.range(first..range.end().max(first)).map(|(offset, data)| range_of(*offset, data));
        chunks.filter(move |chunk| chunk.overlaps(range))
    }

    /// Puts bytes of this window over or beneath its chunks. Returns by how much the memory grew, and whether the bytes
    /// overlap or adjoin a chunk.
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

/// Returns the ranges that runs in file order cover, with contiguous ranges joined.
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

/// Returns the bytes of a range that runs in file order cover, without copying.
pub fn slices(runs: &[Run], range: ByteRange) -> impl Iterator<Item = Bytes> {
    let first = runs.partition_point(|run| run.range().end() <= range.offset);
    runs[first..].iter().map_while(move |run| {
        let part = run.range().intersection(range)?;
        let from = (part.offset - run.offset) as usize;
        Some(run.data.slice(from..from + part.len as usize))
    })
}
