//! Moves of files to objects on other iods, while clients read and write the files.

use crate::cluster::{Cluster, options};
use crate::proxy::{Meter, Proxy};
use bytes::Bytes;
use client::{CreateOptions, File, Mount, OpenFlags, Target, XattrMode};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};
use types::{FileId, IodId, Status};

/// The length of a block in bytes: the stripe unit of the file, and the length of each write.
const BLOCK: usize = 4096;
/// Number of blocks of the file. Client number `n` writes the blocks whose number modulo `WRITERS` is `n`.
const BLOCKS: usize = 48;
/// Number of writing clients.
const WRITERS: usize = 3;
/// The pairs of iods, in a cluster of four, to which the file moves one after the other. The second move keeps both
/// iods of the file, and the last move keeps one iod.
const PAIRS: [[u16; 2]; 4] = [[0, 1], [0, 1], [2, 3], [3, 0]];
/// The time limit of each wait in these tests, so that a deadlocked test fails.
const EVER: Duration = Duration::from_secs(100);

/// For each block, the version number of the last write that has returned (`answered`), and of the last write that has
/// begun (`begun`).
struct Versions {
    answered: Vec<AtomicU8>,
    begun: Vec<AtomicU8>,
    over: AtomicBool,
}

impl Versions {
    fn new() -> Arc<Versions> {
        let zeros = || (0..BLOCKS).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Versions { answered: zeros(), begun: zeros(), over: AtomicBool::new(false) })
    }

    async fn write(&self, file: &File, block: usize) {
        let version = self.begun[block].load(SeqCst) + 1;
        self.begun[block].store(version, SeqCst);
        file.write_at((block * BLOCK) as u64, Bytes::from(vec![version; BLOCK])).await.unwrap();
        self.answered[block].store(version, SeqCst);
    }

    /// Reads all blocks. Each byte must be from the last write of its block that had returned before the read began, or
    /// from a write that began later.
    async fn check(&self, file: &File) {
        let least: Vec<u8> = self.answered.iter().map(|version| version.load(SeqCst)).collect();
        let got = file.read_at(0, BLOCKS * BLOCK).await.unwrap().to_vec();
        assert_eq!(got.len(), BLOCKS * BLOCK);
        for (block, bytes) in got.chunks(BLOCK).enumerate() {
            let most = self.begun[block].load(SeqCst);
            let wrong = bytes.iter().find(|version| !(least[block]..=most).contains(version));
            assert_eq!(wrong, None, "block {block} is not of a version from {} to {most}", least[block]);
        }
    }
}

/// Writes and reads blocks until another task sets `versions.over`. Returns the number of rounds, each of which writes
/// one block and reads all blocks.
async fn work(file: &File, versions: &Versions, writer: usize) -> usize {
    let mut rounds = 0;
    while !versions.over.load(SeqCst) {
        let block = (writer + WRITERS * (rounds % (BLOCKS / WRITERS))) % BLOCKS;
        if versions.begun[block].load(SeqCst) < 250 {
            versions.write(file, block).await;
        }
        if rounds % 5 == 0 {
            file.fsync().await.unwrap();
        }
        versions.check(file).await;
        rounds += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    file.fsync().await.unwrap();
    rounds
}

/// Starts a cluster of four iods with a lease time of two seconds. New files have objects on two of the iods.
async fn four() -> Cluster {
    let mut cluster = Cluster::start(4).await;
    cluster.lease_secs = Some(2);
    cluster.restart_mgr().await;
    let mount = cluster.mount(options()).await;
    for (name, value) in [(&b"weir.stripe_count"[..], &b"2"[..]), (b"weir.stripe_unit", b"4096")] {
        mount.setxattr(&mount.root(), name, value, XattrMode::Either).await.unwrap();
    }
    mount.disconnect().await.unwrap();
    cluster
}

async fn open(mount: &Mount) -> File {
    let (node, _) = mount.lookup(&mount.root(), b"f").await.unwrap();
    mount.open(&node, OpenFlags::READ_WRITE).await.unwrap()
}

/// Moves a file to new objects on two iods. Repeats the request until the mgr accepts it.
async fn moved(cluster: &Cluster, file: FileId, pair: [u16; 2]) {
    let mgr = cluster.mgr.as_ref().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < EVER {
        match mgr.swap_layout(file, pair.to_vec()).await {
            Err(Status::Delay) => tokio::time::sleep(Duration::from_millis(50)).await,
            other => return other.unwrap(),
        }
    }
    panic!("the file was not moved");
}

/// Returns the stream number of a file's objects, and the iods that store the objects.
async fn used(file: &File) -> (u32, Vec<IodId>) {
    let placement = file.placement().await.unwrap();
    (placement.object.stream, placement.objects.iter().map(|object| object.iod).collect())
}

async fn clean(cluster: &Cluster) {
    let mgr = cluster.mgr.as_ref().unwrap();
    let work = |name| mgr.status().group("work").unwrap().get_number(name);
    let begun = Instant::now();
    while work("unused") + work("fences_pending") + work("intents_written") > 0 {
        assert!(begun.elapsed() < EVER, "unused objects are not removed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(mgr.check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_moves_under_its_readers_and_writers() {
    let mut cluster = four().await;
    let versions = Versions::new();
    // The third client gets a layout. Later, the proxy stops all mgr messages to this client, even the layout recall.
    let address: SocketAddr = cluster.target.address().parse().unwrap();
    let line = Proxy::start(address, Arc::new(Meter::default()));
    let target = Target::parse(&format!("weir://{}/", line.address())).unwrap();
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let silent = Mount::connect(&target, options()).await.unwrap();
    let made = one.create(&one.root(), b"f", CreateOptions::default()).await.unwrap();
    made.write_at(0, Bytes::from(vec![0; BLOCKS * BLOCK])).await.unwrap();
    let node = made.node();
    assert_eq!(used(&made).await.0, 0);
    made.close().await.unwrap();
    let quiet = open(&silent).await;
    for block in (2..BLOCKS).step_by(WRITERS) {
        versions.write(&quiet, block).await;
    }
    quiet.fsync().await.unwrap();
    versions.check(&quiet).await;
    let mut tasks = Vec::new();
    for (writer, mount) in [&one, &other].into_iter().enumerate() {
        let (file, versions) = (open(mount).await, versions.clone());
        tasks.push(tokio::spawn(async move {
            let rounds = work(&file, &versions, writer).await;
            file.close().await.unwrap();
            rounds
        }));
    }
    line.hold_answers_after(0);
    for (round, pair) in PAIRS.into_iter().enumerate() {
        if round == 2 {
            // In round 2, one iod that stores the file is down during a first attempt to move the file.
            let file = open(&one).await;
            let id = used(&file).await.1[0];
            file.close().await.unwrap();
            let down = (0..4).find(|iod| cluster.iods[*iod].as_ref().unwrap().iod() == id).unwrap();
            cluster.stop_iod(down);
            cluster.mgr.as_ref().unwrap().swap_layout(node.id, vec![0, 1]).await.unwrap_err();
            cluster.start_iod(down);
        }
        tokio::time::timeout(EVER, moved(&cluster, node.id, pair)).await.expect("the move does not end");
        if round == 0 {
            assert!(cluster.mgr.as_ref().unwrap().counters().layouts_revoked > 0, "the third client kept its layout");
            line.drop_answers();
            // The third client can still read and write the file without an error.
            versions.check(&quiet).await;
            for block in (2..BLOCKS).step_by(WRITERS) {
                versions.write(&quiet, block).await;
            }
            assert_eq!(used(&quiet).await.0, 1);
        }
    }
    versions.over.store(true, SeqCst);
    for task in tasks {
        let rounds = tokio::time::timeout(EVER, task).await.expect("the client makes no progress").unwrap();
        assert!(rounds > 10, "{rounds}");
    }
    quiet.fsync().await.unwrap();
    quiet.close().await.unwrap();
    let file = open(&other).await;
    versions.check(&file).await;
    assert_eq!(used(&file).await.0, 4);
    file.close().await.unwrap();
    assert_eq!(cluster.mgr.as_ref().unwrap().counters().layouts_swapped, 4);
    clean(&cluster).await;
    for mount in [one, other, silent] {
        mount.disconnect().await.unwrap();
    }
}
