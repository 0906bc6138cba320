//! Tests of restarts of the mgr and of iods while a client writes a file.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, ErrorKind, File, Mount, OpenFlags, Options, Origin, Settings};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{ByteRange, SetAttrs, Status};

/// The connect and retry timeout for tests in which a daemon stays down. A running daemon must reply within this time,
/// even on a busy machine.
const SHORT: Duration = Duration::from_secs(4);

/// The length of the header of an object file in bytes (`docs/FORMATS.md`).
const HEAD: u64 = 4096;

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

/// Truncates every object file. This simulates a crash of the iod, which may lose bytes that were not committed.
fn lose_bytes(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            lose_bytes(&entry.path());
        } else if entry.metadata().unwrap().len() > HEAD {
            std::fs::File::options().write(true).open(entry.path()).unwrap().set_len(HEAD).unwrap();
        }
    }
}

/// A write by the flush timer has no caller that receives an error. So the client keeps the bytes of such a write, even
/// if the mgr is unreachable for longer than `retry_timeout`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_the_flush_timer_is_kept_while_the_mgr_is_unreachable() {
    let mut cluster = Cluster::start(1).await;
    let policy = Settings::parse(Origin::Mount, "write_threshold=max,gather_delay=5ms").unwrap();
    let mount = cluster.mount(Options { retry_timeout: Duration::from_millis(1500), policy, ..options() }).await;
    let file = create(&mount, "f").await;
    cluster.mgr.take().unwrap().stop().await;
    // The first GETATTR fails, so the client has noticed that the mgr is unreachable. The GETATTRs in the loop below
    // take longer than `retry_timeout`, so that the flush timer runs before the mgr is back.
    let root = mount.root();
    mount.getattr(&root).await.unwrap_err();
    file.write_at(0, fill(1, 100)).await.unwrap();
    for _ in 0..3 {
        mount.getattr(&root).await.unwrap_err();
        file.write_at(100, fill(2, 100)).await.unwrap();
    }
    cluster.start_mgr_again().await;
    file.close().await.unwrap();
    assert!(read_back(&mount, "f").await == [fill(1, 100), fill(2, 100)].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_an_iod_lost_before_the_commit_are_sent_again() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount, "f").await;
    let data = fill(1, 9 << 20);
    file.write_at(0, data.clone()).await.unwrap();
    // Overwrite some of the written bytes. When the client sends both writes again after the restart of the iods, the
    // newer bytes must replace the older bytes.
    let top = fill(2, 3 << 20);
    let bottom = file.read_at(0, 9 << 20).await.unwrap().to_vec();
    assert!(bottom == data);
    file.write_at((1 << 20) + 5, top.clone()).await.unwrap();
    assert!(file.read_at((1 << 20) + 5, 3 << 20).await.unwrap().to_vec() == top);
    for i in 0..2 {
        cluster.stop_iod(i);
        lose_bytes(&cluster.store(i).join("objects"));
        cluster.start_iod(i);
    }
    let mut model = data.to_vec();
    model[(1 << 20) + 5..(4 << 20) + 5].copy_from_slice(&top);
    let seen = file.read_at(0, 9 << 20).await.unwrap().to_vec();
    assert!(seen == model, "the writer reads its bytes before they are sent again");
    file.fsync().await.unwrap();
    let counters = mount.counters();
    assert!(counters.written_direct >= 20 << 20, "the bytes were not sent again: {counters:?}");
    assert!(counters.reconnects >= 2 && counters.written_via_mgr == 0, "{counters:?}");
    // Stop and start the iods once more: the bytes that fsync has made durable must survive.
    for i in 0..2 {
        cluster.stop_iod(i);
        cluster.start_iod(i);
    }
    file.close().await.unwrap();
    assert!(read_back(&cluster.mount(options()).await, "f").await == model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_waits_for_an_iod_to_restart() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount, "f").await;
    file.write_at(0, fill(1, 100)).await.unwrap();
    file.fsync().await.unwrap();
    cluster.stop_iod(0);
    cluster.stop_iod(1);
    let data = fill(2, 5 << 20);
    let written = async {
        file.write_at(0, data.clone()).await.unwrap();
        file.fsync().await.unwrap();
    };
    let back = async {
        // Start the iods only after the client has repeated a request.
        while mount.counters().retries == 0 {
            tokio::task::yield_now().await;
        }
        cluster.start_iod(0);
        cluster.start_iod(1);
    };
    tokio::join!(written, back);
    file.close().await.unwrap();
    assert!(read_back(&mount, "f").await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_iod_is_reported_once() {
    let mut cluster = Cluster::start(1).await;
    let mount = cluster.mount(Options { connect_timeout: SHORT, retry_timeout: SHORT, ..options() }).await;
    let file = create(&mount, "f").await;
    file.write_at(0, fill(1, 100)).await.unwrap();
    file.fsync().await.unwrap();
    cluster.stop_iod(0);
    file.write_at(0, fill(2, 100)).await.unwrap();
    let error = file.fsync().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
    assert!(error.is_of_iod(), "{error}");
    cluster.start_iod(0);
    file.fsync().await.unwrap();
    file.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_bytes_are_not_reported_as_durable() {
    let mut cluster = Cluster::start(1).await;
    let mount = cluster.mount(Options { connect_timeout: SHORT, retry_timeout: SHORT, ..options() }).await;
    let file = create(&mount, "f").await;
    file.write_at(0, fill(1, 100)).await.unwrap();
    // Before the read, the client sends its pending (written but unsent) bytes to the iod. The iod then loses these
    // bytes.
    assert!(file.read_at(0, 100).await.unwrap().to_vec() == fill(1, 100));
    cluster.stop_iod(0);
    lose_bytes(&cluster.store(0).join("objects"));
    file.fsync().await.unwrap_err();
    cluster.start_iod(0);
    file.close().await.unwrap();
    let mgr = cluster.mgr.as_ref().unwrap();
    let findings = loop {
        let findings = mgr.check(false).await.findings;
        if findings.iter().all(|finding| finding.code != "iod-unreachable") {
            break findings;
        }
    };
    assert_eq!(findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_writer_gets_the_error_when_bytes_moving_to_the_mgr_path_are_lost() {
    let mut cluster = Cluster::start(1).await;
    let quick = Duration::from_millis(500);
    let mount = cluster.mount(Options { connect_timeout: quick, retry_timeout: quick, ..options() }).await;
    let one = Arc::new(create(&mount, "f").await);
    let two = mount.open(&one.node(), OpenFlags::READ_WRITE).await.unwrap();
    // Before the read, the client sends its pending (written but unsent) bytes to the iod. The iod may lose these bytes
    // until a COMMIT.
    one.write_at(0, fill(1, 100)).await.unwrap();
    assert!(two.read_at(0, 100).await.unwrap().to_vec() == fill(1, 100));
    cluster.stop_iod(0);
    let sent = || mount.counters().operations.iter().find(|(name, _)| name == "WRITE").map_or(0, |(_, count)| *count);
    let before = sent();
    let first = tokio::spawn({
        let one = one.clone();
        async move { one.fsync().await }
    });
    while sent() == before {
        tokio::task::yield_now().await;
    }
    two.fsync().await.unwrap_err();
    first.await.unwrap().unwrap_err();
    cluster.start_iod(0);
    two.fsync().await.unwrap();
    two.close().await.unwrap();
    Arc::into_inner(one).unwrap().close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_not_reported_to_the_mgr_can_be_read_on_the_mgr_path() {
    let mut cluster = Cluster::start(1).await;
    let quick = Duration::from_millis(300);
    let mount = cluster.mount(Options { connect_timeout: quick, ..options() }).await;
    let file = create(&mount, "f").await;
    let data = fill(1, 1 << 20);
    file.write_at(0, data.clone()).await.unwrap();
    assert!(file.read_at(0, 1 << 20).await.unwrap().to_vec() == data);
    cluster.stop_iod(0);
    // After an iod was unreachable, the client does not connect to this iod for some time. The mgr connects to the iod
    // sooner, so the read of the client takes the mgr path.
    let read = file.read_at(0, 1 << 20);
    let back = async {
        while !mount.counters().operations.iter().any(|(name, _)| name == "READ") {
            tokio::task::yield_now().await;
        }
        cluster.start_iod(0);
    };
    let (read, ()) = tokio::join!(read, back);
    assert!(read.unwrap().to_vec() == data);
    file.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writing_and_finishing_a_file_survives_restarts_of_the_mgr() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let root = mount.root();
    let file = create(&mount, "tmp").await;
    let data = fill(3, 5 << 20);
    file.write_at(0, data.slice(..3 << 20)).await.unwrap();
    cluster.restart_mgr().await;
    file.write_at(3 << 20, data.slice(3 << 20..)).await.unwrap();
    file.fsync().await.unwrap();
    cluster.restart_mgr().await;
    let changes = SetAttrs { mode: Some(0o640), ..SetAttrs::default() };
    let attrs = file.finish(changes, Some((&root, b"final"))).await.unwrap();
    assert_eq!((attrs.size, attrs.mode), (5 << 20, 0o640));
    assert!(read_back(&mount, "final").await == data);
    assert!(mount.lookup(&root, b"tmp").await.unwrap_err().is(Status::NoEnt));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_direct_path_is_used_again_after_a_restart_of_the_mgr() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount, "f").await;
    let data = fill(7, 4 << 20);
    file.write_at(0, data.clone()).await.unwrap();
    file.fsync().await.unwrap();
    // The restarted mgr gives this client a new client id, but the client opened its connections to the iods under the
    // old client id.
    cluster.restart_mgr().await;
    assert_eq!(file.refresh().await.unwrap().size, 4 << 20);
    file.write_at(4 << 20, data.clone()).await.unwrap();
    file.fsync().await.unwrap();
    assert!(file.read_at(4 << 20, 4 << 20).await.unwrap().to_vec() == data);
    let counters = mount.counters();
    assert_eq!((counters.written_via_mgr, counters.read_via_mgr), (0, 0), "{counters:?}");
    file.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_lost_on_the_mgr_path_are_sent_again() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(Options { direct: false, ..options() }).await;
    let file = create(&mount, "f").await;
    let data = fill(4, 5 << 20);
    file.write_at(0, data.clone()).await.unwrap();
    assert!(file.read_at(0, 5 << 20).await.unwrap().to_vec() == data);
    for i in 0..2 {
        cluster.stop_iod(i);
        lose_bytes(&cluster.store(i).join("objects"));
        cluster.start_iod(i);
    }
    cluster.restart_mgr().await;
    file.close().await.unwrap();
    assert!(read_back(&mount, "f").await == data);
    let counters = mount.counters();
    assert!(counters.written_via_mgr >= 10 << 20 && counters.written_direct == 0, "{counters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_reports_the_size_to_a_mgr_that_forgot_the_layout() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount, "f").await;
    let data = fill(5, 3 << 20);
    file.write_at(0, data.clone()).await.unwrap();
    // Before the read, the client sends its pending bytes to the iods. The client has not reported these bytes to the
    // mgr with LAYOUTCOMMIT.
    assert!(file.read_at(0, 3 << 20).await.unwrap().to_vec() == data);
    cluster.restart_mgr().await;
    // From the reply to `statfs`, the client learns that its session and its layout are lost. During the reclaim, the
    // client does not report bytes that are not durable yet.
    mount.statfs().await.unwrap();
    assert_eq!(mount.counters().operation("LAYOUTCOMMIT"), 0);
    file.close().await.unwrap();
    assert_eq!(mount.counters().operation("LAYOUTCOMMIT"), 1);
    let other = cluster.mount(options()).await;
    assert!(read_back(&other, "f").await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_truncated_by_another_client_after_a_restart_are_sent_again() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    // Use no delegation. Under a delegation, the truncate by the other client would wait until this client has flushed
    // its bytes.
    mount.set_policy(b"sharing", Some(b"close-to-open")).unwrap();
    let file = create(&mount, "f").await;
    let data = fill(5, 3 << 20);
    file.write_at(0, data.clone()).await.unwrap();
    // Before the read, the client sends its pending bytes to the iods. The iods may lose these bytes until a COMMIT.
    assert!(file.read_at(0, 3 << 20).await.unwrap().to_vec() == data);
    cluster.restart_mgr().await;
    // The restarted mgr knows the open of this client, but not its layout. So the mgr executes a truncate by another
    // client without a layout recall.
    mount.statfs().await.unwrap();
    let other = cluster.mount(options()).await;
    let (node, _) = other.lookup(&other.root(), b"f").await.unwrap();
    other.setattr(&node, &SetAttrs { size: Some(10), ..SetAttrs::default() }).await.unwrap();
    file.close().await.unwrap();
    // The iods have not restarted, so their write verifiers are unchanged. Nevertheless the client has sent its bytes
    // to the iods again after the truncate, because it had lost its layout.
    assert!(read_back(&other, "f").await == data);
    assert_eq!(cluster.mgr.as_ref().unwrap().check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_before_a_late_size_report_leaves_a_consistent_file() {
    let mut cluster = Cluster::start(1).await;
    let mount = cluster.mount(options()).await;
    // Use no delegation. Under a delegation, the truncate by the other client would wait until this client has flushed
    // its bytes.
    mount.set_policy(b"sharing", Some(b"close-to-open")).unwrap();
    let file = create(&mount, "f").await;
    file.write_at(0, fill(5, 100)).await.unwrap();
    file.fsync().await.unwrap();
    // The punched hole is durable at once. So after the punch, the client still has to report the new modification time
    // to the mgr, but no bytes.
    file.punch(ByteRange { offset: 0, len: 10 }).await.unwrap();
    file.write_at(100, fill(6, 100)).await.unwrap();
    assert_eq!(file.read_at(100, 100).await.unwrap().len(), 100);
    cluster.restart_mgr().await;
    mount.statfs().await.unwrap();
    let other = cluster.mount(options()).await;
    let (node, _) = other.lookup(&other.root(), b"f").await.unwrap();
    other.setattr(&node, &SetAttrs { size: Some(50), ..SetAttrs::default() }).await.unwrap();
    file.fsync().await.unwrap();
    assert_eq!(file.refresh().await.unwrap().size, 200);
    assert!(file.read_at(100, 100).await.unwrap().to_vec() == fill(6, 100));
    file.close().await.unwrap();
    assert_eq!(cluster.mgr.as_ref().unwrap().check(false).await.findings, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_changes_are_reported_during_reclaim() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount, "f").await;
    file.write_at(0, fill(5, 100)).await.unwrap();
    file.fsync().await.unwrap();
    file.punch(ByteRange { offset: 10, len: 10 }).await.unwrap();
    cluster.restart_mgr().await;
    assert_eq!(mount.counters().operation("LAYOUTCOMMIT"), 1);
    mount.statfs().await.unwrap();
    assert_eq!(mount.counters().operation("LAYOUTCOMMIT"), 2);
    file.close().await.unwrap();
    let mut data = fill(5, 100).to_vec();
    data[10..20].fill(0);
    let other = cluster.mount(options()).await;
    assert!(read_back(&other, "f").await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_recovers_from_a_restart_of_the_whole_cluster() {
    let mut cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount, "temporary").await;
    let data = fill(7, 5 << 20);
    file.write_at(0, data.clone()).await.unwrap();
    assert!(file.read_at(0, 5 << 20).await.unwrap().to_vec() == data);
    for i in 0..2 {
        cluster.stop_iod(i);
        lose_bytes(&cluster.store(i).join("objects"));
        cluster.start_iod(i);
    }
    cluster.restart_mgr().await;
    let changes = SetAttrs { mode: Some(0o640), ..SetAttrs::default() };
    let attrs = file.finish(changes, Some((&mount.root(), b"final"))).await.unwrap();
    assert_eq!((attrs.size, attrs.mode), (5 << 20, 0o640));
    let other = cluster.mount(options()).await;
    assert!(read_back(&other, "final").await == data);
    assert!(other.lookup(&other.root(), b"temporary").await.unwrap_err().is(Status::NoEnt));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_longer_than_the_window_is_committed_before_it_ends() {
    let cluster = Cluster::start(2).await;
    let window = 4 << 20;
    let mount = cluster.mount(Options { window, ..options() }).await;
    let file = create(&mount, "f").await;
    let data = fill(6, 1 << 20);
    for i in 0..24 {
        file.write_at(i << 20, data.clone()).await.unwrap();
    }
    assert!(mount.counters().rpc("COMMIT") > 0, "{:?}", mount.counters());
    file.close().await.unwrap();
    let got = read_back(&mount, "f").await;
    assert!(got.len() == 24 << 20 && got.chunks(1 << 20).all(|part| part == data));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_open_file_can_be_closed_across_a_restart_of_the_mgr() {
    let mut cluster = Cluster::start(1).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount, "f").await;
    file.write_at(0, fill(1, 100_000)).await.unwrap();
    mount.remove(&mount.root(), b"f").await.unwrap();
    cluster.mgr.take().unwrap().stop().await;
    // The client does not reclaim an open that it is closing. So the restarted mgr finds no open of this file, which
    // has no name, and removes the file.
    let before = mount.counters().retries;
    let closing = tokio::spawn(file.close());
    while mount.counters().retries == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.start_mgr_again().await;
    closing.await.unwrap().unwrap();
    mount.disconnect().await.unwrap();
}
