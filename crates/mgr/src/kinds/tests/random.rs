//! Random requests on two files while iods and the mgr stop and start. The test compares every reply with a flat buffer
//! for each file.

use super::Bench;
use super::cluster::{create, ctx, pattern};
use bytes::Bytes;
use nfs::fs::{Content, FileSystem, Stability};
use types::{ByteRange, FileId, SetAttrs, Status};

/// Number of requests in one run of the test.
const STEPS: usize = 160;
/// Stripe unit of the files, in bytes.
const UNIT: u64 = 64;

/// A random number generator (splitmix64).
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Returns a random offset, mostly near the boundary of a stripe unit.
    fn offset(&mut self) -> u64 {
        match self.below(5) {
            0 => self.below(120_000),
            _ => (self.below(24) * UNIT + self.below(7)).saturating_sub(3),
        }
    }

    fn range(&mut self) -> ByteRange {
        let len = if self.below(8) == 0 { self.below(200_000) } else { self.offset().min(2000) };
        ByteRange { offset: self.offset(), len: len.max(1) }
    }
}

/// A file, and the bytes that it must contain.
struct Modelled {
    file: FileId,
    flat: Vec<u8>,
}

impl Modelled {
    fn put(&mut self, offset: u64, data: &[u8]) {
        let (at, end) = (offset as usize, offset as usize + data.len());
        self.flat.resize(self.flat.len().max(end), 0);
        self.flat[at..end].copy_from_slice(data);
    }

    /// Returns the bytes that the file must have in `range`, up to the end of the file.
    fn part(&self, range: ByteRange) -> &[u8] {
        let (from, to) = (range.offset as usize, range.end() as usize);
        &self.flat[from.min(self.flat.len())..to.min(self.flat.len())]
    }
}

/// Runs random requests on two new files, `a` and `b`. Returns `a`, which has objects at the end of the run.
pub(super) async fn run(bench: &mut Bench, seed: u64) -> FileId {
    let mut random = SeededRandom(seed);
    let mut both = Vec::new();
    for name in ["a", "b"] {
        let mut new = Modelled { file: create(&bench.cluster.files(), name).await, flat: Vec::new() };
        write(bench, &mut new, 0, 300, Stability::FileSync).await;
        both.push(new);
    }
    for _ in 0..STEPS {
        if random.below(12) == 0 {
            disturb(bench, &mut random).await;
        }
        let at = random.below(2) as usize;
        step(bench, &mut random, &mut both, at).await;
        let (file, size) = (both[at].file, both[at].flat.len() as u64);
        let attrs = bench.persist(async |files| files.getattr(&ctx(1), file).await).await;
        assert_eq!(attrs.unwrap().size, size);
    }
    bench.bring_back().await;
    bench.restart_mgr().await;
    for modelled in &both {
        let all = ByteRange { offset: 0, len: modelled.flat.len() as u64 };
        check_read(bench, modelled, all).await;
        bench.settle(modelled.file).await;
    }
    bench.is_clean().await;
    both[0].file
}

/// Stops a running iod, starts the stopped iod, or restarts the mgr.
async fn disturb(bench: &mut Bench, random: &mut SeededRandom) {
    match (random.below(4), bench.down) {
        (0, _) => bench.restart_mgr().await,
        (_, None) => {
            let iod = random.below(bench.subject.iods as u64) as usize;
            bench.stop_iod(iod);
        }
        (_, Some(_)) => bench.bring_back().await,
    }
}

async fn step(bench: &mut Bench, random: &mut SeededRandom, both: &mut [Modelled], at: usize) {
    let (range, file) = (random.range(), both[at].file);
    let one = &mut both[at];
    match random.below(14) {
        0..5 => {
            let stable = if random.below(2) == 0 { Stability::Unstable } else { Stability::FileSync };
            write(bench, one, range.offset, range.len, stable).await;
        }
        5..8 => check_read(bench, one, range).await,
        8 => {
            let set = SetAttrs { size: Some(range.offset), ..SetAttrs::default() };
            bench.persist(async |files| files.setattr(&ctx(1), file, set, true).await).await.unwrap();
            one.flat.resize(range.offset as usize, 0);
        }
        9 => {
            bench.persist(async |files| files.deallocate(&ctx(1), file, range).await).await.unwrap();
            let (from, to) = (range.offset as usize, range.end() as usize);
            let end = one.flat.len();
            one.flat[from.min(end)..to.min(end)].fill(0);
        }
        10 => {
            bench.persist(async |files| files.allocate(&ctx(1), file, range).await).await.unwrap();
            one.flat.resize(one.flat.len().max(range.end() as usize), 0);
        }
        11 => check_seek(bench, one, range.offset).await,
        12 => drop(bench.persist(async |files| files.commit(&ctx(1), file, ByteRange::ALL).await).await.unwrap()),
        _ => copy(bench, both, at, range, random.offset()).await,
    }
}

async fn write(bench: &mut Bench, to: &mut Modelled, offset: u64, len: u64, stable: Stability) {
    let data = Bytes::from(pattern(len as usize, offset as u8));
    let file = to.file;
    let out =
        bench.persist(async |files| files.write(&ctx(1), file, offset, data.clone(), stable).await).await.unwrap();
    assert!(u64::from(out.count) == len && out.stable >= stable);
    to.put(offset, &data);
}

async fn check_read(bench: &mut Bench, from: &Modelled, range: ByteRange) {
    let (file, len) = (from.file, range.len as u32);
    let out = bench.persist(async |files| files.read(&ctx(2), file, range.offset, len).await).await.unwrap();
    assert!(out.data.to_bytes() == *from.part(range), "read of {} at {}", range.len, range.offset);
    assert_eq!(out.eof, range.end() >= from.flat.len() as u64);
}

/// Checks the replies to SEEK. An iod may report unwritten bytes as data, but every byte that it reports as a hole must
/// be zero.
async fn check_seek(bench: &mut Bench, from: &Modelled, offset: u64) {
    let (file, size) = (from.file, from.flat.len() as u64);
    let data = bench.persist(async |files| files.seek(&ctx(1), file, offset, Content::Data).await).await;
    let hole = bench.persist(async |files| files.seek(&ctx(1), file, offset, Content::Hole).await).await;
    if offset >= size {
        assert_eq!((data, hole), (Err(Status::NxIo), Err(Status::NxIo)));
        return;
    }
    let data_at = match data {
        Err(Status::NxIo) => size,
        found => found.unwrap().offset,
    };
    assert!(data_at >= offset && from.flat[offset as usize..data_at as usize].iter().all(|byte| *byte == 0));
    let hole = hole.unwrap();
    assert!(hole.offset >= offset && hole.eof == (hole.offset == size));
    assert!(hole.eof || from.flat[hole.offset as usize] == 0, "a hole at {} that holds data", hole.offset);
    assert!(hole.offset == offset || data_at == offset, "neither data nor hole at {offset}");
}

/// Copies a range from the other test file by a server-side copy. If the iods copy only a part of the range, the test
/// writes the rest.
async fn copy(bench: &mut Bench, both: &mut [Modelled], to: usize, range: ByteRange, target: u64) {
    let (source, file) = (both[1 - to].file, both[to].file);
    let bytes = both[1 - to].part(range).to_vec();
    let copied = bench.persist(async |files| files.copy(&ctx(1), source, range, file, target).await).await.unwrap();
    let done = copied.map_or(0, |out| out.count as usize);
    assert!(done <= bytes.len());
    let rest = Bytes::copy_from_slice(&bytes[done..]);
    let offset = target + done as u64;
    if !rest.is_empty() {
        let stable = Stability::FileSync;
        bench.persist(async |files| files.write(&ctx(1), file, offset, rest.clone(), stable).await).await.unwrap();
    }
    if !bytes.is_empty() {
        both[to].put(target, &bytes);
    }
}
