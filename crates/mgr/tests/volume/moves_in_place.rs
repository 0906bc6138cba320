//! Tests of moves of a file to new objects on the same iods. The new objects belong to a new stream of the file.
//! After the move, every operation on the file uses only the new objects.

use crate::check::{check, object, wait_settled};
use crate::cluster::{Cluster, create, ctx, pattern, read, remove, set_size, until, write};
use crate::layouts::{layout, write_direct};
use crate::swap_layout::{clean, gone, later, unused};
use bytes::Bytes;
use layout::kinds::native::KIND;
use nfs::fs::{FileSystem, Iomode, LayoutGone, Stability};
use types::{ByteRange, FileId, ObjectId, Status};

/// Starts a cluster of two iods, with leases of one second.
async fn two(mirrors: u32) -> Cluster {
    let mut cluster = Cluster::stopped(2, "64").await;
    (cluster.config.mirrors, cluster.config.lease_secs) = (mirrors, 1);
    cluster.start_mgr().await;
    cluster.wait_up(2).await;
    cluster
}

/// Creates a file of 1000 bytes, which has an object on each iod.
async fn file(cluster: &Cluster) -> FileId {
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, &pattern(1000, 1), Stability::FileSync).await;
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_uses_the_new_objects() {
    let mut cluster = two(1).await;
    let file = file(&cluster).await;
    let mut want = pattern(1000, 1);
    for stream in 1..3 {
        cluster.mgr().swap_layout(file, vec![0, 1]).await.unwrap();
        assert_eq!((cluster.objects(), unused(&cluster), check(&cluster, false).await), (4, 1, Vec::new()));
        let files = cluster.files();
        let direct = layout(&files, 7, file, Iomode::ReadWrite).await;
        assert_eq!(direct.object, ObjectId::new(file, stream));
        write_direct(&files, 7, &direct, 100, &pattern(100, 7)).await.unwrap();
        let back = LayoutGone::Returned { kind: KIND, body: Bytes::new() };
        gone(&files, 7, file, Iomode::ReadWrite, back).await;
        write(&files, file, 300, &pattern(300, 8), Stability::FileSync).await;
        want[100..200].copy_from_slice(&pattern(100, 7));
        want[300..600].copy_from_slice(&pattern(300, 8));
        let copy = create(&files, "copy").await;
        let whole = ByteRange { offset: 0, len: 1000 };
        let copied = files.copy(&ctx(1), file, whole, copy, 0).await.unwrap().unwrap();
        assert_eq!(files.commit(&ctx(1), copy, ByteRange::ALL).await, Ok(copied.verifier));
        assert!(read(&files, copy, 0, 2000).await.unwrap() == want, "stream {stream}");
        set_size(&files, file, 500).await;
        files.copy(&ctx(1), copy, ByteRange { offset: 500, len: 500 }, file, 500).await.unwrap().unwrap();
        files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
        remove(&files, "copy").await;
        files.reap(&ctx(1), copy).await.unwrap();
        drop(files);
        clean(&cluster, 2).await;
        cluster.restart_mgr().await;
        cluster.wait_up(2).await;
        assert!(read(&cluster.files(), file, 0, 2000).await.unwrap() == want, "stream {stream}");
        wait_settled(&cluster).await;
    }
    assert!((0..2).all(|iod| later(&cluster, iod, ObjectId::new(file, 2)).exists()));
    let files = cluster.files();
    remove(&files, "f").await;
    files.reap(&ctx(1), file).await.unwrap();
    clean(&cluster, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_copy_is_rebuilt_in_its_stream() {
    let mut cluster = two(2).await;
    let file = file(&cluster).await;
    cluster.mgr().swap_layout(file, vec![1, 0]).await.unwrap();
    clean(&cluster, 2).await;
    for lost in 0..2 {
        let path = later(&cluster, lost, ObjectId::new(file, 1));
        let whole = std::fs::metadata(&path).unwrap().len();
        cluster.stop_iod(lost);
        std::fs::remove_file(&path).unwrap();
        until("the iod is down", || cluster.up() == 1).await;
        cluster.start_iod(lost);
        cluster.wait_up(2).await;
        let is_whole = || std::fs::metadata(&path).is_ok_and(|file| file.len() == whole);
        until("the copy is rebuilt", is_whole).await;
        assert!(!object(&cluster, lost, file).exists());
        assert!(read(&cluster.files(), file, 0, 2000).await.unwrap() == pattern(1000, 1));
        wait_settled(&cluster).await;
        assert_eq!(check(&cluster, false).await, []);
    }
}

/// A client writes under a layout that the mgr revoked before the move. It writes even after the mgr has deleted the
/// old objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_writes_to_old_objects_are_refused_or_collected() {
    let mut cluster = two(1).await;
    let file = file(&cluster).await;
    let old = layout(&cluster.files(), 7, file, Iomode::ReadWrite).await;
    gone(&cluster.files(), 7, file, Iomode::ReadWrite, LayoutGone::Revoked).await;
    cluster.mgr().swap_layout(file, vec![0, 1]).await.unwrap();
    let late = async |cluster: &Cluster| {
        let wrote = write_direct(&cluster.files(), 7, &old, 0, &pattern(1000, 9)).await;
        wrote.map_err(|failure| failure.status)
    };
    assert_eq!(late(&cluster).await, Err(Status::Fenced));
    clean(&cluster, 2).await;
    assert_eq!((late(&cluster).await, cluster.objects()), (Err(Status::Fenced), 2));
    let restart = async |cluster: &mut Cluster| {
        for iod in 0..2 {
            cluster.stop_iod(iod);
            until("the iod is down", || cluster.up() == 1).await;
            cluster.start_iod(iod);
            cluster.wait_up(2).await;
        }
    };
    // A restarted iod has no tombstones, so a write that arrives after the move creates the old objects again. When
    // the iod connects again, the mgr lists the objects on the iod, and deletes these old objects.
    restart(&mut cluster).await;
    assert_eq!(late(&cluster).await, Ok(()));
    restart(&mut cluster).await;
    clean(&cluster, 2).await;
    // The mgr increments the counter of removed objects only after it has removed an object.
    until("both objects are counted", || cluster.mgr().counters().objects_collected == 2).await;
    assert!(read(&cluster.files(), file, 0, 2000).await.unwrap() == pattern(1000, 1));
}

/// After the recovery of an older copy of the metadata store, the store does not know the objects that later moves of
/// files created. A move of a file to objects that already exist must fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_to_objects_that_exist_is_refused() {
    let cluster = two(1).await;
    let file = file(&cluster).await;
    crate::check::Native::connect(&cluster, 1).await.make(ObjectId::new(file, 1)).await;
    assert_eq!(cluster.mgr().swap_layout(file, vec![0, 1]).await, Err(Status::Exist));
    assert_eq!((unused(&cluster), cluster.objects()), (0, 3));
    assert!(read(&cluster.files(), file, 0, 2000).await.unwrap() == pattern(1000, 1));
}
