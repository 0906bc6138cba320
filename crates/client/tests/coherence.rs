//! Several clients use one file. With `sharing=coherent`, each client sees every write and truncate that has returned
//! on any client.

use crate::cluster::{Cluster, options};
use crate::histories::{History, Slot};
use crate::seeded_random::{SeededRandom, seed};
use bytes::Bytes;
use client::{CreateOptions, File, Mount, OpenFlags};
use std::sync::Arc;
use types::{ByteRange, SetAttrs};

const NAME: &[u8] = b"f";

async fn create(mount: &Mount) -> File {
    mount.create(&mount.root(), NAME, CreateOptions::default()).await.unwrap()
}

async fn open(mount: &Mount, flags: OpenFlags) -> File {
    let (node, _) = mount.lookup(&mount.root(), NAME).await.unwrap();
    mount.open(&node, flags).await.unwrap()
}

async fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
    file.read_at(offset, len).await.unwrap().to_vec()
}

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_write_does_not_land_over_a_newer_one() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let (mine, theirs) = (create(&one).await, open(&other, OpenFlags::READ_WRITE).await);
    mine.write_at(0, text("OLD!")).await.unwrap();
    theirs.write_at(0, text("new.")).await.unwrap();
    theirs.fsync().await.unwrap();
    assert_eq!(read(&mine, 0, 9).await, b"new.", "bytes kept for sending again are not read");
    mine.close().await.unwrap();
    theirs.close().await.unwrap();
    assert_eq!(read(&open(&one, OpenFlags::READ).await, 0, 9).await, b"new.");
}

/// After a restart of the mgr, a client gets a new layout of a shared file. The client does not repeat writes that it
/// already sent under the old layout, because another client may have overwritten the bytes since then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_write_is_not_sent_again_after_the_layout_was_lost() {
    let mut cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let (mine, theirs) = (create(&one).await, open(&other, OpenFlags::READ_WRITE).await);
    mine.write_at(0, text("OLD! and")).await.unwrap();
    cluster.restart_mgr().await;
    // The restarted mgr does not know the old layout, and grants the client a new layout.
    let (refreshed, cut) = tokio::join!(mine.refresh(), theirs.set_len(6));
    refreshed.and(cut).unwrap();
    theirs.write_at(0, text("new.")).await.unwrap();
    theirs.fsync().await.unwrap();
    mine.fsync().await.unwrap();
    mine.close().await.unwrap();
    theirs.close().await.unwrap();
    let file = open(&one, OpenFlags::READ).await;
    assert_eq!((read(&file, 0, 9).await.as_slice(), file.attrs().size), (b"new. a".as_slice(), 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_buffered_under_a_delegation_are_seen_by_the_next_client() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let mine = create(&one).await;
    assert!(mine.is_alone());
    mine.write_at(0, Bytes::from(vec![7; 100_000])).await.unwrap();
    let written = |mount: &Mount| mount.counters().written_direct + mount.counters().written_via_mgr;
    assert_eq!(written(&one), 0, "the client gathers the writes");
    let (_, attrs) = other.lookup(&other.root(), NAME).await.unwrap();
    assert_eq!(attrs.size, 100_000);
    let theirs = open(&other, OpenFlags::READ).await;
    assert!(read(&theirs, 0, 200_000).await == vec![7; 100_000]);
    // The file is now shared: a write returns only after a server has received its bytes, and a read up to the end of
    // the file asks the mgr for the size.
    mine.write_at(100_000, text("more")).await.unwrap();
    assert_eq!(read(&theirs, 99_999, 9).await, b"\x07more");
    assert_eq!(theirs.refresh().await.unwrap().size, 100_004);
    mine.set_len(3).await.unwrap();
    assert_eq!((read(&theirs, 0, 9).await, read(&theirs, 50_000, 9).await), (vec![7; 3], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_a_shared_file_ignore_a_finite_write_threshold() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let written = || (one.counters().written_via_mgr, one.counters().written_direct);
    for (threshold, alone, shared) in [("64K", (10, 0), (0, 10)), ("max", (10, 0), (10, 0)), ("0", (0, 10), (0, 10))] {
        one.set_policy(b"write_threshold", Some(threshold.as_bytes())).unwrap();
        let mine = create(&one).await;
        let begin = written();
        mine.write_at(0, text("ten bytes.")).await.unwrap();
        mine.fsync().await.unwrap();
        let middle = written();
        assert_eq!((middle.0 - begin.0, middle.1 - begin.1), alone, "{threshold}");
        let theirs = open(&other, OpenFlags::READ_WRITE).await;
        mine.write_at(10, text("others too")).await.unwrap();
        let end = written();
        assert_eq!((end.0 - middle.0, end.1 - middle.1), shared, "{threshold}");
        theirs.write_at(15, text("write")).await.unwrap();
        assert_eq!(read(&mine, 0, 99).await, b"ten bytes.otherwrite");
        mine.close().await.unwrap();
        theirs.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_truncated_by_another_client_do_not_return() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    for written in [text("0123456789"), Bytes::from(vec![1; 3 << 20])] {
        let mine = create(&one).await;
        mine.write_at(0, written).await.unwrap();
        let (node, _) = other.lookup(&other.root(), NAME).await.unwrap();
        other.setattr(&node, &SetAttrs { size: Some(0), ..SetAttrs::default() }).await.unwrap();
        mine.close().await.unwrap();
        assert_eq!(other.getattr(&node).await.unwrap().size, 0);
        assert_eq!(read(&open(&one, OpenFlags::READ).await, 0, 9).await, b"");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appenders_on_two_clients_always_find_the_current_end() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let (mine, theirs) = (create(&one).await, open(&other, OpenFlags::READ_WRITE).await);
    let mut end = 0;
    for round in 0..20u64 {
        let file = if round % 2 == 0 { &mine } else { &theirs };
        assert_eq!(file.append(Bytes::from(vec![round as u8; 7])).await.unwrap(), end);
        end += 7;
        if round == 9 {
            // Between two appends, also extend the file with a write at the end of the file, without `O_APPEND`.
            mine.write_at(end, text("between")).await.unwrap();
            end += 7;
        }
    }
    assert_eq!(read(&mine, 0, 1000).await, read(&theirs, 0, 1000).await);
    assert_eq!(mine.refresh().await.unwrap().size, end);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_client_of_a_file_gets_a_delegation_and_buffers_again() {
    let cluster = Cluster::start(1).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let (mine, theirs) = (create(&one).await, open(&other, OpenFlags::READ).await);
    assert!(!mine.is_alone() && mine.delegation().is_none() && theirs.delegation().is_none());
    theirs.close().await.unwrap();
    // The mgr refused the delegation at the open. While the program uses the file, the client requests the delegation
    // again one second after each refusal.
    while !mine.is_alone() {
        mine.write_at(0, text("x")).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let before = one.counters();
    (0..100).for_each(|_| assert!(mine.is_alone()));
    for at in 0..100 {
        mine.write_at(at, text("y")).await.unwrap();
    }
    assert_eq!(one.counters().operation("WRITE"), before.operation("WRITE"));
    // Two clients may hold read delegations of one file at the same time.
    mine.close().await.unwrap();
    let (mine, theirs) = (open(&one, OpenFlags::READ).await, open(&other, OpenFlags::READ).await);
    assert!(mine.delegation().is_some() && theirs.delegation().is_some());
    let writer = open(&other, OpenFlags::WRITE).await;
    assert!(mine.delegation().is_none() && !writer.is_alone());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_reopened_at_once_keeps_its_delegation() {
    let cluster = Cluster::start(1).await;
    let mount = cluster.mount(options()).await;
    create(&mount).await.close().await.unwrap();
    for round in 0..200 {
        let file = open(&mount, OpenFlags::READ_WRITE).await;
        assert!(file.is_alone(), "round {round}");
        file.leave().await.unwrap();
    }
    // An open on another client does not wait for the deferred close: the recall of the delegation makes the first
    // client send the CLOSE at once.
    let other = cluster.mount(options()).await;
    assert!(open(&other, OpenFlags::READ_WRITE).await.is_alone());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_to_open_sharing_buffers_writes_until_close() {
    let cluster = Cluster::start(1).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    for mount in [&one, &other] {
        mount.set_policy(b"sharing", Some(b"close-to-open")).unwrap();
    }
    let (mine, theirs) = (create(&one).await, open(&other, OpenFlags::READ).await);
    assert!(mine.delegation().is_none() && mine.may_be_cached());
    mine.write_at(0, text("later")).await.unwrap();
    assert_eq!(read(&theirs, 0, 9).await, b"", "the client gathers writes although another client has the file open");
    mine.close().await.unwrap();
    assert_eq!(read(&open(&other, OpenFlags::READ).await, 0, 9).await, b"later");
}

fn full() -> bool {
    std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// A file that several clients use one after another, and the file's expected contents.
struct Turns {
    mounts: Vec<Mount>,
    files: Vec<File>,
    model: Vec<u8>,
    random: SeededRandom,
}

impl Turns {
    async fn step(&mut self) {
        let who = self.random.below(self.files.len());
        let at = self.random.below(100_000);
        let len = [1, 10, 5_000, 47_000][self.random.below(4)];
        match self.random.below(20) {
            0..=5 => {
                let data = vec![1 + self.random.below(255) as u8; len];
                self.model.resize(self.model.len().max(at + len), 0);
                self.model[at..at + len].copy_from_slice(&data);
                self.files[who].write_at(at as u64, Bytes::from(data)).await.unwrap();
            }
            6..=12 => {
                let got = read(&self.files[who], at as u64, len).await;
                let model = self.model.get(at..).unwrap_or_default();
                let model = &model[..model.len().min(len)];
                assert!(got == model, "{} bytes at {at} on client {who}, and not {}", got.len(), model.len());
            }
            13 => {
                let end = self.files[who].append(Bytes::from(vec![1; len])).await.unwrap();
                assert_eq!(end, self.model.len() as u64);
                self.model.resize(self.model.len() + len, 1);
            }
            14 => {
                self.files[who].set_len(at as u64).await.unwrap();
                self.model.resize(at, 0);
            }
            15 => {
                let node = self.files[who].node();
                self.mounts[who]
                    .setattr(&node, &SetAttrs { size: Some(at as u64), ..SetAttrs::default() })
                    .await
                    .unwrap();
                self.model.resize(at, 0);
            }
            16 => {
                let end = (at + len).min(self.model.len());
                self.files[who].punch(ByteRange { offset: at as u64, len: len as u64 }).await.unwrap();
                if at < end {
                    self.model[at..end].fill(0);
                }
            }
            17 => self.files[who].fsync().await.unwrap(),
            18 => {
                // Open the file again while another client may hold the delegation.
                let (mount, node) = (self.mounts[who].clone(), self.files[who].node());
                let again = mount.open(&node, OpenFlags::READ_WRITE).await.unwrap();
                std::mem::replace(&mut self.files[who], again).close().await.unwrap();
            }
            _ => assert_eq!(self.files[who].refresh().await.unwrap().size, self.model.len() as u64),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_take_turns_behave_like_one_client() {
    let seed = seed();
    let cluster = Cluster::start(3).await;
    let mounts = [cluster.mount(options()).await, cluster.mount(options()).await, cluster.mount(options()).await];
    mounts[1].set_policy(b"write_threshold", Some(b"8K")).unwrap();
    mounts[2].set_policy(b"read_threshold", Some(b"2K")).unwrap();
    let dir = mounts[0].root();
    mounts[0].setxattr(&dir, b"weir.stripe_unit", b"4096", client::XattrMode::Either).await.unwrap();
    let mut files = vec![create(&mounts[0]).await];
    for mount in &mounts[1..] {
        files.push(open(mount, OpenFlags::READ_WRITE).await);
    }
    let mut turns = Turns { mounts: mounts.to_vec(), files, model: Vec::new(), random: SeededRandom(seed) };
    for _ in 0..if full() { 100_000 } else { 1_500 } {
        turns.step().await;
    }
}

/// Clients concurrently write and read a few registers (fixed positions in a file). The history of all these calls must
/// be linearizable.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_at_the_same_time_have_an_order() {
    let seed = seed();
    let cluster = Cluster::start(2).await;
    let history = Arc::new(History::new(8));
    let mut workers = Vec::new();
    for number in 0..4u64 {
        let mount = cluster.mount(options()).await;
        if number % 2 == 1 {
            mount.set_policy(b"write_threshold", Some(b"64K")).unwrap();
        }
        let file = match number {
            0 => create(&mount).await,
            _ => open(&mount, OpenFlags::READ_WRITE).await,
        };
        let (history, mut random) = (history.clone(), SeededRandom(seed.wrapping_add(number)));
        workers.push(tokio::spawn(async move {
            for _ in 0..if full() { 20_000 } else { 400 } {
                let slot = Slot(random.below(8));
                if random.below(3) == 0 {
                    let write = history.begin_write(slot, number as usize);
                    let value = Bytes::copy_from_slice(&write.value().to_be_bytes());
                    file.write_at(slot.0 as u64 * 5_000, value).await.unwrap();
                    history.end_write(write);
                } else {
                    let read = history.begin_read(slot, number as usize);
                    let found = file.read_at(slot.0 as u64 * 5_000, 8).await.unwrap().to_vec();
                    let mut value = [0; 8];
                    value[..found.len()].copy_from_slice(&found);
                    history.end_read(read, u64::from_be_bytes(value));
                }
            }
            file.close().await.unwrap();
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    history.check(true);
}
