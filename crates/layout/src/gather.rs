//! Gathering small writes of one file: which bytes are held, when they must leave, and what they join to.
//!
//! Held bytes are in chunks that never overlap: a newer write is laid over the older ones where it meets them, so that there is nothing
//! to be decided later. Chunks lie in windows of the file. A window that has every byte leaves at once, as whole stripe units; all others leave when the
//! oldest byte has waited for long enough, or when somebody needs them where they belong. What leaves is remembered until it has arrived,
//! and comes back beneath what was written meanwhile when it could not. Bytes that nobody wrote are never made up: what leaves is what came.

use crate::Distribution;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use types::ByteRange;
use types::limits::PAYLOAD_MAX;

/// What a chunk takes besides its bytes.
const CHUNK_BYTES: usize = 128;
/// Windows' worth of memory from which on all that is held leaves: scattered writes fill no window.
const CROWDED: usize = 4;

/// Bytes at a place of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Where the first byte belongs.
    pub offset: u64,
    /// The bytes, at least one.
    pub data: Bytes,
}

impl Run {
    /// The bytes of the file that it is.
    pub fn range(&self) -> ByteRange {
        ByteRange { offset: self.offset, len: self.data.len() as u64 }
    }
}

/// What is to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All that is held.
    All,
    /// The chunks that have a byte of this range.
    Meeting(ByteRange),
    /// The windows that have every byte; all that is held when that is much.
    Full,
}

/// The gathered writes of one file. Times are since any moment, the same for all calls.
#[derive(Debug)]
pub struct Gather {
    window: u64,
    delay: Duration,
    /// By the number of the window.
    held: BTreeMap<u64, Window>,
    /// What has left and is not known to have arrived.
    leaving: Vec<Run>,
    due: Option<Duration>,
    weight: usize,
}

#[derive(Debug, Default)]
struct Window {
    filled: u64,
    /// By the offset in the file; never beyond the window, never overlapping.
    chunks: BTreeMap<u64, Vec<u8>>,
}

impl Gather {
    /// Nothing held; bytes leave after `delay`, or when a window of `window` bytes is full.
    ///
    /// # Panics
    /// When the window has no bytes.
    pub fn new(window: u64, delay: Duration) -> Self {
        assert!(window > 0, "a window has bytes");
        Gather { window, delay, held: BTreeMap::new(), leaving: Vec::new(), due: None, weight: 0 }
    }

    /// The window for files that lie like this: as many whole rounds over the iods as a request carries, or else as many stripe units.
    pub fn window_of(distribution: &Distribution) -> u64 {
        let (most, unit) = (PAYLOAD_MAX as u64, distribution.stripe_unit());
        let round = unit.saturating_mul(distribution.count() as u64);
        let step = if round <= most { round } else { unit };
        if step > most { most } else { most - most % step }
    }

    /// Takes a write, which is newer than all before. Whether it joined to something that was held.
    pub fn write(&mut self, now: Duration, offset: u64, data: &[u8]) -> bool {
        let joined = self.lay(offset, data, true);
        if self.due.is_none() && !self.held.is_empty() {
            self.due = Some(now + self.delay);
        }
        joined
    }

    /// When what is held must leave.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Memory that is taken, in bytes: that of what leaves is counted until it has arrived.
    pub fn weight(&self) -> usize {
        self.weight + self.leaving.iter().map(|run| run.data.len() + CHUNK_BYTES).sum::<usize>()
    }

    /// By how much [`Self::weight`] grows at most when so many bytes are written.
    pub fn growth(&self, len: usize) -> usize {
        let windows = len as u64 / self.window + 2;
        // A buffer that grows may become twice as large as it was.
        2 * len + CHUNK_BYTES * windows as usize + self.weight
    }

    /// Whether a byte of this part is held, or on its way.
    pub fn meets(&self, part: Part) -> bool {
        let leaving = match part {
            Part::All => !self.leaving.is_empty(),
            Part::Meeting(range) => self.leaving.iter().any(|run| run.range().overlaps(range)),
            Part::Full => false,
        };
        leaving || self.holds(part)
    }

    /// Whether there is nothing at all.
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

    /// Lets a part leave, in the order of the file: what is returned is to be written, and the outcome to be told by [`Self::arrived`] or
    /// [`Self::back`]. `None` when nothing is to leave, and while something is on its way: what is newer must not overtake it.
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

    /// What left has arrived, or is given up.
    pub fn arrived(&mut self) {
        self.leaving.clear();
    }

    /// What left has not arrived: it is held again beneath what was written since, and leaves at `due`.
    pub fn back(&mut self, due: Duration) {
        let back = std::mem::take(&mut self.leaving);
        if !back.is_empty() {
            self.due = Some(due);
        }
        for run in back {
            self.lay(run.offset, &run.data, false);
        }
    }

    /// Window and offset of the chunks that `wanted` says.
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

    /// The windows that have a place of this range, with their numbers.
    fn windows(&self, range: ByteRange) -> impl Iterator<Item = (&u64, &Window)> {
        let last = range.end().saturating_sub(1).max(range.offset) / self.window;
        self.held.range(range.offset / self.window..=last)
    }

    /// Lays bytes over what is held, or beneath it. Whether they meet or touch something.
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
        // The last chunk that begins before the range may reach into it.
        let first = self.chunks.range(..=range.offset).next_back().map_or(range.offset, |(offset, _)| *offset);
        let chunks = self.chunks.range(first..range.end().max(first)).map(|(offset, data)| range_of(*offset, data));
        chunks.filter(move |chunk| chunk.overlaps(range))
    }

    /// Lays bytes of this window over its chunks, or beneath them: by how much memory it grew, and whether they met or touched one.
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

/// The ranges that runs in the order of the file make up, neighbours joined.
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

/// The bytes of a range that runs in the order of the file cover, without copying any.
pub fn slices(runs: &[Run], range: ByteRange) -> impl Iterator<Item = Bytes> {
    let first = runs.partition_point(|run| run.range().end() <= range.offset);
    runs[first..].iter().map_while(move |run| {
        let part = run.range().intersection(range)?;
        let from = (part.offset - run.offset) as usize;
        Some(run.data.slice(from..from + part.len as usize))
    })
}
