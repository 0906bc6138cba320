//! Power-cut tests: before every change that a history of operations makes, the disk dies, keeps some of its unsynced
//! changes, and is opened again.
//!
//! The history runs only once: the simulated disk keeps a copy from before each change, and each copy stands for a disk
//! that died before this change.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use types::{FileId, Generation, ObjectId, Status};
use wire::native::{Extent, Failure, HeadState, WriteExtent};

use super::FSID;
use crate::disks::{Disk, Memory};
use crate::store::{Features, ReadPlan, Store};

/// Ids of the test objects, which lie in three folders. The high half of each number is the stream, the low half the
/// file.
const OBJECTS: [u64; 6] = [1, 2, 3, 0x101, 0x2_0301, 5 << 32 | 1];
const BLOCK: u64 = 4096;

#[derive(Clone, Debug)]
enum Op {
    Write(Vec<(u64, usize)>),
    Commit,
    Truncate(u64),
    Punch(u64, u64),
    Reserve(u64, u64),
    Remove,
    Fence(Generation),
}

fn object_id(object: u64) -> ObjectId {
    ObjectId::new(FileId(object & 0xffff_ffff), (object >> 32) as u32)
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

/// An operation on an object, with the generation of its capability.
#[derive(Clone, Debug)]
struct Step(u64, Generation, Op);

/// Returns a pseudo-random history of operations, the same in every run. The generation of each capability is that of
/// the last fence of the object, so no fence refuses an operation.
fn history(len: usize) -> Vec<Step> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut generations = BTreeMap::from(OBJECTS.map(|object| (object, 1)));
    let mut step = |_| {
        let object = OBJECTS[random.below(OBJECTS.len() as u64) as usize];
        let op = match random.below(20) {
            0..8 => Op::Write(extents(&mut random, object == 3)),
            8..13 => Op::Commit,
            13 => Op::Truncate(random.below(60_000)),
            14 => Op::Truncate(random.below(15) * BLOCK),
            15 => Op::Punch(random.below(40_000), random.below(30_000)),
            16 => Op::Remove,
            17 => {
                generations.entry(object).and_modify(|generation| *generation += 1);
                Op::Fence(Generation(generations[&object]))
            }
            18 => Op::Reserve(random.below(60_000), 1 + random.below(30_000)),
            // This write mostly overwrites bytes that earlier writes have written.
            _ => Op::Write(vec![(random.below(4) * BLOCK, 2 * BLOCK as usize), (40_000, 100)]),
        };
        Step(object, Generation(generations[&object]), op)
    };
    (0..len).map(&mut step).collect()
}

/// Returns random byte ranges for one write. The ranges do not overlap, and some are at high offsets.
fn extents(random: &mut Random, far: bool) -> Vec<(u64, usize)> {
    let mut at = if far && random.below(2) == 0 { 250_000 } else { 0 };
    (0..1 + random.below(3))
        .map(|_| {
            let aligned = random.below(2) == 0;
            let (gap, len) = (random.below(20_000), 1 + random.below(12_000));
            let start = if aligned { (at + gap).next_multiple_of(BLOCK) } else { at + gap };
            let len = if aligned { len.next_multiple_of(BLOCK) } else { len };
            at = start + len;
            (start, len as usize)
        })
        .collect()
}

fn bytes(step: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (step * 31 + i / 7) as u8 | 1).collect()
}

/// The contents that an object may have after a power cut.
#[derive(Clone, Default)]
struct Model {
    /// The content of the object at its last commit and after each later change. The last element is the current
    /// content.
    versions: Vec<Rc<Vec<u8>>>,
    /// Blocks of the object that changed since its last commit.
    touched: BTreeSet<u64>,
    /// Blocks of the object that have committed data.
    committed: BTreeSet<u64>,
    data: BTreeSet<u64>,
    /// The generation of the last durable fence; requests with earlier generations must fail.
    fenced: Option<Generation>,
}

impl Model {
    fn new() -> Self {
        Model { versions: vec![Rc::default()], ..Model::default() }
    }

    fn now(&self) -> &Vec<u8> {
        &self.versions[self.versions.len() - 1]
    }

    fn settle(&mut self) {
        self.versions.drain(..self.versions.len() - 1);
        self.touched.clear();
        self.committed = self.data.clone();
    }

    fn touch(&mut self, start: u64, end: u64) {
        self.touched.extend(start / BLOCK..end.div_ceil(BLOCK));
    }

    /// Applies an operation to the model of the objects. The operation may survive a power cut or not.
    fn begin(&mut self, step: usize, op: &Op) {
        if matches!(op, Op::Commit) {
            return;
        }
        let mut now = self.now().clone();
        match op {
            Op::Write(extents) => {
                for (offset, len) in extents {
                    let end = offset + *len as u64;
                    now.resize(now.len().max(end as usize), 0);
                    now[*offset as usize..end as usize].copy_from_slice(&bytes(step, *len));
                    self.touch(*offset, end);
                    self.data.extend(offset / BLOCK..end.div_ceil(BLOCK));
                }
            }
            Op::Truncate(size) => {
                self.touch(*size, now.len() as u64);
                now.resize(*size as usize, 0);
                self.data.retain(|block| block * BLOCK < *size);
            }
            Op::Punch(offset, len) => {
                let end = (offset + len).min(now.len() as u64);
                if *offset < end {
                    now[*offset as usize..end as usize].fill(0);
                    self.touch(*offset, end);
                    self.data.retain(|block| *block < offset.div_ceil(BLOCK) || *block >= end / BLOCK);
                }
            }
            Op::Reserve(offset, len) => {
                let end = (offset + len) as usize;
                now.resize(now.len().max(end), 0);
            }
            Op::Remove => {
                self.touch(0, now.len() as u64);
                (now, self.fenced) = (Vec::new(), None);
                self.data.clear();
            }
            Op::Fence(_) | Op::Commit => {}
        }
        self.versions.push(Rc::new(now));
    }

    /// Records that the store has replied to the operation, so that a durable operation must survive a power cut.
    fn end(&mut self, op: &Op) {
        if let Op::Fence(generation) = op {
            self.fenced = Some(*generation);
        }
        if !matches!(op, Op::Write(_)) {
            self.settle();
        }
    }

    fn check(&self, found: &[u8]) -> Result<(), String> {
        let sizes = || self.versions.iter().map(|v| v.len());
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        if found.len() < least || found.len() > most {
            return Err(format!("size {} is not between {least} and {most}", found.len()));
        }
        // After a power cut, a byte may have its value in any version of the object. In a version that ends before the
        // byte, its value is zero.
        let allowed = |at: usize, byte: u8| self.versions.iter().any(|v| v.get(at).copied().unwrap_or(0) == byte);
        for (start, page) in (0..).step_by(4096).zip(found.chunks(4096)) {
            // Fast path: most pages have the same bytes as in one version of the object. Compare only the remaining
            // pages byte by byte.
            if self.versions.iter().any(|v| v.get(start..start + page.len()) == Some(page)) {
                continue;
            }
            if let Some((at, byte)) = (start..).zip(page).find(|(at, byte)| !allowed(*at, **byte)) {
                return Err(format!("byte {at} is {byte:#x}"));
            }
        }
        Ok(())
    }
}

/// A generation above every fence of a history, so that no fence refuses a capability with this generation.
const LATEST: Generation = Generation(1 << 30);

fn perform(store: &Store, step: usize, Step(object, generation, op): &Step) -> Result<(), Failure> {
    let (object, generation) = (store.object(object_id(*object)), *generation);
    match op {
        Op::Write(parts) => {
            let extents: Vec<_> = parts
                .iter()
                .map(|(offset, len)| WriteExtent { offset: *offset, len: *len as u32, crc32c: 0 })
                .collect();
            let data: Vec<u8> = parts.iter().flat_map(|(_, len)| bytes(step, *len)).collect();
            let (a, b) = data.split_at(data.len() / 3);
            object.write(store, generation, (&extents, 0), [a, b]).map(drop)
        }
        Op::Commit => object.commit(store, generation).map(drop),
        Op::Truncate(size) => object.truncate(store, generation, *size).map(drop),
        Op::Punch(offset, len) => object.punch(store, generation, *offset, *len),
        Op::Reserve(offset, len) => object.reserve(store, generation, *offset, *len),
        Op::Remove => object.remove(store, generation),
        Op::Fence(fence) => object.fence(store, generation, *fence),
    }
}

fn read(store: &Store, object: u64) -> Result<Vec<u8>, Failure> {
    let mut plan = ReadPlan::default();
    let extent = [Extent { offset: 0, len: 1 << 20 }];
    let open = store.object(object_id(object)).plan_read(store, Generation(u32::MAX), &extent, &mut plan)?;
    let mut out = vec![0; plan.size as usize];
    if let Some(open) = open {
        let mut data = vec![0; plan.data_len as usize];
        open.read(&plan.runs, &mut data, store.counters())?;
        let mut rest = &data[..];
        for (offset, len) in &plan.runs {
            let (run, behind) = rest.split_at(*len as usize);
            out[*offset as usize..(*offset + *len) as usize].copy_from_slice(run);
            rest = behind;
        }
    }
    Ok(out)
}

struct CrashTest {
    sums: bool,
    history: Vec<Step>,
}

impl CrashTest {
    fn disk(&self) -> Memory {
        let disk = Memory::new("m", 1 << 30);
        Store::format_with(&disk, FSID, Features { block_checksums: self.sums }).unwrap();
        disk
    }

    fn open(disk: &Memory) -> Store {
        // Use a small cache, so that the store closes and reopens some objects during the history.
        Store::open_with(std::sync::Arc::new(disk.clone()), 3).unwrap()
    }

    /// Cuts the power before every change of the disk and after every reply. Returns the number of changes.
    fn everywhere(&self) -> usize {
        let disk = self.disk();
        let store = Self::open(&disk);
        disk.keep_copies();
        let mut models: BTreeMap<u64, Model> = OBJECTS.iter().map(|id| (*id, Model::new())).collect();
        let mut points = 0;
        for (step, operation) in self.history.iter().enumerate() {
            let Step(object, _, op) = operation;
            models.get_mut(object).unwrap().begin(step, op);
            perform(&store, step, operation).unwrap();
            // The disk dies before one of the changes that this operation makes to the disk.
            for copy in disk.copies() {
                for variant in 0..3 {
                    self.cut(&copy.copy(), &models, points << 8 | variant);
                }
                points += 1;
            }
            models.get_mut(object).unwrap().end(op);
            // The disk dies after the store has replied to the operation.
            for variant in 0..3 {
                self.cut(&disk.copy(), &models, points << 8 | variant);
            }
        }
        points as usize
    }

    /// Kills the iod before every change of the disk, and repeats the interrupted operation on a restarted iod. Then
    /// cuts the power before every change of the repeated operation, and after the operation. Returns the number of
    /// repeated operations.
    fn again_everywhere(&self) -> usize {
        let disk = self.disk();
        let store = Self::open(&disk);
        disk.keep_copies();
        let mut models: BTreeMap<u64, Model> = OBJECTS.iter().map(|id| (*id, Model::new())).collect();
        let mut points = 0;
        for (step, operation) in self.history.iter().enumerate() {
            let Step(object, _, op) = operation;
            models.get_mut(object).unwrap().begin(step, op);
            perform(&store, step, operation).unwrap();
            // Blocks that were not committed when the iod was killed have no checksum until a request writes them
            // again.
            let mut done = models.clone();
            let model = done.get_mut(object).unwrap();
            let sealed = &model.committed - &model.touched;
            model.end(op);
            model.committed = sealed;
            for killed in disk.copies() {
                killed.kill();
                let next = Self::open(&killed);
                killed.keep_copies();
                perform(&next, step, operation).unwrap();
                let copies = killed.copies();
                for variant in 0..3 {
                    for copy in &copies {
                        self.cut(&copy.copy(), &models, points << 8 | variant);
                    }
                    self.cut(&killed.copy(), &done, points << 8 | variant);
                }
                points += 1;
            }
            models.get_mut(object).unwrap().end(op);
        }
        points as usize
    }

    /// Cuts the power of a disk and checks the objects on it. The low bits of `seed` choose the changes that survive.
    fn cut(&self, disk: &Memory, models: &BTreeMap<u64, Model>, seed: u64) {
        let mut random = Random(seed | 1 << 60);
        disk.power_cut(&mut |bound| match seed & 0xff {
            0 => 0,
            1 => bound - 1,
            _ => random.below(bound),
        });
        let store = Self::open(disk);
        let streams = disk.list("objects/00/00").is_ok_and(|names| names.iter().any(|name| name.contains('-')));
        let announced = crate::lock::lock(&store.format).0.streams;
        assert!(!streams || announced, "an older build would miss an object after a cut of seed {seed:#x}");
        for (object, model) in models {
            let found = read(&store, *object)
                .unwrap_or_else(|failure| panic!("object {object} after a cut of seed {seed:#x}: {failure}"));
            if let Err(problem) = model.check(&found) {
                panic!("object {object} after a cut of seed {seed:#x}: {problem}");
            }
            if let Some(fenced) = model.fenced {
                let earlier = store.object(object_id(*object)).commit(&store, Generation(fenced.0 - 1));
                let status = earlier.map(drop).map_err(|failure| failure.status);
                assert_eq!(status, Err(Status::Fenced), "object {object} after a cut of seed {seed:#x}");
            }
        }
        if self.sums {
            self.damage_is_seen(disk, &store, models, &mut random);
        }
        // After the power cut, the store must execute new operations correctly.
        let object = OBJECTS[random.below(OBJECTS.len() as u64) as usize];
        for op in [Op::Write(vec![(5, 9000)]), Op::Commit, Op::Remove, Op::Write(vec![(0, 10)]), Op::Commit] {
            perform(&store, 1, &Step(object, LATEST, op)).unwrap();
        }
        assert_eq!(read(&store, object).unwrap(), bytes(1, 10));
        let listed = store.list(None, 100).unwrap().entries;
        assert!(listed.iter().any(|entry| entry.object == object_id(object)));
        assert!(listed.iter().all(|entry| entry.head == HeadState::Own));
    }

    /// If a committed block has not changed since the commit, the store never returns a damaged byte of it.
    fn damage_is_seen(&self, disk: &Memory, store: &Store, models: &BTreeMap<u64, Model>, random: &mut Random) {
        for (object, model) in models {
            let kept: Vec<_> = model.committed.difference(&model.touched).collect();
            let Some(block) = kept.get(random.below(kept.len() as u64) as usize) else { continue };
            // Damage the first byte of the block, because every committed block has at least this one committed byte.
            let path = crate::store::Shards::path(object_id(*object));
            assert!(disk.spoil(&path, crate::store::HEAD_LEN + **block * BLOCK, 4), "object {object} block {block}");
            let status = read(store, *object).map(drop).map_err(|f| f.status);
            assert_eq!(status, Err(Status::Corrupt), "object {object} block {block}");
            disk.spoil(&path, crate::store::HEAD_LEN + **block * BLOCK, 4);
        }
    }
}

fn full() -> bool {
    std::env::var_os("WEIR_TEST_SCALE").is_some_and(|scale| scale == "full")
}

fn trial(sums: bool) -> CrashTest {
    CrashTest { sums, history: history(if full() { 2500 } else { 80 }) }
}

/// Makes a power-cut test like [`trial`], but with a shorter history of operations, for tests that take much longer for
/// each operation.
fn short(sums: bool) -> CrashTest {
    CrashTest { sums, history: history(if full() { 2500 } else { 40 }) }
}

#[test]
fn a_power_cut_at_any_point_loses_no_durable_change() {
    let points = trial(false).everywhere();
    assert!(points > if full() { 3000 } else { 100 }, "only {points} changes");
}

#[test]
fn a_power_cut_at_any_point_loses_no_durable_change_with_checksums() {
    let points = trial(true).everywhere();
    assert!(points > if full() { 5000 } else { 150 }, "only {points} changes");
}

#[test]
fn changes_repeated_after_a_kill_survive_power_cuts() {
    let points = short(false).again_everywhere();
    assert!(points > if full() { 3000 } else { 40 }, "only {points} changes");
}

#[test]
fn changes_repeated_after_a_kill_survive_power_cuts_with_checksums() {
    let points = short(true).again_everywhere();
    assert!(points > if full() { 5000 } else { 60 }, "only {points} changes");
}
