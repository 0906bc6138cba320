//! Failures: iods that stop and start, restarts of the mgr, and the deletion of removed files' objects.

use crate::cluster::{Cluster, create, ctx, mode, pattern, read, remove, until, write};
use bytes::Bytes;
use mgr::Files;
use nfs::fs::{ClientRecord, FileSystem, OpenHow, Stability};
use types::{ByteRange, FileId, Status, Verifier};

async fn commit(files: &Files, file: FileId) -> Result<Verifier, Status> {
    files.commit(&ctx(1), file, ByteRange::ALL).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_iod_blocks_only_its_own_data() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let both = create(&files, "both").await;
    write(&files, both, 0, &pattern(200, 1), Stability::FileSync).await;
    cluster.stop_iod(1);
    until("the loss is noticed", || cluster.up() == 1).await;
    assert_eq!(read(&files, both, 0, 200).await, Err(Status::Delay));
    let set = types::SetAttrs { size: Some(0), ..Default::default() };
    assert_eq!(files.setattr(&ctx(1), both, set, true).await, Err(Status::Delay));
    assert_eq!(files.getattr(&ctx(1), both).await.unwrap().size, 200);
    assert_eq!(commit(&files, both).await, Err(Status::Delay));
    // A new file has objects only on iods that are up.
    let new = create(&files, "new").await;
    write(&files, new, 0, &pattern(200, 2), Stability::FileSync).await;
    assert!(read(&files, new, 0, 200).await.unwrap() == pattern(200, 2));
    assert_eq!(cluster.objects(), 2);
    cluster.start_iod(1);
    cluster.wait_up(2).await;
    assert!(read(&files, both, 0, 200).await.unwrap() == pattern(200, 1), "a refused truncate has changed the file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_data_on_a_lost_iod_return_eio() {
    let mut cluster = Cluster::stopped(2, "64").await;
    cluster.config.iod_wait_secs = 0;
    cluster.start_mgr().await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(256, 1), Stability::FileSync).await;
    let unstable = write(&files, file, 0, &pattern(256, 1), Stability::Unstable).await;
    cluster.stop_iod(1);
    until("the loss is noticed", || cluster.up() == 1).await;
    // The iod counts as lost only a moment after the mgr has noticed the broken connection, so repeat the reads.
    let given_up = async {
        for unit in [0, 64] {
            while read(&files, file, unit, 64).await == Err(Status::Delay) {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), given_up).await.expect("the mgr reports the iod as down");
    // Every second stripe unit is on the available iod. A read of several units returns the units before the first
    // unavailable one.
    let there = |from: u64| (from / 64).is_multiple_of(2);
    let first_there = if read(&files, file, 0, 64).await.is_ok() { 0 } else { 64 };
    for unit in (0..256).step_by(64) {
        let got = read(&files, file, unit, 256).await;
        match there(unit + first_there) {
            true => assert_eq!(got.unwrap(), pattern(256, 1)[unit as usize..unit as usize + 64]),
            false => assert_eq!(got, Err(Status::Io)),
        }
        let data = Bytes::copy_from_slice(&pattern(256, 1)[unit as usize..]);
        let written = files.write(&ctx(1), file, unit, data, Stability::Unstable).await;
        match there(unit + first_there) {
            // While an iod of the file is lost, the mgr makes each write stable and replies with FILE_SYNC, because a
            // later COMMIT cannot reach all iods.
            true => assert_eq!(written.map(|out| (out.count, out.stable)), Ok((64, Stability::FileSync))),
            false => assert_eq!(written, Err(Status::Io)),
        }
    }
    // The write verifier has changed, because unstable bytes on the lost iod may no longer exist.
    assert_ne!(commit(&files, file).await.unwrap(), unstable.verifier);
    let set = types::SetAttrs { size: Some(0), ..Default::default() };
    assert_eq!(files.setattr(&ctx(1), file, set, true).await, Err(Status::Io));
    assert_eq!(files.getattr(&ctx(1), file).await.unwrap().size, 256);
    cluster.start_iod(1);
    cluster.wait_up(2).await;
    assert_eq!(read(&files, file, 0, 256).await.unwrap().len(), 256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_work_without_any_iod() {
    let mut cluster = Cluster::stopped(1, "64").await;
    cluster.stop_iod(0);
    cluster.start_mgr().await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let data = Bytes::from_static(b"data");
    assert_eq!(files.write(&ctx(1), file, 0, data.clone(), Stability::Unstable).await, Err(Status::Delay));
    assert_eq!(read(&files, file, 0, 10).await.unwrap(), "");
    let size = types::SetAttrs { size: Some(3), ..Default::default() };
    files.setattr(&ctx(1), file, size, true).await.unwrap();
    assert_eq!(read(&files, file, 0, 10).await.unwrap(), &[0; 3][..]);
    commit(&files, file).await.unwrap();
    cluster.start_iod(0);
    cluster.wait_up(1).await;
    write(&files, file, 1, &data, Stability::FileSync).await;
    assert_eq!(read(&files, file, 0, 10).await.unwrap(), &b"\0data"[..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verifiers_change_when_unstable_bytes_may_be_lost() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let first = write(&files, file, 0, b"on one iod", Stability::Unstable).await;
    assert_eq!(first.stable, Stability::Unstable);
    let second = write(&files, file, 64, &pattern(300, 1), Stability::Unstable).await;
    assert_eq!(first.verifier, second.verifier);
    assert_eq!(commit(&files, file).await, Ok(first.verifier));
    for iod in 0..2 {
        let before = write(&files, file, 0, &pattern(300, 1), Stability::Unstable).await.verifier;
        cluster.stop_iod(iod);
        until("the loss is noticed", || cluster.up() == 1).await;
        cluster.start_iod(iod);
        cluster.wait_up(2).await;
        assert_ne!(commit(&files, file).await.unwrap(), before);
    }
    let before = write(&files, file, 0, &pattern(300, 1), Stability::Unstable).await.verifier;
    drop(files);
    cluster.restart_mgr().await;
    assert_ne!(commit(&cluster.files(), file).await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_removed_files_are_deleted_on_all_iods() {
    let mut cluster = Cluster::new(3, "64").await;
    let files = cluster.files();
    for i in 0..10 {
        let file = create(&files, &format!("f{i}")).await;
        write(&files, file, 0, &pattern(600, 1), Stability::FileSync).await;
    }
    assert_eq!(cluster.objects(), 30);
    for i in 0..5 {
        let file = remove(&files, &format!("f{i}")).await;
        // The removed file is still open, so its bytes stay until the last close.
        assert!(read(&files, file, 0, 600).await.unwrap() == pattern(600, 1));
        files.reap(&ctx(0), file).await.unwrap();
        assert_eq!(files.getattr(&ctx(1), file).await, Err(Status::Stale));
        let cut = types::SetAttrs { size: Some(1), ..Default::default() };
        assert_eq!(files.setattr(&ctx(1), file, cut, true).await, Err(Status::Stale));
    }
    until("the objects are deleted", || cluster.objects() == 15).await;
    // Objects on a stopped iod stay on the deletion list, even across a restart of the mgr.
    cluster.stop_iod(2);
    until("the loss is noticed", || cluster.up() == 2).await;
    for i in 5..10 {
        let name = Bytes::from(format!("f{i}"));
        let id = files.lookup(&ctx(1), FileId::ROOT, &name).await.unwrap().id;
        // No client has the file open, so the removal of its last name deletes the inode.
        let removed = files.remove(&ctx(1), FileId::ROOT, &name, &|file| file == id).await.unwrap();
        assert!(!removed.orphaned && removed.id == id);
        assert_eq!(files.getattr(&ctx(1), id).await, Err(Status::Stale));
    }
    until("the other objects are deleted", || cluster.objects() == 0).await;
    drop(files);
    cluster.restart_mgr().await;
    cluster.start_iod(2);
    until("the last objects are deleted", || cluster.objects() == 0 && cluster.up() == 3).await;
    until("it is known", || cluster.mgr().counters().objects_swept >= 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_from_before_a_restart_are_freed() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(600, 1), Stability::FileSync).await;
    // A client removes the file while it is open, and no client closes it before the mgr stops.
    assert_eq!(remove(&files, "f").await, file);
    drop(files);
    cluster.restart_mgr().await;
    until("the orphan is freed", || cluster.objects() == 0).await;
    assert_eq!(cluster.files().getattr(&ctx(1), file).await, Err(Status::Stale));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_record_of_each_owner_survives_a_restart() {
    let mut cluster = Cluster::new(1, "64").await;
    let record = |owner: &str, clientid| ClientRecord { owner: Bytes::copy_from_slice(owner.as_bytes()), clientid };
    let files = cluster.files();
    let long = "x".repeat(1024);
    for record in [record("a", 1), record(&long, 2), record("a", 3), record("gone", 4)] {
        files.persist_client(record).await.unwrap();
    }
    files.forget_client(Bytes::from_static(b"gone")).await.unwrap();
    files.forget_client(Bytes::from_static(b"never seen")).await.unwrap();
    drop(files);
    cluster.restart_mgr().await;
    let mut left = cluster.files().clients().await.unwrap();
    left.sort_by_key(|r| r.clientid);
    assert_eq!(left, [record(&long, 2), record("a", 3)]);
    cluster.files().forget_client(Bytes::from_static(b"a")).await.unwrap();
    assert_eq!(cluster.files().clients().await.unwrap(), [record(&long, 2)]);
}

/// A client that creates a file without waiting for durability sends a COMMIT when it closes the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_of_an_empty_new_file_needs_no_iods() {
    let mut cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let make = async |name: &'static str| {
        let name = Bytes::from(name);
        let made = files.open_create(&ctx(1), FileId::ROOT, &name, OpenHow::Guarded, mode(0o644), true).await;
        made.unwrap().attrs.id
    };
    let (new, written) = (make("new").await, make("written").await);
    write(&files, written, 0, b"bytes", Stability::Unstable).await;
    cluster.stop_iod(0);
    until("the iod is down", || cluster.up() == 0).await;
    assert!(commit(&files, new).await.is_ok());
    assert_eq!(files.lookup(&ctx(2), FileId::ROOT, &"new".into()).await.unwrap().id, new);
    assert!(commit(&files, new).await.is_ok(), "once more");
    assert_eq!(commit(&files, written).await, Err(Status::Delay), "an iod still has the bytes of the file");
}
