//! Counted crash points: the disk dies before each of its changes, keeps some of its unsynced changes, and is opened
//! again. The shard must then have the state before or after the interrupted request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;

/// Where each byte of the file is, if it is in a data log.
type Bytes = BTreeMap<u64, (u32, u64)>;

const WRITERS: u32 = 3;

#[derive(Clone, Debug)]
enum Op {
    OpenLog,
    Register { log: u32, sequence: u64, durable: u64, runs: Vec<Run> },
    Remove,
    Fence,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}

/// Returns a pseudo-random history of requests, the same in every run.
fn history(len: usize) -> Vec<Op> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut sequences = [0_u64; WRITERS as usize + 1];
    let mut position = 0;
    let mut op = |_| match random.below(40) {
        0..3 => Op::OpenLog,
        3 => Op::Remove,
        4 => Op::Fence,
        _ => {
            let log = random.below(u64::from(WRITERS) + 1) as u32;
            let last = &mut sequences[log as usize];
            *last += 1;
            let sequence = *last;
            let durable = [0, sequence.saturating_sub(1), sequence][random.below(3) as usize];
            let mut one = |_| {
                let (offset, len, count) = (random.below(200), 1 + random.below(9), 1 + random.below(3));
                let source = if log == 0 { Source::Base } else { at(log, position) };
                position += 100;
                let stride = len + 1 + random.below(20);
                Run::new(ByteRange { offset, len }, source, stride, count).unwrap()
            };
            let runs = (0..1 + sequence % 4).map(&mut one).collect();
            Op::Register { log, sequence, durable, runs }
        }
    };
    (0..len).map(&mut op).collect()
}

fn put(bytes: &mut Bytes, run: &Run) {
    for piece in run.extents_in(WHOLE) {
        for byte in 0..piece.file.len {
            match piece.source.after(byte) {
                Source::Log { log, position } => bytes.insert(piece.file.offset + byte, (log.0, position)),
                Source::Base => bytes.remove(&(piece.file.offset + byte)),
            };
        }
    }
}

/// A pending registration: its bytes, of which `None` is a byte in the base.
#[derive(Clone)]
struct Pending {
    log: u32,
    sequence: u64,
    bytes: BTreeMap<u64, Option<(u32, u64)>>,
}

/// What the shard must have.
#[derive(Clone, Default)]
struct Model {
    durable: Bytes,
    /// The pending registrations, in the order of their arrival.
    pending: Vec<Pending>,
    /// The largest log number that the shard has given.
    numbers: u32,
    generation: u32,
    fenced: bool,
}

impl Model {
    fn register(&mut self, log: u32, sequence: u64, runs: &[Run]) {
        let mut bytes = BTreeMap::new();
        for piece in runs.iter().flat_map(|run| run.extents_in(WHOLE)) {
            for byte in 0..piece.file.len {
                let source = match piece.source.after(byte) {
                    Source::Log { log, position } => Some((log.0, position)),
                    Source::Base => None,
                };
                bytes.insert(piece.file.offset + byte, source);
            }
        }
        self.pending.push(Pending { log, sequence, bytes });
    }

    fn confirm(&mut self, log: u32, sequence: u64) {
        let mut kept: Vec<Pending> = Vec::new();
        for pending in std::mem::take(&mut self.pending) {
            if pending.log != log || pending.sequence > sequence {
                kept.push(pending);
                continue;
            }
            for (byte, source) in pending.bytes {
                for earlier in &mut kept {
                    earlier.bytes.remove(&byte);
                }
                match source {
                    Some(source) => drop(self.durable.insert(byte, source)),
                    None => drop(self.durable.remove(&byte)),
                }
            }
        }
        self.pending = kept;
    }

    fn perform(&mut self, op: &Op) {
        match op {
            Op::OpenLog => {}
            Op::Register { log, sequence, durable, runs } => {
                self.register(*log, *sequence, runs);
                if *durable != 0 {
                    self.confirm(*log, *durable);
                }
            }
            Op::Remove => *self = Model { generation: self.generation, ..Model::default() },
            Op::Fence => (self.generation, self.fenced) = (self.generation + 1, true),
        }
    }

    fn seen(&self) -> Bytes {
        let mut bytes = self.durable.clone();
        for (byte, source) in self.pending.iter().flat_map(|pending| &pending.bytes) {
            match source {
                Some(source) => drop(bytes.insert(*byte, *source)),
                None => drop(bytes.remove(byte)),
            }
        }
        bytes
    }
}

const LATEST: Generation = Generation(1 << 30);

fn found(store: &Store, generation: Generation, only_durable: bool) -> Result<Bytes, Failure> {
    let (mut bytes, mut range) = (Bytes::new(), WHOLE);
    while !range.is_empty() {
        let lookup = store.lookup(FILE, generation, range, only_durable)?;
        log_index::decode(&lookup.runs, LOOKUP_RUNS_MAX).unwrap().iter().for_each(|run| put(&mut bytes, run));
        range = ByteRange { offset: range.offset + lookup.covered, len: range.len - lookup.covered };
    }
    Ok(bytes)
}

fn perform(store: &Store, generation: u32, op: &Op) -> Result<Option<u32>, Failure> {
    let generation = Generation(generation);
    match op {
        Op::OpenLog => return store.open_log(FILE, generation).map(|log| Some(log.0)),
        Op::Register { log, sequence, durable, runs } => {
            let (sequence, durable) = (*sequence, *durable);
            let registration = Registration { log: LogNumber(*log), sequence, durable, runs: runs.clone() };
            store.register(FILE, generation, registration)?;
        }
        Op::Remove => store.remove_logs(FILE, generation)?,
        Op::Fence => store.fence(ObjectId::index(FILE), generation, Generation(generation.0 + 1))?,
    }
    Ok(None)
}

/// Cuts the power of a disk, and checks that the shard is in the durable state of one of the models.
fn cut(disk: &Memory, models: &[&Model], seed: u64) {
    let mut random = Random(seed | 1 << 60);
    disk.power_cut(&mut |bound| match seed & 0xff {
        0 => 0,
        1 => bound - 1,
        _ => random.below(bound),
    });
    let store = open(disk);
    let bytes = found(&store, LATEST, true).unwrap_or_else(|failure| panic!("cut {seed:#x}: {failure}"));
    let model = models.iter().find(|model| model.durable == bytes);
    let model = model.unwrap_or_else(|| panic!("cut {seed:#x}: {bytes:?} is not {:?}", models[0].durable));
    assert_eq!(found(&store, LATEST, false).unwrap(), bytes, "no registration is pending after a cut");
    if models.iter().all(|model| model.fenced) {
        let earlier = Generation(models.iter().map(|model| model.generation).min().unwrap() - 1);
        assert_eq!(found(&store, earlier, false).unwrap_err().status, Status::Fenced);
    }
    let number = perform(&store, LATEST.0, &Op::OpenLog).unwrap().unwrap();
    assert!(models.iter().any(|model| number > model.numbers), "cut {seed:#x}: the log number {number} again");
    // The writers register their lost runs again, with the same sequence numbers.
    let mut again = (*model).clone();
    for Pending { log, sequence, bytes } in std::mem::take(&mut again.pending) {
        let one = |(byte, source): (&u64, &Option<(u32, u64)>)| {
            let source = source.map_or(Source::Base, |(log, position)| at(log, position));
            Run::single(ByteRange { offset: *byte, len: 1 }, source).unwrap()
        };
        let runs = bytes.iter().map(one).collect();
        let op = Op::Register { log, sequence, durable: sequence, runs };
        perform(&store, LATEST.0, &op).unwrap();
        again.perform(&op);
    }
    assert_eq!(found(&store, LATEST, true).unwrap(), again.durable, "cut {seed:#x}");
}

/// Runs a history and cuts the power before every change of the disk and after every reply. Returns the number of
/// changes, and the number of checkpoints.
fn everywhere(sums: bool, history: &[Op]) -> (u64, u64) {
    let disk = disk(sums);
    let store = open(&disk);
    disk.keep_copies();
    let mut model = Model { generation: 1, ..Model::default() };
    let mut points = 0;
    for op in history {
        let before = model.clone();
        let number = perform(&store, model.generation, op).unwrap();
        model.perform(op);
        for copy in disk.copies() {
            for variant in 0..3 {
                cut(&copy.copy(), &[&before, &model], points << 8 | variant);
            }
            points += 1;
        }
        model.numbers = model.numbers.max(number.unwrap_or(0));
        assert_eq!(found(&store, LATEST, false).unwrap(), model.seen());
        assert_eq!(found(&store, LATEST, true).unwrap(), model.durable);
        for variant in 0..3 {
            cut(&disk.copy(), &[&model], points << 8 | variant);
        }
    }
    (points, store.counters().get("index.checkpoints"))
}

#[test]
fn a_power_cut_at_any_point_loses_no_durable_registration() {
    for sums in [false, true] {
        let (points, checkpoints) = everywhere(sums, &history(250));
        assert!(points > 300 && checkpoints >= 5, "{points} changes, {checkpoints} checkpoints");
    }
}

/// Cuts the power many times in each of several checkpoints whose records fill several blocks of the disk, so that the
/// disk punches blocks.
#[test]
fn a_power_cut_in_a_checkpoint_keeps_all_records() {
    let disk = disk(false);
    let mut store = open(&disk);
    store.indexes = IndexTable::new(usize::MAX, 5000);
    let (mut model, mut cuts) = (Model::default(), 0);
    disk.keep_copies();
    for sequence in 1.. {
        let checkpoints = store.counters().get("index.checkpoints");
        if checkpoints == 3 {
            break;
        }
        let one = |i: u64| run((i * 40 + sequence * 7) % 2400, 3 + i % 7, 1, sequence << 20 | i << 8);
        let op = Op::Register { log: 1, sequence, durable: sequence, runs: (0..60).map(one).collect() };
        let before = model.clone();
        perform(&store, 1, &op).unwrap();
        model.perform(&op);
        let copies = disk.copies();
        if store.counters().get("index.checkpoints") > checkpoints {
            for copy in copies {
                for variant in 0..12 {
                    cut(&copy.copy(), &[&before, &model], cuts << 8 | variant);
                }
                cuts += 1;
            }
        }
    }
    assert!(cuts > 15, "{cuts} changes in checkpoints");
}

#[test]
fn a_request_repeated_after_a_kill_survives_power_cuts() {
    let disk = disk(false);
    let store = open(&disk);
    disk.keep_copies();
    let mut durable = Bytes::new();
    let mut points = 0;
    for (sequence, op) in history(60).into_iter().enumerate() {
        let Op::Register { log, runs, .. } = op else { continue };
        let sequence = sequence as u64 + 1;
        let op = Op::Register { log, sequence, durable: sequence, runs: runs.clone() };
        perform(&store, 1, &op).unwrap();
        let before = Model { durable: durable.clone(), ..Model::default() };
        runs.iter().for_each(|run| put(&mut durable, run));
        let after = Model { durable: durable.clone(), ..Model::default() };
        for killed in disk.copies() {
            killed.kill();
            let next = open(&killed);
            killed.keep_copies();
            perform(&next, 1, &op).unwrap();
            for variant in 0..3 {
                cut(&killed.copy(), &[&after], points << 8 | variant);
            }
            for copy in killed.copies() {
                cut(&copy, &[&before, &after], points << 8 | 2);
            }
            points += 1;
        }
    }
    assert!(points > 60, "{points} changes");
}

#[test]
fn concurrent_registrations_that_were_acknowledged_survive() {
    for (seed, deaths) in (1..80).enumerate() {
        let disk = disk(false);
        let store = open(&disk);
        disk.die_after(deaths);
        let acknowledged: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for (writer, acknowledged) in acknowledged.iter().enumerate() {
                let (store, log) = (&store, writer as u32 + 1);
                scope.spawn(move || {
                    for sequence in 1..=12 {
                        // The record is longer than a sector of the disk, so that a power cut may keep a part of it.
                        let one = |i: u64| run((i << 20) + sequence * 10 + writer as u64, 1, log, sequence + i * i);
                        let runs: Vec<Run> = (0..80).map(one).collect();
                        if register(store, FILE, log, sequence, sequence, &runs).is_err() {
                            return;
                        }
                        acknowledged.store(sequence, Ordering::Relaxed);
                    }
                });
            }
        });
        drop(store);
        let mut random = Random(seed as u64 | 1 << 50);
        disk.power_cut(&mut |bound| random.below(bound));
        let bytes = found(&open(&disk), ONE, true).unwrap_or_else(|failure| panic!("{deaths}: {failure}"));
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            for sequence in 1..=acknowledged.load(Ordering::Relaxed) {
                let offset = sequence * 10 + writer as u64;
                assert_eq!(bytes.get(&offset), Some(&(writer as u32 + 1, sequence)), "{deaths} {offset}");
            }
        }
    }
}
