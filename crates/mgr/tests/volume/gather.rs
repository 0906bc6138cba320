//! Gathered small writes in the mgr: the number of requests to iods, reads of held bytes, and the effect of crashes of
//! the mgr and of iods.

use crate::cluster::{Cluster, create, ctx, pattern, read, remove, set_size, until, write};
use bytes::Bytes;
use layout::kinds::native::KIND;
use mgr::Files;
use nfs::fs::{Content, FileSystem, Iomode, LayoutAsk, LayoutGone, Stability, WriteOut};
use types::{ByteRange, FileId, Status, Verifier, limits};
use wire::admin::Value;

/// A gather delay in milliseconds that is longer than any test, so that the delay never causes a flush.
const LONG: u32 = 60_000;

async fn cluster(iods: usize, unit: &str, delay_ms: u32) -> Cluster {
    let mut cluster = Cluster::stopped(iods, unit).await;
    cluster.config.mgr_gather_delay_ms = delay_ms;
    cluster.start_mgr().await;
    cluster.wait_up(iods).await;
    cluster
}

async fn put(files: &Files, client: u64, file: FileId, offset: u64, data: &[u8]) -> WriteOut {
    let data = Bytes::copy_from_slice(data);
    let (len, out) = (data.len(), files.write(&ctx(client), file, offset, data, Stability::Unstable).await.unwrap());
    assert_eq!(out.count as usize, len);
    out
}

async fn commit(files: &Files, client: u64, file: FileId) -> Result<Verifier, Status> {
    files.commit(&ctx(client), file, ByteRange::ALL).await
}

async fn layout(files: &Files, client: u64, file: FileId, iomode: Iomode) {
    let max_body = limits::LAYOUT_BODY_MAX;
    let ask = LayoutAsk { file, kind: KIND, iomode, readable: true, range: ByteRange::ALL, min_len: 0, max_body };
    files.layout_get(&ctx(client), ask).await.unwrap();
}

async fn give_back(files: &Files, client: u64, file: FileId, iomode: Iomode) {
    let why = LayoutGone::Returned { kind: KIND, body: Bytes::new() };
    files.layout_gone(&ctx(client), client, file, iomode, ByteRange::ALL, why).await.unwrap();
}

/// Returns the number of WRITEs that the iods have received.
fn write_requests(cluster: &Cluster) -> u64 {
    let counters = cluster.iods.iter().flatten().flat_map(|iod| iod.counters());
    counters.filter(|counter| counter.name == "requests.write").map(|counter| counter.value).sum()
}

fn held(cluster: &Cluster) -> u64 {
    let status = cluster.mgr().status();
    let group = status.groups.iter().find(|group| group.name == "gathering").unwrap();
    let Some(Value::Number(bytes)) = group.get("held_bytes") else { panic!("{group:?}") };
    *bytes
}

/// Eight clients write interleaved records of one file. Returns the number of WRITEs that the iods received.
async fn records(delay_ms: u32) -> u64 {
    const RECORD: usize = 4096;
    const EACH: usize = 128;
    let mut cluster = cluster(4, "64K", delay_ms).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let want = pattern(8 * EACH * RECORD, 7);
    let begun = write_requests(&cluster);
    let clients = (0..8usize).map(|client| {
        let (files, want) = (files.clone(), want.clone());
        tokio::spawn(async move {
            let mut verifier = None;
            for record in 0..EACH {
                let at = (record * 8 + client) * RECORD;
                let out = put(&files, client as u64 + 1, file, at as u64, &want[at..at + RECORD]).await;
                assert_eq!((out.stable, *verifier.get_or_insert(out.verifier)), (Stability::Unstable, out.verifier));
            }
            assert_eq!(commit(&files, client as u64 + 1, file).await.ok(), verifier);
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let asked = write_requests(&cluster) - begun;
    let counters = cluster.mgr().counters();
    assert_eq!((counters.proxy_writes, counters.proxy_write_bytes), (8 * EACH as u64, want.len() as u64));
    assert_eq!(counters.gathered_writes, if delay_ms > 0 { counters.proxy_writes } else { 0 });
    assert_eq!((held(&cluster), counters.gather_losses), (0, 0));
    drop(files);
    cluster.restart_mgr().await;
    let files = cluster.files();
    for part in 0..want.len() >> 20 {
        let got = read(&files, file, (part as u64) << 20, 1 << 20).await.unwrap();
        assert!(got == want[part << 20..(part + 1) << 20], "part {part}");
    }
    assert_eq!(files.getattr(&ctx(1), file).await.unwrap().size, want.len() as u64);
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gathering_records_of_eight_clients_takes_an_eighth_of_the_requests() {
    let (off, usual, on) = (records(0).await, records(2).await, records(LONG).await);
    println!("WRITEs to iods: {off} one by one, {usual} gathered for 2 ms, {on} gathered until there are enough");
    assert_eq!(off, 1024);
    assert!(usual < off && off >= 8 * on, "{off} {usual} {on}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_through_the_mgr_see_held_writes() {
    let mut cluster = cluster(2, "64K", LONG).await;
    let files = cluster.files();
    let (file, other) = (create(&files, "f").await, create(&files, "g").await);
    put(&files, 1, file, 100, b"older").await;
    put(&files, 2, file, 102, b"new").await;
    assert_eq!((write_requests(&cluster), files.getattr(&ctx(3), file).await.unwrap().size), (0, 105));
    assert!(held(&cluster) > 5);
    assert_eq!(read(&files, file, 98, 20).await.unwrap(), &b"\0\0olnew"[..]);
    assert_eq!((write_requests(&cluster), held(&cluster)), (1, 0));
    // A stable write reaches the file after the held writes that it overlaps.
    put(&files, 1, file, 100, b"abcde").await;
    write(&files, file, 103, b"XYZ", Stability::FileSync).await;
    assert_eq!((held(&cluster), write_requests(&cluster)), (0, 3));
    assert_eq!(read(&files, file, 100, 20).await.unwrap(), "abcXYZ");
    // A stable write that overlaps no held write does not flush the held writes.
    put(&files, 1, file, 100, b"A").await;
    write(&files, file, 200_000, b"far", Stability::FileSync).await;
    assert!(held(&cluster) > 0);
    assert_eq!(files.seek(&ctx(2), file, 0, Content::Data).await.map(|found| found.offset < 101), Ok(true));
    assert_eq!(held(&cluster), 0);
    put(&files, 1, file, 300_000, b"hole").await;
    files.deallocate(&ctx(2), file, ByteRange { offset: 300_001, len: 2 }).await.unwrap();
    assert_eq!(read(&files, file, 300_000, 9).await.unwrap(), &b"h\0\0e"[..]);
    put(&files, 1, file, 400_000, b"room").await;
    files.allocate(&ctx(2), file, ByteRange { offset: 400_001, len: 100 }).await.unwrap();
    assert_eq!(files.getattr(&ctx(1), file).await.unwrap().size, 400_101);
    // A copy reads the held writes of its source file, and reaches its target file after the held writes of the target
    // file.
    put(&files, 1, file, 0, b"source").await;
    put(&files, 1, other, 0, b"target").await;
    let copied = files.copy(&ctx(1), file, ByteRange { offset: 0, len: 3 }, other, 2).await.unwrap().unwrap();
    assert_eq!(commit(&files, 1, other).await, Ok(copied.verifier));
    assert_eq!(read(&files, other, 0, 9).await.unwrap(), "tasout");
    // No held write reaches the file after a truncation.
    put(&files, 1, file, 0, b"0123456789").await;
    assert_eq!(set_size(&files, file, 4).await.size, 4);
    assert_eq!(set_size(&files, file, 8).await.size, 8);
    assert_eq!(read(&files, file, 0, 20).await.unwrap(), &b"0123\0\0\0\0"[..]);
    // The mgr discards the held writes of a removed file.
    put(&files, 1, other, 0, b"x").await;
    let gone = remove(&files, "g").await;
    files.reap(&ctx(0), gone).await.unwrap();
    assert_eq!(held(&cluster), 0);
    drop(files);
    cluster.restart_mgr().await;
    assert_eq!(read(&cluster.files(), file, 0, 20).await.unwrap(), &b"0123\0\0\0\0"[..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_not_held_while_another_client_has_a_layout() {
    let cluster = cluster(2, "64K", LONG).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let gathered = || cluster.mgr().counters().gathered_writes;
    for iomode in [Iomode::Read, Iomode::ReadWrite] {
        let before = gathered();
        put(&files, 1, file, 0, b"held").await;
        layout(&files, 2, file, iomode).await;
        assert_eq!((gathered(), held(&cluster)), (before + 1, 0));
        let requests = write_requests(&cluster);
        put(&files, 1, file, 0, b"at once").await;
        assert_eq!((gathered(), write_requests(&cluster)), (before + 1, requests + 1));
        // A client with a layout orders its writes on the direct path and its writes on the mgr path. So the mgr may
        // hold writes of this client.
        put(&files, 2, file, 0, b"held").await;
        assert_eq!(gathered(), before + 2);
        // A held write reaches the file before an overlapping later write of another client.
        put(&files, 1, file, 1, b"o").await;
        assert_eq!((held(&cluster), read(&files, file, 0, 4).await.unwrap()), (0, Bytes::from_static(b"hold")));
        give_back(&files, 2, file, iomode).await;
        put(&files, 1, file, 0, b"held").await;
        assert!(held(&cluster) > 0 && gathered() == before + 3);
        assert!(commit(&files, 1, file).await.is_ok());
    }
    // CLOSE, unlock and LAYOUTRETURN flush the held writes.
    put(&files, 1, file, 0, b"a").await;
    files.closed(&ctx(1), file, true).await.unwrap();
    assert_eq!(held(&cluster), 0);
    put(&files, 1, file, 0, b"b").await;
    files.unlocking(&ctx(1), file).await;
    assert_eq!(held(&cluster), 0);
    layout(&files, 1, file, Iomode::ReadWrite).await;
    put(&files, 1, file, 0, b"c").await;
    give_back(&files, 1, file, Iomode::ReadWrite).await;
    assert_eq!((held(&cluster), cluster.mgr().counters().gather_close), (0, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_write_and_commit_changes_the_verifier() {
    let mut cluster = cluster(2, "4096", LONG).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let before = put(&files, 1, file, 0, &pattern(10_000, 1)).await.verifier;
    assert_eq!(commit(&files, 1, file).await, Ok(before));
    for iod in 0..2 {
        let before = put(&files, 1, file, 0, &pattern(10_000, 2)).await.verifier;
        cluster.stop_iod(iod);
        until("the loss is noticed", || cluster.up() == 1).await;
        // While an iod is down, COMMIT returns DELAY, and the mgr still holds the bytes in memory.
        assert_eq!(commit(&files, 1, file).await, Err(Status::Delay));
        assert_eq!(read(&files, file, 0, 10_000).await, Err(Status::Delay));
        cluster.start_iod(iod);
        cluster.wait_up(2).await;
        assert_ne!(commit(&files, 1, file).await.unwrap(), before);
        assert!(read(&files, file, 0, 10_000).await.unwrap() == pattern(10_000, 2));
    }
    // A mgr that is stopped flushes its held writes.
    let before = put(&files, 1, file, 0, &pattern(10_000, 3)).await.verifier;
    drop(files);
    cluster.restart_mgr().await;
    let files = cluster.files();
    assert_ne!(commit(&files, 1, file).await.unwrap(), before);
    assert!(read(&files, file, 0, 10_000).await.unwrap() == pattern(10_000, 3));
    // A mgr that is killed loses its held writes.
    let before = put(&files, 1, file, 0, &pattern(10_000, 4)).await.verifier;
    assert!(held(&cluster) > 0);
    drop(files);
    drop(cluster.mgr.take());
    cluster.start_mgr().await;
    let files = cluster.files();
    cluster.wait_up(2).await;
    assert_ne!(commit(&files, 1, file).await.unwrap(), before);
    assert!(read(&files, file, 0, 10_000).await.unwrap() == pattern(10_000, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_reports_a_failed_gathered_write() {
    let cluster = cluster(1, "64K", 2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let objects = cluster.iods[0].as_ref().unwrap().store().dir().join("objects");
    let away = objects.with_extension("away");
    std::fs::rename(&objects, &away).unwrap();
    std::fs::write(&objects, "no directory").unwrap();
    let first = put(&files, 1, file, 0, b"one").await.verifier;
    until("it is tried", || cluster.mgr().counters().gather_losses == 1).await;
    // After the failed flush, the next write of a client fails at once: the mgr does not hold this write.
    let data = Bytes::from_static(b"two");
    let second = files.write(&ctx(2), file, 3, data, Stability::Unstable).await;
    assert!(second.is_err_and(|e| e != Status::Delay));
    assert!(commit(&files, 1, file).await.is_err_and(|e| e != Status::Delay));
    assert_ne!(
        commit(&files, 2, file).await.ok(),
        Some(first),
        "the COMMIT of another client does not return the old verifier"
    );
    std::fs::remove_file(&objects).unwrap();
    std::fs::rename(&away, &objects).unwrap();
    // After COMMIT has returned the error of a failed flush, later writes succeed.
    let third = put(&files, 1, file, 0, b"three").await.verifier;
    assert_eq!(commit(&files, 1, file).await, Ok(third));
    assert_eq!(read(&files, file, 0, 9).await.unwrap(), "three");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_beyond_the_gather_memory_are_sent_at_once() {
    let mut cluster = Cluster::stopped(2, "64K").await;
    (cluster.config.mgr_gather_delay_ms, cluster.config.gather_memory) = (LONG, "100K".into());
    cluster.start_mgr().await;
    cluster.wait_up(2).await;
    let files = cluster.files();
    for i in 0..100u8 {
        let file = create(&files, &format!("f{i}")).await;
        put(&files, 1, file, 5, &pattern(3000, i)).await;
        assert!(held(&cluster) <= 100 << 10);
        assert!(!i.is_multiple_of(7) || read(&files, file, 5, 3000).await.unwrap() == pattern(3000, i));
    }
    let counters = cluster.mgr().counters();
    assert!((16..100).contains(&counters.gathered_writes), "{}", counters.gathered_writes);
    assert_eq!(counters.proxy_writes, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gathered_writes_reach_both_mirrors() {
    let mut cluster = Cluster::stopped(2, "4096").await;
    (cluster.config.mgr_gather_delay_ms, cluster.config.mirrors) = (LONG, 2);
    cluster.start_mgr().await;
    cluster.wait_up(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    for at in (0..9000u64).step_by(90) {
        put(&files, 1, file, at, &pattern(9000, 1)[at as usize..at as usize + 90]).await;
    }
    let before = put(&files, 1, file, 9000, b"end").await.verifier;
    assert_eq!((write_requests(&cluster), commit(&files, 1, file).await), (0, Ok(before)));
    assert_eq!(write_requests(&cluster), 2);
    for iod in 0..2 {
        cluster.stop_iod(iod);
        until("the loss is noticed", || cluster.up() == 1).await;
        let got = read(&files, file, 0, 10_000).await.unwrap();
        assert!(got[..9000] == pattern(9000, 1) && got[9000..] == b"end"[..]);
        cluster.start_iod(iod);
        cluster.wait_up(2).await;
    }
}
