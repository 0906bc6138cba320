//! Tests of broken connections, lost replies, and servers that stay down.

use crate::cluster::{Cluster, options};
use crate::memory_mgr::MemoryMgr;
use crate::proxy::{Meter, Proxy};
use bytes::Bytes;
use client::{CreateOptions, File, LockKind, Mount, OpenFlags, Options, Target};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use types::{ByteRange, Status};

/// The request timeout of the tests. A running server replies within this time. The timeout is not longer, because
/// some tests wait until requests to a stopped server time out.
const SHORT: Duration = Duration::from_secs(2);
/// The time limit of each wait in these tests, so that a deadlocked test fails.
const EVER: Duration = Duration::from_secs(100);

/// A cluster with a proxy in front of each daemon.
struct Wired {
    cluster: Cluster,
    mgr: Proxy,
    iods: Vec<Proxy>,
    target: Target,
}

impl Wired {
    async fn start(iods: usize) -> Wired {
        let meter = Arc::new(Meter::default());
        let mut proxies = Vec::new();
        let door = |address| {
            proxies.push(Proxy::start(address, meter.clone()));
            proxies[proxies.len() - 1].address()
        };
        let cluster = Cluster::start_behind(iods, false, door).await;
        let address: SocketAddr = cluster.target.address().parse().unwrap();
        let mgr = Proxy::start(address, meter.clone());
        let target = Target::parse(&format!("weir://{}/", mgr.address())).unwrap();
        Wired { cluster, mgr, iods: proxies, target }
    }

    async fn mount(&self, options: Options) -> Mount {
        Mount::connect(&self.target, options).await.unwrap()
    }
}

fn impatient() -> Options {
    Options { connect_timeout: SHORT, retry_timeout: SHORT, ..options() }
}

fn fill(seed: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8).collect::<Vec<_>>().into()
}

async fn create(mount: &Mount, name: &str) -> File {
    mount.create(&mount.root(), name.as_bytes(), CreateOptions::default()).await.unwrap()
}

async fn read_back(mount: &Mount, name: &str) -> Vec<u8> {
    let (node, attrs) = mount.lookup(&mount.root(), name.as_bytes()).await.unwrap();
    let file = mount.open(&node, OpenFlags::READ).await.unwrap();
    let got = file.read_at(0, attrs.size as usize + 1).await.unwrap();
    file.close().await.unwrap();
    got.to_vec()
}

async fn names(mount: &Mount) -> Vec<String> {
    let mut pages = mount.readdir(&mount.root());
    let mut names = Vec::new();
    while let Some(page) = pages.next_page().await.unwrap() {
        names.extend(page.into_iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
    }
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_repeated_from_the_reply_cache() {
    let wired = Wired::start(1).await;
    let mount = wired.mount(options()).await;
    let root = mount.root();
    create(&mount, "file").await.close().await.unwrap();
    let (file, _) = mount.lookup(&root, b"file").await.unwrap();
    let mut lost = 0;
    let mut lose = || {
        wired.mgr.lose_answer_after(0);
        lost += 1;
    };
    lose();
    mount.mkdir(&root, b"dir", 0o755).await.unwrap();
    lose();
    mount.symlink(&root, b"symlink", b"text").await.unwrap();
    lose();
    assert_eq!(mount.link(&file, &root, b"link").await.unwrap().nlink, 2);
    lose();
    mount.rename(&root, b"dir", &root, b"moved").await.unwrap();
    lose();
    mount.remove(&root, b"link").await.unwrap();
    // The mgr also stores replies with errors in its reply cache.
    lose();
    assert!(mount.mkdir(&root, b"moved", 0o755).await.unwrap_err().is(Status::Exist));
    lose();
    assert!(mount.remove(&root, b"link").await.unwrap_err().is(Status::NoEnt));
    assert_eq!(
        (wired.mgr.lost(), names(&mount).await),
        (lost, ["file", "moved", "symlink"].map(String::from).to_vec())
    );
    assert_eq!(mount.getattr(&file).await.unwrap().nlink, 1);
}

/// Runs file operations of each kind on a new mount, and checks their results.
async fn day(target: &Target, number: u64) {
    let mount = Mount::connect(target, options()).await.unwrap();
    let root = mount.root();
    let dir = format!("dir {number}");
    let (dir, _) = mount.mkdir(&root, dir.as_bytes(), 0o755).await.unwrap();
    let file =
        mount.create(&dir, b"temporary", CreateOptions { exclusive: true, ..CreateOptions::default() }).await.unwrap();
    let data = fill(number, 100_000);
    file.write_at(0, data.clone()).await.unwrap();
    file.fsync().await.unwrap();
    file.write_at(100_000, data.clone()).await.unwrap();
    let attrs = file.finish(types::SetAttrs::default(), Some((&dir, b"final"))).await.unwrap();
    assert_eq!(attrs.size, 200_000);
    let (node, _) = mount.lookup(&dir, b"final").await.unwrap();
    let file = mount.open(&node, OpenFlags::READ_WRITE).await.unwrap();
    assert!(file.read_at(100_000, 200_000).await.unwrap().to_vec() == data);
    file.set_len(50).await.unwrap();
    file.close().await.unwrap();
    mount.link(&node, &dir, b"link").await.unwrap();
    mount.remove(&dir, b"final").await.unwrap();
    assert_eq!(mount.getattr(&node).await.unwrap().nlink, 1);
    mount.disconnect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_recover_from_the_loss_of_any_answer_of_the_mgr() {
    let wired = Wired::start(1).await;
    for at in 0.. {
        let lost = wired.mgr.lost();
        wired.mgr.lose_answer_after(at);
        tokio::time::timeout(EVER, day(&wired.target, at))
            .await
            .unwrap_or_else(|_| panic!("the client waits for ever for answer {at}"));
        if wired.mgr.lost() == lost {
            assert!(at > 10, "the mgr sent only {at} answers");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_recover_from_the_loss_of_any_answer_of_an_iod() {
    let wired = Wired::start(1).await;
    let (mut at, mut in_a_row) = (0, 0);
    // The proxy also counts the replies of the iod to the mgr, so in some rounds the proxy drops no reply to the
    // client. Stop after three such rounds in a row.
    while in_a_row < 3 {
        let lost = wired.iods[0].lost();
        wired.iods[0].lose_answer_after(at);
        tokio::time::timeout(EVER, day(&wired.target, at))
            .await
            .unwrap_or_else(|_| panic!("the client waits for ever for answer {at}"));
        in_a_row = if wired.iods[0].lost() == lost { in_a_row + 1 } else { 0 };
        at += 1;
    }
    assert!(at > 6, "the iod sent only {at} answers");
}

/// Returns whether a second lock owner on the same mount gets an exclusive lock on the whole file.
async fn another_owner_gets_a_lock(mount: &Mount, file: &File) -> bool {
    let again = mount.open(&file.node(), OpenFlags::READ_WRITE).await.unwrap();
    let got = again.try_lock(2, ByteRange::ALL, LockKind::Write).await.unwrap();
    again.close().await.unwrap();
    got
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_recovery_is_started_again() {
    let mut wired = Wired::start(1).await;
    for at in 0..8 {
        let mount = wired.mount(Options { direct: false, ..options() }).await;
        let (one, two) = (create(&mount, "one").await, create(&mount, "two").await);
        one.lock(1, ByteRange::ALL, LockKind::Write).await.unwrap();
        one.write_at(0, fill(at, 1000)).await.unwrap();
        one.fsync().await.unwrap();
        wired.cluster.restart_mgr().await;
        wired.mgr.lose_answer_after(at);
        let work = async {
            assert!(one.read_at(0, 1000).await.unwrap().to_vec() == fill(at, 1000));
            two.write_at(0, fill(at + 1, 1000)).await.unwrap();
            two.fsync().await.unwrap();
            assert!(!another_owner_gets_a_lock(&mount, &one).await, "the mgr does not hold the lock any more");
            // All clients have reclaimed their opens and locks, so the mgr must have ended its grace period, and a
            // create succeeds.
            create(&mount, "three").await.close().await.unwrap();
            one.close().await.unwrap();
            two.close().await.unwrap();
            mount.disconnect().await.unwrap();
        };
        tokio::time::timeout(EVER, work).await.unwrap_or_else(|_| panic!("without answer {at} recovery does not end"));
    }
    assert!(wired.mgr.lost() >= 6, "{}", wired.mgr.lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_bytes_are_not_sent_again_when_a_layoutcommit_is_lost() {
    for mgr_too in [false, true] {
        let mut wired = Wired::start(2).await;
        let mount = wired.mount(options()).await;
        let file = Arc::new(create(&mount, "f").await);
        let data = fill(1, 3 << 20);
        // Write and sync once, so that the client knows the addresses of the iods. Later writes then need no request
        // for these addresses.
        file.write_at(0, data.clone()).await.unwrap();
        file.fsync().await.unwrap();
        let data = fill(2, 3 << 20);
        file.write_at(0, data.clone()).await.unwrap();
        // The next request to the mgr is a LAYOUTCOMMIT, because the client has already committed all bytes on the
        // iods. So the proxy delays the reply to the LAYOUTCOMMIT.
        wired.mgr.hold_answers_after(0);
        let synced = tokio::spawn({
            let file = file.clone();
            async move { file.fsync().await }
        });
        let held = tokio::task::block_in_place(|| wired.mgr.wait_for_held_answer(|| synced.is_finished()));
        assert!(held);
        assert_eq!(mount.counters().operation("LAYOUTCOMMIT"), 2);
        for i in 0..2 {
            wired.cluster.stop_iod(i);
            wired.cluster.start_iod(i);
        }
        if mgr_too {
            wired.cluster.mgr.take().unwrap().stop().await;
            wired.mgr.drop_answers();
            wired.cluster.start_mgr_again().await;
        } else {
            wired.mgr.drop_answers();
        }
        synced.await.unwrap().unwrap();
        assert_eq!(mount.counters().written_direct, 6 << 20, "{:?}", mount.counters());
        let other = wired.mount(options()).await;
        assert!(read_back(&other, "f").await == data);
        Arc::into_inner(file).unwrap().close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_iod_fails_only_files_with_bytes_on_it() {
    let mut wired = Wired::start(2).await;
    let mount = wired.mount(impatient()).await;
    let mut files = Vec::new();
    for i in 0..6u64 {
        let file = create(&mount, &format!("f{i}")).await;
        file.write_at(0, fill(i, 1000)).await.unwrap();
        file.fsync().await.unwrap();
        let first = file.placement().await.unwrap().objects[0].iod;
        files.push((i, file, first));
    }
    let gone = files[0].2;
    assert!(files.iter().any(|(_, _, iod)| *iod != gone));
    let (mut number, mut other) = (0, 1);
    if wired.cluster.iods[0].as_ref().unwrap().iod() != gone {
        (number, other) = (other, number);
    }
    wired.cluster.stop_iod(number);
    assert!(wired.cluster.iods[other].is_some());
    let work = files.into_iter().map(|(i, file, iod)| async move {
        let there = iod != gone;
        let read = file.read_at(0, 1000).await;
        file.write_at(0, fill(i + 100, 1000)).await.unwrap();
        let synced = file.fsync().await;
        for error in [read.as_ref().err(), synced.as_ref().err()] {
            assert_eq!(error.map(client::Error::errno), (!there).then_some(5), "{error:?}");
        }
        // fsync or another call has already reported the lost bytes, so close has no error to report.
        file.close().await.unwrap();
    });
    tokio::time::timeout(EVER, futures_util::future::join_all(work)).await.expect("a request waits for ever");
    // The mgr places new files only on iods that are up, so the client can use a new file.
    let file = create(&mount, "new").await;
    file.write_at(0, fill(9, 3 << 20)).await.unwrap();
    file.close().await.unwrap();
    assert!(read_back(&mount, "new").await == fill(9, 3 << 20));
    assert_eq!(names(&mount).await.len(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_an_iod_that_never_answers_time_out() {
    let wired = Wired::start(1).await;
    let mount = wired.mount(impatient()).await;
    let file = create(&mount, "f").await;
    file.write_at(0, fill(1, 1000)).await.unwrap();
    file.fsync().await.unwrap();
    let other = wired.mount(options()).await;
    wired.iods[0].hold_answers_after(0);
    let work = async {
        // Send many more reads than the client may have in flight at the same time. All reads must fail within one
        // timeout, not after one timeout each.
        let reads = (0..600).map(|_| file.read_at(0, 1000));
        for read in futures_util::future::join_all(reads).await {
            assert_eq!(read.unwrap_err().errno(), 5);
        }
        file.write_at(0, fill(2, 1000)).await.unwrap();
        assert_eq!(file.fsync().await.unwrap_err().errno(), 5);
        // Operations on names need no iod. So they succeed although the iod does not reply.
        other.mkdir(&other.root(), b"dir", 0o755).await.unwrap();
    };
    tokio::time::timeout(EVER, work).await.expect("a request waits for ever");
    wired.iods[0].drop_answers();
    file.write_at(0, fill(3, 1000)).await.unwrap();
    let healed = async {
        while file.fsync().await.is_err() {
            file.write_at(0, fill(3, 1000)).await.unwrap();
        }
    };
    tokio::time::timeout(EVER, healed).await.expect("the client does not find the iod again");
    file.close().await.unwrap();
    assert!(read_back(&mount, "f").await == fill(3, 1000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_write_does_not_overwrite_newer_bytes() {
    let wired = Wired::start(1).await;
    let before = wired.iods[0].connections();
    let mount = wired.mount(impatient()).await;
    let file = create(&mount, "f").await;
    file.write_at(0, fill(1, 1000)).await.unwrap();
    file.fsync().await.unwrap();
    assert_eq!(mount.counters().written_via_mgr, 0);
    // From now on, the mgr can connect to the iod, but this client cannot.
    wired.iods[0].hold_requests_from(before + 1);
    file.write_at(0, fill(2, 1000)).await.unwrap();
    file.fsync().await.unwrap();
    file.write_at(0, fill(3, 500)).await.unwrap();
    file.fsync().await.unwrap();
    assert_eq!(mount.counters().written_via_mgr, 1500);
    file.set_len(800).await.unwrap();
    let count = |name: &str| {
        let iod = wired.cluster.iods[0].as_ref().unwrap();
        iod.counters().iter().find(|counter| counter.name == name).unwrap().value
    };
    let (refused, ended) = (count("refused.fenced"), count("connections.open"));
    wired.iods[0].let_requests_go();
    // Wait until the iod has refused the delayed WRITE, or has closed the connection of the WRITE because the client
    // opened a newer connection (HELLO).
    let arrived = async {
        while count("refused.fenced") == refused && count("connections.open") == ended {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), arrived).await.expect("the delayed request did not arrive");
    let other = wired.mount(options()).await;
    let expected = [fill(3, 500).to_vec(), fill(2, 800)[500..].to_vec()].concat();
    assert!(read_back(&other, "f").await == expected);
    file.close().await.unwrap();
    assert!(read_back(&other, "f").await == expected);
    assert_eq!(wired.cluster.mgr.as_ref().unwrap().check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_mgr_is_contacted_again_before_the_lease_expires() {
    let mut wired = Wired::start(1).await;
    let lease = 6;
    wired.cluster.lease_secs = Some(lease);
    wired.cluster.restart_mgr().await;
    let mount = wired.mount(Options { retry_timeout: EVER, ..options() }).await;
    wired.mgr.hold_answers_after(0);
    let root = mount.root();
    let work = mount.mkdir(&root, b"dir", 0o755);
    let noticed = async {
        while mount.counters().reconnects == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        wired.mgr.drop_answers();
    };
    let noticed = tokio::time::timeout(Duration::from_secs(lease.into()), noticed);
    let (made, noticed) = tokio::join!(work, noticed);
    noticed.expect("the client did not reach the restarted mgr within a lease");
    made.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_survive_randomly_cut_connections() {
    let wired = Wired::start(2).await;
    let mount = wired.mount(options()).await;
    for (i, proxy) in wired.iods.iter().chain([&wired.mgr]).enumerate() {
        proxy.cut_at_random(i as u64);
    }
    let data = fill(5, 24 << 20);
    for round in 0..2 {
        let name = format!("f{round}");
        let file = create(&mount, &name).await;
        for (i, part) in data.chunks(3 << 20).enumerate() {
            file.write_at((i * (3 << 20)) as u64, data.slice_ref(part)).await.unwrap();
        }
        file.close().await.unwrap();
        assert!(read_back(&mount, &name).await == data);
    }
    let cuts: u64 = wired.iods.iter().chain([&wired.mgr]).map(Proxy::calm).sum();
    assert!(cuts > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_reclaim_fails_only_its_own_file() {
    let mgr = MemoryMgr::start().await;
    let mount = mgr.mount(options()).await;
    let (gone, stays) = (create(&mount, "gone").await, create(&mount, "stays").await);
    for file in [&gone, &stays] {
        file.write_at(0, fill(1, 100)).await.unwrap();
        file.fsync().await.unwrap();
    }
    // The lease of this client expires. Before this client notices the expiry, another client removes one of its files.
    mgr.expire().await;
    let other = mgr.mount(options()).await;
    other.remove(&other.root(), b"gone").await.unwrap();
    gone.write_at(0, fill(2, 100)).await.unwrap();
    let error = gone.fsync().await.unwrap_err();
    assert!(error.is(Status::Stale), "{error}");
    stays.write_at(100, fill(2, 100)).await.unwrap();
    stays.fsync().await.unwrap();
    assert_eq!(stays.read_at(0, 300).await.unwrap().to_vec(), [fill(1, 100), fill(2, 100)].concat());
    // fsync has reported the lost bytes, so close has no error to report.
    gone.close().await.unwrap();
    stays.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_loses_no_bytes_to_layout_recalls() {
    let wired = Wired::start(2).await;
    let (writer, cutter) = (wired.mount(options()).await, wired.mount(options()).await);
    let file = create(&writer, "f").await;
    let data = fill(8, 1 << 20);
    file.write_at(0, data.clone()).await.unwrap();
    file.fsync().await.unwrap();
    let (node, _) = cutter.lookup(&cutter.root(), b"f").await.unwrap();
    let streaming = async {
        for i in 0..24u64 {
            file.write_at(i << 20, data.clone()).await.unwrap();
        }
        file.fsync().await.unwrap();
    };
    // Each truncate sets a size that is larger than the end offset of all writes in this test. So no truncate removes
    // written bytes.
    let cutting = async {
        for i in 0..8u64 {
            let size = types::SetAttrs { size: Some((64 << 20) + i), ..types::SetAttrs::default() };
            cutter.setattr(&node, &size).await.unwrap();
        }
    };
    tokio::join!(streaming, cutting);
    file.close().await.unwrap();
    for mount in [&writer, &cutter, &wired.mount(options()).await] {
        assert_eq!(mount.getattr(&node).await.unwrap().size, (64 << 20) + 7);
        let file = mount.open(&node, OpenFlags::READ).await.unwrap();
        for i in 0..24u64 {
            assert!(file.read_at(i << 20, 1 << 20).await.unwrap().to_vec() == data, "MiB {i}");
        }
        assert!(file.read_at(24 << 20, 1 << 20).await.unwrap().to_vec().iter().all(|byte| *byte == 0));
        file.close().await.unwrap();
    }
}

/// Returns a name in XDR encoding: its length, its bytes, and zeros as padding.
fn encoded(name: &[u8]) -> Vec<u8> {
    let mut bytes = (name.len() as u32).to_be_bytes().to_vec();
    bytes.extend(name);
    bytes.resize(4 + name.len().next_multiple_of(4), 0);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_name_in_a_directory_is_a_protocol_error() {
    let wired = Wired::start(1).await;
    let mount = wired.mount(options()).await;
    let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
    let cases = [
        ("qz", "."),
        ("qz", ".."),
        ("qz", "./"),
        ("qz", "/q"),
        ("qz", "q\0"),
        ("qwertz", "../../"),
        (&longest, &too_long),
    ];
    for (number, (genuine, false_name)) in cases.into_iter().enumerate() {
        let (dir, _) = mount.mkdir(&mount.root(), format!("dir-{number}").as_bytes(), 0o755).await.unwrap();
        mount.mkdir(&dir, b"sound", 0o755).await.unwrap();
        mount.mkdir(&dir, genuine.as_bytes(), 0o755).await.unwrap();
        let mut pages = mount.readdir(&dir);
        assert_eq!(pages.next_page().await.unwrap().unwrap().len(), 2);
        let before = wired.mgr.altered();
        wired.mgr.alter_answers(&encoded(genuine.as_bytes()), &encoded(false_name.as_bytes()));
        let error = mount.readdir(&dir).next_page().await.unwrap_err();
        assert!(wired.mgr.altered() > before, "no answer was altered");
        assert_eq!(error.kind(), client::ErrorKind::Protocol, "{error}");
        let named = format!("the mgr sent a name that no file can have: {false_name:?}");
        assert!(error.to_string().contains(&named), "{error}");
        wired.mgr.leave_answers();
        // After the reply with the malformed name, the client keeps the connection and can still read other
        // directories.
        assert_eq!(mount.readdir(&mount.root()).next_page().await.unwrap().unwrap().len(), number + 1);
    }
}
