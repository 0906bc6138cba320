//! Allocated space of files: files with holes have less allocated space than their size. For files without holes, the
//! mgr knows the allocated space without a query to iods.

use crate::cluster::{Cluster, create, ctx, pattern, read, set_size, until, write};
use bytes::Bytes;
use layout::kinds::native::{KIND, Update};
use mgr::Files;
use nfs::fs::{FileSystem, Stability};
use types::{Attrs, ByteRange, FileId};
use xdr::Xdr;

const MIB: u64 = 1 << 20;
/// Largest allocated space in bytes that the headers and partly used disk blocks of four objects in two copies take.
const BESIDES: u64 = 128 << 10;

async fn attrs(files: &Files, file: FileId) -> Attrs {
    let mut attrs = files.getattr(&ctx(1), file).await.unwrap();
    files.correct_space(&mut [&mut attrs]).await;
    attrs
}

async fn punch(files: &Files, file: FileId, offset: u64, len: u64) {
    files.deallocate(&ctx(1), file, ByteRange { offset, len }).await.unwrap();
}

/// Asserts that the file has holes, and that its allocated space is about `bytes`.
async fn assert_space_used(files: &Files, file: FileId, bytes: u64) {
    let attrs = attrs(files, file).await;
    assert!(attrs.holes && (bytes.max(512)..bytes + BESIDES).contains(&attrs.used), "{bytes}: {attrs:?}");
}

/// Asserts that the mgr reports the file as without holes.
async fn assert_no_holes(files: &Files, file: FileId) {
    let attrs = attrs(files, file).await;
    assert!(!attrs.holes && attrs.used == attrs.size.next_multiple_of(512), "{attrs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_with_holes_use_less_than_their_size() {
    for mirrors in [1, 2] {
        let mut cluster = Cluster::stopped(4, "65536").await;
        cluster.config.mirrors = mirrors;
        cluster.start_mgr().await;
        let files = cluster.files();
        let file = create(&files, "f").await;
        assert_eq!(set_size(&files, file, 1 << 30).await.size, 1 << 30);
        assert_space_used(&files, file, 0).await;
        write(&files, file, 512 * MIB, &pattern(65_536, 1), Stability::FileSync).await;
        assert_space_used(&files, file, 65_536).await;
        write(&files, file, 2 << 30, &pattern(300_000, 2), Stability::Unstable).await;
        files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
        assert_space_used(&files, file, 365_536).await;
        // After a restart, the mgr still knows from its store that the file has holes.
        drop(files);
        cluster.restart_mgr().await;
        let files = cluster.files();
        cluster.wait_up(4).await;
        assert_space_used(&files, file, 365_536).await;
        set_size(&files, file, 0).await;
        assert_no_holes(&files, file).await;

        // A client punches holes into the file, and then overwrites these ranges with data.
        let file = create(&files, "punched").await;
        for part in 0..4 {
            write(&files, file, part * MIB, &pattern(MIB as usize, 3), Stability::FileSync).await;
        }
        assert_no_holes(&files, file).await;
        punch(&files, file, MIB, 2 * MIB).await;
        assert_space_used(&files, file, 2 * MIB).await;
        for part in 1..3 {
            write(&files, file, part * MIB, &pattern(MIB as usize, 4), Stability::FileSync).await;
        }
        assert_eq!(attrs(&files, file).await.used, 4 * MIB, "a file uses no more space than its size");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_files_with_holes_cause_space_queries() {
    let cluster = Cluster::new(4, "65536").await;
    let files = cluster.files();
    let queries = || cluster.mgr().counters().space_queries;
    // A client writes ranges in ascending order with gaps shorter than a block, and reserves space after the end of the
    // file.
    let file = create(&files, "whole").await;
    for at in 0..20 {
        write(&files, file, at * 1000, &pattern(900, 1), Stability::Unstable).await;
    }
    files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
    files.allocate(&ctx(1), file, ByteRange { offset: 19_900, len: 5 * MIB }).await.unwrap();
    assert_no_holes(&files, file).await;
    let commit = async |file, end: u64, update: Update| {
        let body = Bytes::from(update.to_bytes().to_vec());
        files.layout_commit(&ctx(7), file, (KIND, body), end.checked_sub(1), None).await.unwrap()
    };
    let told = create(&files, "told").await;
    assert_eq!(commit(told, MIB, Update { durable: true, ..Update::default() }).await, Some(MIB));
    assert_no_holes(&files, told).await;
    assert_eq!(queries(), 0);
    // A client reports a punched hole in a LAYOUTCOMMIT: the size of the file stays the same, and its change attribute
    // grows.
    let before = attrs(&files, told).await.change;
    commit(told, 0, Update { holes: true, ..Update::default() }).await;
    let after = attrs(&files, told).await;
    assert!(after.holes && after.change > before && after.used == 512);
    assert_eq!(queries(), 1);
    // A client reserves space after the end of the file, with a gap before the reserved range.
    let file = create(&files, "reserved").await;
    files.allocate(&ctx(1), file, ByteRange { offset: 3 * MIB, len: MIB }).await.unwrap();
    assert_space_used(&files, file, MIB).await;
    // A copy has holes if its source has holes.
    let source = create(&files, "source").await;
    write(&files, source, 0, &pattern(MIB as usize, 5), Stability::FileSync).await;
    let range = ByteRange { offset: 0, len: MIB };
    for (name, holes) in [("copy", false), ("copy with holes", true)] {
        let copy = create(&files, name).await;
        assert_eq!(files.copy(&ctx(1), source, range, copy, 0).await.unwrap().map(|out| out.count), Some(MIB as u32));
        assert_eq!(attrs(&files, copy).await.holes, holes, "{name}");
        punch(&files, source, 65_536, 65_536).await;
        files.extend(&ctx(1), copy, 2 * MIB).await.unwrap();
        assert_space_used(&files, copy, MIB - if holes { 65_536 } else { 0 }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_files_use_the_space_of_their_stored_bytes() {
    let mut cluster = Cluster::stopped(2, "65536").await;
    cluster.config.inline_max = "4K".into();
    cluster.start_mgr().await;
    let files = cluster.files();
    let file = create(&files, "small").await;
    write(&files, file, 700, b"few", Stability::FileSync).await;
    assert_no_holes(&files, file).await;
    set_size(&files, file, 1 << 30).await;
    let found = attrs(&files, file).await;
    assert!(found.holes && found.used == 1024, "{found:?}");
    assert_eq!((cluster.objects(), cluster.mgr().counters().space_queries), (0, 0));
    assert_eq!(read(&files, file, 698, 6).await.unwrap(), &b"\0\0few\0"[..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_queries_are_rare_and_do_not_wait_for_lost_iods() {
    let mut cluster = Cluster::new(2, "65536").await;
    let files = cluster.files();
    let mut all = Vec::new();
    for n in 0..100 {
        let file = create(&files, &format!("f{n}")).await;
        set_size(&files, file, 1 << 30).await;
        write(&files, file, MIB, &pattern(70_000, 1), Stability::FileSync).await;
        all.push(files.getattr(&ctx(1), file).await.unwrap());
    }
    // Two callers request the allocated space of all files at the same time.
    let correct = async || {
        let mut found = all.clone();
        files.correct_space(&mut found.iter_mut().collect::<Vec<_>>()).await;
        found.iter().map(|attrs| attrs.used).collect::<Vec<_>>()
    };
    let (one, other) = tokio::join!(correct(), correct());
    assert!(one == other && one.iter().all(|used| (70_000..70_000 + BESIDES).contains(used)), "{one:?} {other:?}");
    let file = all[0].id;
    let before = cluster.mgr().counters().space_queries;
    for _ in 0..200 {
        assert_space_used(&files, file, 70_000).await;
    }
    let asked = cluster.mgr().counters().space_queries - before;
    assert!(asked < 100, "asked {asked} times");
    // While an iod is down, the mgr reports the last allocated space that the iods reported.
    cluster.stop_iod(1);
    until("the loss is noticed", || cluster.up() == 1).await;
    assert_space_used(&files, file, 70_000).await;
    let unknown = create(&files, "unknown").await;
    set_size(&files, unknown, 1 << 30).await;
    let found = attrs(&files, unknown).await;
    // The iods have not reported the allocated space of the new file yet, so the mgr reports its minimum, 512 bytes.
    assert!(found.holes && found.used == 512, "{found:?}");
}
