//! Tests of the index of log files against a model that keeps the source of every byte.

#[path = "../../../fuzz/fuzz_targets/log_index.rs"]
mod fuzz;

use log_index::{BadRun, LogNumber, PIECES_MAX, Run, RunBuilder, RunSet, Shard, Source, decode, encode};
use proptest::prelude::*;
use types::ByteRange;
use types::limits::FILE_SIZE_MAX;

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

fn log(log: u32, position: u64) -> Source {
    Source::Log { log: LogNumber(log), position }
}

/// The source of each byte of a file; `None` if the index knows nothing of the byte.
#[derive(Clone, PartialEq, Debug)]
struct Model(Vec<Option<Source>>);

impl Model {
    fn new(size: u64) -> Self {
        Model(vec![None; size as usize])
    }

    /// Writes the bytes of a run into the model, without any function of [`Run`] but its accessors.
    fn insert(&mut self, run: &Run) {
        for piece in 0..run.count() {
            for byte in 0..run.first().len {
                let at = run.first().offset + piece * run.stride() + byte;
                if let Some(place) = self.0.get_mut(at as usize) {
                    *place = Some(run.source().after(piece * run.first().len + byte));
                }
            }
        }
    }

    /// Returns a model of runs, which must not overlap.
    fn of_disjoint(size: u64, runs: impl IntoIterator<Item = Run>) -> Self {
        let (mut model, mut bytes) = (Model::new(size), 0);
        for run in runs {
            model.insert(&run);
            bytes += run.bytes();
        }
        let known = model.0.iter().filter(|source| source.is_some()).count();
        assert_eq!(known as u64, bytes, "the runs overlap");
        model
    }

    /// Returns the model without the bytes outside of `range`.
    fn cut(&self, range: ByteRange) -> Self {
        let inside = |at: u64| range.offset <= at && at < range.end();
        Model((0..).zip(&self.0).map(|(at, source)| source.filter(|_| inside(at))).collect())
    }

    /// Returns the model in which bytes that are known to be in the striped base are unknown.
    fn without_base(&self) -> Self {
        Model(self.0.iter().map(|source| source.filter(|source| *source != Source::Base)).collect())
    }
}

/// Returns all runs with small numbers in file offsets below 14.
fn small_runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for (offset, len, gap, count) in (0..4)
        .flat_map(|offset| (1..4).map(move |len| (offset, len)))
        .flat_map(|(offset, len)| (1..4).map(move |gap| (offset, len, gap)))
        .flat_map(|(offset, len, gap)| (1..4).map(move |count| (offset, len, gap, count)))
    {
        if count > 1 || gap == 1 {
            runs.push(Run::new(range(offset, len), log(1, 100), len + gap, count).unwrap());
        }
    }
    runs
}

const SMALL: u64 = 32;

#[test]
fn the_parts_of_a_run_are_the_bytes_of_the_run() {
    for run in small_runs() {
        let whole = Model::of_disjoint(SMALL, [run]);
        for wanted in (0..20).flat_map(|offset| (0..20).map(move |len| range(offset, len))) {
            let parts = run.clip(wanted);
            assert!(parts.len() <= 3);
            assert_eq!(Model::of_disjoint(SMALL, parts), whole.cut(wanted), "{run:?} in {wanted:?}");
            let extents = run.extents_in(wanted).map(Run::from);
            assert_eq!(Model::of_disjoint(SMALL, extents), whole.cut(wanted), "{run:?} in {wanted:?}");
        }
    }
}

#[test]
fn the_difference_of_two_runs_has_no_byte_of_the_second() {
    for run in small_runs() {
        for other in small_runs() {
            let (mine, others) = (Model::of_disjoint(SMALL, [run]), Model::of_disjoint(SMALL, [other]));
            let common = mine.0.iter().zip(&others.0).any(|(one, other)| one.is_some() && other.is_some());
            assert_eq!(run.overlaps(&other), common, "{run:?} {other:?}");
            let expected = mine.0.iter().zip(&others.0).map(|(one, other)| one.filter(|_| other.is_none())).collect();
            assert_eq!(Model::of_disjoint(SMALL, run.minus(&other)), Model(expected), "{run:?} {other:?}");
        }
    }
}

#[test]
fn impossible_runs_are_refused() {
    let far = FILE_SIZE_MAX;
    let new = |first, source, stride, count| Run::new(first, source, stride, count).unwrap_err();
    assert_eq!(new(range(0, 0), Source::Base, 1, 1), BadRun::Empty);
    assert_eq!(new(range(0, 1), Source::Base, 2, 0), BadRun::Empty);
    assert_eq!(new(range(0, 5), Source::Base, 5, 2), BadRun::Stride { stride: 5, len: 5 });
    assert_eq!(new(range(0, 1), Source::Base, 2, PIECES_MAX + 1), BadRun::TooMany);
    for (first, source, stride, count) in [
        (range(far, 1), Source::Base, 1, 1),
        (range(u64::MAX, u64::MAX), Source::Base, 1, 1),
        (range(0, 1), log(0, far), 1, 1),
        (range(0, 1), Source::Base, far, 2),
        (range(0, 1 << 40), log(0, far - (1 << 40)), 1 << 41, 2),
    ] {
        assert_eq!(new(first, source, stride, count), BadRun::TooFar, "{first:?} {source:?} {stride} {count}");
    }
    let last = Run::single(range(far - 1, 1), log(u32::MAX, far - 1)).unwrap();
    assert_eq!(decode(&encode([last]), 1), Ok(vec![last]));
}

/// Returns the bytes of index for each write of 4,096 writes, as the network carries them.
fn bytes_per_write(writes: impl Iterator<Item = ByteRange>) -> f64 {
    let mut builder = RunBuilder::new(LogNumber(7), 0);
    let (mut model, mut count) = (RunSet::default(), 0);
    for write in writes {
        let position = builder.position();
        builder.append(write).unwrap();
        model.insert(Run::single(write, log(7, position)).unwrap());
        count += 1;
    }
    assert_eq!(count, 4096);
    let (all, mut joined) = (range(0, FILE_SIZE_MAX), RunSet::default());
    let encoded = encode(builder.runs().iter().copied());
    decode(&encoded, builder.runs().len()).unwrap().into_iter().for_each(|run| joined.insert(run));
    assert!(joined.extents_in(all) == model.extents_in(all), "the joined runs are other bytes than the writes");
    encoded.len() as f64 / 4096.0
}

/// The limits are those of the patterns that writers of checkpoints have.
#[test]
fn regular_writes_take_almost_no_index() {
    const RECORD: u64 = 47_001;
    let (writers, rank) = (64, 5);
    let contiguous = (0..4096).map(|at| range((rank * 4096 + at) * RECORD, RECORD));
    let strided = (0..4096).map(|at| range((at * writers + rank) * RECORD, RECORD));
    let nested = (0..4096).map(|at| range(((at / 16 * writers + rank) * 16 + at % 16) * RECORD, RECORD));
    let header = (0..4096).map(|at| match at % 64 {
        0 => range(rank * 512, 512),
        _ => range((at * writers + rank) * RECORD, RECORD),
    });
    for (what, bytes, limit) in [
        ("contiguous", bytes_per_write(contiguous), 0.01),
        ("strided", bytes_per_write(strided), 0.01),
        ("blocks of 16 records", bytes_per_write(nested), 0.01),
        ("strided, with a header", bytes_per_write(header), 0.5),
    ] {
        assert!(bytes <= limit, "{what}: {bytes} bytes for each write");
    }
}

/// Writes of random lengths at random offsets, from 16 writers, in 64 MiB of a file. The index has to stay
/// small on the network and in memory.
#[test]
fn random_writes_take_at_most_ten_bytes_of_index() {
    const WRITERS: u32 = 16;
    const LEN: u64 = 64 << 20;
    let mut seed = 1;
    let mut shard = Shard::default();
    let mut builders: Vec<RunBuilder> = (0..WRITERS).map(|log| RunBuilder::new(LogNumber(log), 0)).collect();
    let (mut sent, mut writes) = (0, 0);
    for round in 0..5_000_u64 {
        let builder = &mut builders[(round % u64::from(WRITERS)) as usize];
        for _ in 0..10 {
            let len = 1 + below(&mut seed, 1000);
            builder.append(range(below(&mut seed, LEN - len), len)).unwrap();
            writes += 1;
        }
        let runs = builder.take();
        sent += encode(runs.iter().copied()).len();
        shard.register(runs);
    }
    shard.pack();
    let live = shard.runs_in(range(0, LEN)).count();
    assert!(sent <= 10 * writes, "{sent} bytes for {writes} writes on the network");
    assert!(shard.memory() <= 10 * live, "{} bytes of memory for {live} runs", shard.memory());
}

/// Returns a pseudorandom number below `end` (SplitMix of Steele, Lea and Flood).
fn below(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % end
}

/// Returns a random run that ends before file offset `size`.
fn random_run(seed: &mut u64, size: u64) -> Run {
    let len = 1 + below(seed, 60);
    let source = if below(seed, 10) == 0 { Source::Base } else { log(below(seed, 5) as u32, below(seed, 1 << 30)) };
    let count = if below(seed, 8) == 0 { 2 + below(seed, 40) } else { 1 };
    let stride = len + 1 + below(seed, 2000);
    let last = (count - 1) * stride + len;
    Run::new(range(below(seed, size - last), len), source, stride, count).unwrap()
}

#[test]
fn a_shard_has_the_bytes_of_the_later_registration() {
    const SIZE: u64 = 1 << 18;
    const FIRST_SEED: u64 = 1;
    let mut seed = FIRST_SEED;
    let (mut shard, mut set, mut model) = (Shard::default(), RunSet::default(), Model::new(SIZE));
    for round in 0..2500_u64 {
        let runs: Vec<Run> = (0..=below(&mut seed, 6)).map(|_| random_run(&mut seed, SIZE)).collect();
        runs.iter().for_each(|run| model.insert(run));
        runs.iter().for_each(|run| set.insert(*run));
        shard.register(runs);
        let offset = below(&mut seed, SIZE);
        let wanted = range(offset, below(&mut seed, SIZE - offset));
        if round % 250 == 0 {
            assert!(Model::of_disjoint(SIZE, set.runs_in(wanted)) == model.cut(wanted), "seed {FIRST_SEED}");
            let found = Model::of_disjoint(SIZE, shard.runs_in(wanted)).without_base();
            assert!(found == model.cut(wanted).without_base(), "seed {FIRST_SEED}, round {round}");
        }
    }
}

proptest! {
    #[test]
    fn the_joined_writes_of_a_client_are_its_writes(
        writes in prop::collection::vec((0..40u64, 1..9u64, 0..4u8), 1..60), start in 0..1000u64
    ) {
        let mut builder = RunBuilder::new(LogNumber(3), start);
        let (mut before, mut after) = (RunSet::default(), RunSet::default());
        let (mut at, mut last) = (0, range(0, 1));
        for (offset, len, how) in writes {
            // Most writes continue a pattern.
            let write = match how {
                0 => range(offset, len),
                1 => range(last.end(), len),
                2 => range(last.offset + 20, last.len),
                _ => range(last.end(), last.len),
            };
            last = write;
            before.insert(Run::single(write, log(3, start + at)).unwrap());
            builder.append(write).unwrap();
            at += write.len;
        }
        prop_assert_eq!(builder.position(), start + at);
        builder.take().into_iter().for_each(|run| after.insert(run));
        prop_assert!(builder.runs().is_empty());
        prop_assert_eq!(before.extents_in(range(0, 9999)), after.extents_in(range(0, 9999)));
    }

    #[test]
    fn encoded_runs_decode_to_the_same_runs(seed: u64, count in 0..50usize) {
        let mut seed = seed;
        let runs: Vec<Run> = (0..count).map(|_| random_run(&mut seed, 1 << 50)).collect();
        let bytes = encode(runs.iter().copied());
        prop_assert_eq!(decode(&bytes, count).unwrap(), runs.clone());
        prop_assert!(count == 0 || decode(&bytes, count - 1).is_err());
        prop_assert!(bytes.is_empty() || decode(&bytes[..bytes.len() - 1], count).is_err());
    }

    #[test]
    fn damaged_runs_do_not_panic(seed: u64, count in 1..16usize, at: prop::sample::Index, byte: u8) {
        let mut seed = seed;
        let mut bytes = encode((0..count).map(|_| random_run(&mut seed, 1 << 30)));
        let at = at.index(bytes.len());
        bytes[at] = byte;
        fuzz::run(&bytes);
    }

    #[test]
    fn garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz::run(&bytes);
    }
}
