//! Tests of write gathering against a reference model that is a flat array of bytes. The tests run random histories and
//! all short histories.

use bytes::Bytes;
use layout::gather::{Gather, Part, Run, ranges, slices};
use layout::{Distribution, DistributionId};
use proptest::prelude::*;
use std::time::Duration;
use types::ByteRange;

const DELAY: Duration = Duration::from_millis(2);
const AGAIN: Duration = Duration::from_millis(100);

/// An event in a test history of a file with gathered writes.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A program writes bytes; the fields are the file offset and the length in bytes.
    Write(u64, usize),
    /// The client begins to send gathered bytes: all, those in a file range, or all full windows.
    Leave(Part),
    /// The servers acknowledge the bytes in flight.
    Arrived,
    /// Sending fails for the client, although half of the runs (consecutive bytes in flight) have reached the servers.
    Back,
}

/// A file with gathered writes and its reference model: the content as programs see it, and the content on the servers'
/// disks.
struct World {
    gather: Gather,
    now: Duration,
    /// The byte that a program last wrote at each offset; `None` where no program wrote.
    newest: Vec<Option<u8>>,
    disks: Vec<Option<u8>>,
    leaving: Vec<Run>,
    /// Upper bound of the time at which the client must send gathered bytes ([`Gather::due`]): `DELAY` after the first
    /// write, or the retry time after a failed send.
    bound: Option<Duration>,
    written: u8,
}

impl World {
    fn new(window: u64, size: usize) -> Self {
        World {
            gather: Gather::new(window, DELAY),
            now: Duration::ZERO,
            newest: vec![None; size],
            disks: vec![None; size],
            leaving: Vec::new(),
            bound: None,
            written: 0,
        }
    }

    fn step(&mut self, step: Step) {
        self.now += Duration::from_millis(1);
        match step {
            Step::Write(at, len) => self.write(at, len),
            Step::Leave(part) => self.leave(part),
            Step::Arrived => {
                put(&mut self.disks, &std::mem::take(&mut self.leaving));
                self.gather.arrived();
            }
            Step::Back => {
                let runs = std::mem::take(&mut self.leaving);
                put(&mut self.disks, &runs[..runs.len() / 2]);
                if !runs.is_empty() {
                    self.bound = Some(self.now + AGAIN);
                }
                self.gather.back(self.now + AGAIN);
            }
        }
        self.check();
    }

    fn write(&mut self, at: u64, len: usize) {
        self.written = self.written.wrapping_add(1);
        let data = vec![self.written; len];
        let most = self.gather.weight() + self.gather.growth(len);
        self.gather.write(self.now, at, &data);
        assert!(self.gather.weight() <= most, "it took more than it said");
        put(&mut self.newest, &[Run { offset: at, data: data.into() }]);
        if len > 0 && self.bound.is_none() {
            self.bound = Some(self.now + DELAY);
        }
    }

    fn leave(&mut self, part: Part) {
        let meets = self.gather.meets(part);
        let Some(runs) = self.gather.leave(part) else {
            assert!(!meets || !self.leaving.is_empty(), "it keeps what it is asked for");
            return;
        };
        assert!(self.leaving.is_empty(), "the newer overtakes the older");
        assert!(meets && !runs.is_empty());
        assert!(runs.windows(2).all(|two| two[0].range().end() <= two[1].offset), "out of order, or twice");
        self.leaving = runs;
    }

    fn check(&mut self) {
        // At each offset without a gathered byte or a byte in flight, the servers' disks must have the newest byte.
        // The disks must not have a byte that no program wrote.
        let mut seen = self.disks.clone();
        put(&mut seen, &self.leaving);
        for (at, newest) in self.newest.iter().enumerate() {
            let one = Part::Overlapping(ByteRange { offset: at as u64, len: 1 });
            if !self.gather.meets(one) {
                assert_eq!(self.disks[at], *newest, "byte {at} is neither held nor on the disks");
            } else if seen[at] != *newest {
                assert!(newest.is_some(), "byte {at} was made up");
            }
        }
        if self.gather.is_empty() {
            assert_eq!((self.gather.weight(), self.gather.due()), (0, None));
        }
        match self.gather.due() {
            None => {
                assert!(self.gather.leave(Part::All).is_none(), "held for ever");
                self.bound = None;
            }
            Some(due) => assert!(due <= self.bound.unwrap(), "held for too long"),
        }
    }

    /// Lets the client send all gathered bytes, and the servers acknowledge them.
    fn end(&mut self) {
        self.step(Step::Arrived);
        self.step(Step::Leave(Part::All));
        self.step(Step::Arrived);
        assert!(self.gather.is_empty() && self.disks == self.newest);
    }
}

fn put(flat: &mut [Option<u8>], runs: &[Run]) {
    for run in runs {
        for (at, byte) in run.data.iter().enumerate() {
            flat[run.offset as usize + at] = Some(*byte);
        }
    }
}

/// Runs every history of five events (six in full test runs). The gathering windows have four bytes, and the events
/// use few offsets, so many ranges adjoin or overlap.
#[test]
fn every_short_history() {
    let range = |offset, len| Part::Overlapping(ByteRange { offset, len });
    let steps = [
        Step::Write(0, 2),
        Step::Write(1, 2),
        Step::Write(2, 4),
        Step::Write(4, 4),
        Step::Write(6, 1),
        Step::Leave(Part::All),
        Step::Leave(Part::Full),
        Step::Leave(range(1, 2)),
        Step::Leave(range(6, 4)),
        Step::Arrived,
        Step::Back,
    ];
    let length = if std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full") { 6 } else { 5 };
    let mut history = vec![0; length];
    loop {
        let mut world = World::new(4, 12);
        history.iter().for_each(|step| world.step(steps[*step]));
        world.end();
        let Some(last) = history.iter().rposition(|step| *step + 1 < steps.len()) else { break };
        history[last] += 1;
        history[last + 1..].fill(0);
    }
}

fn step(size: usize) -> impl Strategy<Value = Step> {
    let at = 0..size as u64;
    let part = prop_oneof![
        2 => Just(Part::All),
        3 => Just(Part::Full),
        3 => (at.clone(), 0u64..40).prop_map(|(offset, len)| Part::Overlapping(ByteRange { offset, len })),
    ];
    prop_oneof![
        8 => (at, 0usize..60).prop_map(move |(at, len)| Step::Write(at, len.min(size - at as usize))),
        3 => part.prop_map(Step::Leave),
        2 => Just(Step::Arrived),
        1 => Just(Step::Back),
    ]
}

proptest! {
    #[test]
    fn long_histories(window in 1u64..100, steps in prop::collection::vec(step(300), 1..120)) {
        let mut world = World::new(window, 300);
        steps.into_iter().for_each(|step| world.step(step));
        world.end();
    }

    /// The function `slices` must return the written bytes in a range, however the written bytes are divided into
    /// runs.
    #[test]
    fn ranges_and_slices_of_runs_match_a_flat_model(
        parts in prop::collection::vec((0u64..4, 1usize..50), 1..12),
        (from, len) in (0u64..600, 1u64..600),
    ) {
        let mut runs = Vec::new();
        let mut flat: Vec<Option<u8>> = Vec::new();
        for (n, (gap, len)) in parts.into_iter().enumerate() {
            flat.resize(flat.len() + gap as usize, None);
            runs.push(Run { offset: flat.len() as u64, data: Bytes::from(vec![n as u8; len]) });
            flat.resize(flat.len() + len, Some(n as u8));
        }
        let joined = ranges(&runs);
        prop_assert!(joined.windows(2).all(|two| two[0].end() < two[1].offset), "neighbours are joined");
        let total: u64 = joined.iter().map(|range| range.len).sum();
        prop_assert_eq!(total, runs.iter().map(|run| run.range().len).sum::<u64>());
        for range in joined {
            let Some(part) = range.intersection(ByteRange { offset: from, len }) else { continue };
            let got: Vec<u8> = slices(&runs, part).flat_map(|bytes| bytes.to_vec()).collect();
            let want: Vec<u8> = flat[part.offset as usize..part.end() as usize].iter().map(|b| b.unwrap()).collect();
            prop_assert_eq!(got, want);
        }
    }
}

#[test]
fn interleaved_records_of_many_writers_become_one_run() {
    let mut gather = Gather::new(1 << 20, DELAY);
    let mut joined = 0;
    for writer in [3u64, 1, 0, 2] {
        for record in 0..64u64 {
            let at = (record * 4 + writer) * 4096;
            joined += u32::from(gather.write(Duration::ZERO, at, &[writer as u8; 4096]));
        }
    }
    assert!(gather.meets(Part::Full) && joined >= 127, "{joined}");
    let runs = gather.leave(Part::Full).unwrap();
    assert_eq!(ranges(&runs), [ByteRange { offset: 0, len: 1 << 20 }]);
}

#[test]
fn scattered_writes_are_sent_before_they_use_much_memory() {
    let mut gather = Gather::new(4096, DELAY);
    let mut written = 0;
    while !gather.meets(Part::Full) {
        gather.write(Duration::ZERO, written * 10_000, b"x");
        written += 1;
    }
    assert!(gather.weight() <= 5 * 4096 && gather.leave(Part::Full).unwrap().len() as u64 == written);
    assert!(gather.leave(Part::All).is_none() && gather.due().is_none());
}

#[test]
fn windows_are_whole_rounds_over_the_iods_if_one_fits() {
    let window =
        |unit, count| Gather::window_of(&Distribution::new(DistributionId::SimpleStripe, unit, count).unwrap());
    assert_eq!(window(1 << 20, 4), 1 << 20);
    assert_eq!(window(64 << 10, 4), 1 << 20);
    assert_eq!(window(4 << 20, 1), 1 << 20);
    assert_eq!(window(320 << 10, 8), 960 << 10);
    assert_eq!(window(64, 3), (1 << 20) - (1 << 20) % 192);
}
