//! Random I/O on the direct path and the mgr path while policies change, compared with a byte array in memory (the
//! model). One test uses one client, the other uses two clients with byte-range locks.
//!
//! With `WEIR_TEST_SCALE=full`, each test runs 100,000 operations. `WEIR_TEST_SEED` repeats a run with the seed that
//! the run printed.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, File, LockKind, Mount, Node, OpenFlags, OpenOptions, Origin, Settings, XattrMode};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use types::ByteRange;

/// A random number generator (SplitMix64).
struct SeededRandom(u64);

impl SeededRandom {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n.max(1) as u64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let seed = self.roll();
        // Never return the byte 0, because 0 stands for bytes of the file that were not written.
        (0..len as u64).map(|i| 1 + ((seed ^ i.wrapping_mul(0x2545_f491)) >> 9) as u8 % 255).collect()
    }
}

/// Returns the number of operations of each test.
fn operations() -> usize {
    if std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full") { 100_000 } else { 3000 }
}

fn seed() -> u64 {
    let given = std::env::var("WEIR_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| getrandom::u64().unwrap())
}

/// The write thresholds in bytes that the tests set. The lengths of the writes lie near these thresholds.
const THRESHOLDS: [usize; 5] = [0, 700, 4096, 10_000, 30_000];
/// Policy settings that the tests change in addition to the numeric write thresholds.
const OTHERS: &[(&str, &str)] = &[
    ("write_threshold", "max"),
    ("write_threshold", "auto"),
    ("read_threshold", "0"),
    ("read_threshold", "4096"),
    ("read_threshold", "max"),
    ("access", "direct"),
    ("access", "direct"),
    ("access", "unbuffered"),
    ("gather_size", "full"),
    ("gather_size", "0"),
    ("gather_size", "6000"),
    ("gather_delay", "max"),
    ("gather_delay", "1ms"),
    ("layout_when", "auto"),
    ("layout_when", "first-io"),
    ("layout_when", "20000"),
];

fn change_policy(mount: &Mount, random: &mut SeededRandom) {
    let t;
    let (name, value) = match random.below(3) {
        0 => random.pick(OTHERS),
        _ => {
            t = random.pick(&THRESHOLDS).to_string();
            ("write_threshold", t.as_str())
        }
    };
    mount.set_policy(name.as_bytes(), Some(value.as_bytes())).unwrap();
}

/// Returns a random length: a few bytes, up to 40,000 bytes, or close to a threshold.
fn length(random: &mut SeededRandom) -> usize {
    match random.below(4) {
        0 => 1 + random.below(50),
        1 => 1 + random.below(40_000),
        _ => (random.pick(&THRESHOLDS) + random.below(5)).saturating_sub(2).max(1),
    }
}

/// Creates a directory whose files have a stripe unit of 4096 bytes.
async fn striped(mount: &Mount) -> Node {
    let (dir, _) = mount.mkdir(&mount.root(), b"d", 0o755).await.unwrap();
    mount.setxattr(&dir, b"weir.stripe_unit", b"4096", XattrMode::Either).await.unwrap();
    dir
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Panics if `got`, the bytes that were read at offset `at`, differ from `want`. The message contains the first offset
/// at which they differ.
fn same(got: &[u8], want: &[u8], at: usize, what: &str) {
    if got != want {
        let first = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(got.len().min(want.len()));
        panic!("{what}: {} bytes instead of {}, the first wrong one at {}", got.len(), want.len(), at + first);
    }
}

/// The maximum length of the file in the test with one client, in bytes.
const LONGEST: usize = 200_000;

/// The state of the test with one client, which has the file open twice.
struct One {
    mount: Mount,
    dir: Node,
    files: [File; 2],
    model: Vec<u8>,
}

impl One {
    async fn open(mount: &Mount, dir: &Node, node: &Node, random: &mut SeededRandom) -> File {
        let hint = random.pick(&["", "", "access=unbuffered", "write_threshold=2K", "gather_size=0"]);
        let policy = Settings::parse(Origin::Open, hint).unwrap();
        mount
            .open_with(
                node,
                OpenOptions { flags: OpenFlags::READ_WRITE, dir: Some(dir), policy, alone: false, named: false },
            )
            .await
            .unwrap()
    }

    async fn step(&mut self, random: &mut SeededRandom) {
        let which = random.below(2);
        let file = &self.files[which];
        let at = random.below(LONGEST - 50_000);
        match random.below(20) {
            0..=8 => {
                let len = length(random);
                let data = random.bytes(len);
                let end = at + data.len();
                self.model.resize(self.model.len().max(end), 0);
                self.model[at..end].copy_from_slice(&data);
                file.write_at(at as u64, Bytes::from(data)).await.unwrap();
            }
            9..=13 => {
                let len = length(random);
                let got = file.read_at(at as u64, len).await.unwrap().to_vec();
                let end = self.model.len().min(at + len);
                same(&got, &self.model[at.min(end)..end], at, "a read");
            }
            14 => {
                let size = random.below(LONGEST);
                file.set_len(size as u64).await.unwrap();
                self.model.resize(size, 0);
            }
            15 => {
                let len = length(random);
                file.punch(ByteRange { offset: at as u64, len: len as u64 }).await.unwrap();
                let end = self.model.len().min(at + len);
                self.model[at.min(end)..end].fill(0);
            }
            16 => file.fsync().await.unwrap(),
            17 => file.push().await.unwrap(),
            18 => {
                let again = One::open(&self.mount, &self.dir, &file.node(), random).await;
                std::mem::replace(&mut self.files[which], again).close().await.unwrap();
            }
            _ => change_policy(&self.mount, random),
        }
        assert_eq!(self.files[which].size(), self.model.len() as u64);
    }
}

async fn check_all(mount: &Mount, node: &Node, model: &[u8]) {
    let file = mount.open(node, OpenFlags::READ).await.unwrap();
    let got = file.read_at(0, 2 * LONGEST).await.unwrap().to_vec();
    same(&got, model, 0, "all of it");
    file.close().await.unwrap();
}

#[test]
fn one_client_reads_its_own_writes_on_both_paths() {
    let seed = seed();
    println!("WEIR_TEST_SEED={seed}");
    let runtime = runtime();
    runtime.block_on(async {
        let cluster = Cluster::start(3).await;
        let (mount, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
        let dir = striped(&mount).await;
        let mut random = SeededRandom(seed);
        let (rounds, each) = (operations() / 500, 500);
        for round in 0..rounds {
            let name = format!("f{round}");
            let first = mount.create(&dir, name.as_bytes(), CreateOptions::default()).await.unwrap();
            let second = One::open(&mount, &dir, &first.node(), &mut random).await;
            let (mount, dir) = (mount.clone(), dir.clone());
            let mut one = One { mount, dir, files: [first, second], model: Vec::new() };
            for _ in 0..each {
                one.step(&mut random).await;
            }
            let node = one.files[0].node();
            for file in one.files {
                file.close().await.unwrap();
            }
            check_all(&one.mount, &node, &one.model).await;
            check_all(&other, &node, &one.model).await;
            one.mount.remove(&one.dir, name.as_bytes()).await.unwrap();
        }
        let counters = mount.counters();
        assert!(
            counters.written_direct > 0 && counters.written_via_mgr > 0,
            "one of the two paths was not used: {counters:?}"
        );
        assert_eq!(counters.retries, 0);
    });
}

/// The length of the shared file in bytes. The length changes only while a client holds a lock on the whole file.
const SHARED: usize = 120_000;

/// One of two clients that read and write a file under byte-range locks.
struct Sharer {
    mount: Mount,
    file: File,
    model: Arc<Mutex<Vec<u8>>>,
    left: Arc<AtomicUsize>,
    random: SeededRandom,
}

impl Sharer {
    fn model<T>(&self, look: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        look(&mut self.model.lock().unwrap())
    }

    /// Executes random operations until both clients together have executed the required number of operations.
    async fn run(mut self) {
        while self.left.load(Relaxed) > 0 {
            let whole = self.random.below(8) == 0;
            let at = self.random.below(SHARED - 45_000);
            let range = match whole {
                true => ByteRange::ALL,
                false => ByteRange { offset: at as u64, len: 1 + self.random.below(45_000) as u64 },
            };
            let writing = whole || self.random.below(3) > 0;
            let kind = if writing { LockKind::Write } else { LockKind::Read };
            self.file.lock(1, range, kind).await.unwrap();
            // The other client may have changed the file size before this client got the lock, so request the size.
            self.file.refresh().await.unwrap();
            let (from, to) = if whole { (0, SHARED) } else { (at, at + range.len as usize) };
            for _ in 0..1 + self.random.below(12) {
                self.left.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(1))).unwrap();
                self.step((from, to), writing).await;
            }
            if whole {
                self.cut().await;
            }
            self.file.unlock(1, ByteRange::ALL).await.unwrap();
        }
        self.file.close().await.unwrap();
    }

    /// Executes one random operation: reads or writes within the locked range, changes the policy, or syncs.
    async fn step(&mut self, (from, to): (usize, usize), writing: bool) {
        let at = from + self.random.below(to - from);
        let len = length(&mut self.random).min(to - at);
        match self.random.below(12) {
            0..=4 if writing => {
                let data = self.random.bytes(len);
                self.model(|model| model[at..at + len].copy_from_slice(&data));
                self.file.write_at(at as u64, Bytes::from(data)).await.unwrap();
            }
            10 => change_policy(&self.mount, &mut self.random),
            11 if writing => self.file.fsync().await.unwrap(),
            _ => {
                let got = self.file.read_at(at as u64, len).await.unwrap().to_vec();
                let want = self.model(|model| model[at..at + len].to_vec());
                same(&got, &want, at, "a read under a lock");
            }
        }
    }

    /// Truncates the file, then extends it to its old length. The caller holds a lock on the whole file.
    async fn cut(&mut self) {
        let size = self.random.below(SHARED);
        self.file.set_len(size as u64).await.unwrap();
        self.file.set_len(SHARED as u64).await.unwrap();
        self.model(|model| model[size..].fill(0));
    }
}

#[test]
fn two_clients_with_locks_read_each_others_writes() {
    let seed = seed();
    println!("WEIR_TEST_SEED={seed}");
    let runtime = runtime();
    runtime.block_on(async {
        let cluster = Cluster::start(3).await;
        let mounts = [cluster.mount(options()).await, cluster.mount(options()).await];
        let dir = striped(&mounts[0]).await;
        let file = mounts[0].create(&dir, b"f", CreateOptions::default()).await.unwrap();
        file.set_len(SHARED as u64).await.unwrap();
        let node = file.node();
        file.close().await.unwrap();
        let model = Arc::new(Mutex::new(vec![0; SHARED]));
        let left = Arc::new(AtomicUsize::new(operations()));
        let mut sharers = Vec::new();
        for (n, mount) in mounts.iter().enumerate() {
            let file = mount.open(&node, OpenFlags::READ_WRITE).await.unwrap();
            let (mount, model, left) = (mount.clone(), model.clone(), left.clone());
            let sharer = Sharer { mount, file, model, left, random: SeededRandom(seed.wrapping_add(n as u64)) };
            sharers.push(tokio::spawn(sharer.run()));
        }
        for sharer in sharers {
            sharer.await.unwrap();
        }
        let model = model.lock().unwrap().clone();
        for mount in &mounts {
            check_all(mount, &node, &model).await;
        }
    });
}
