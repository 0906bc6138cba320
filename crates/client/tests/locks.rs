//! Byte-range locks: conflicts between mounts, reclaims after a restart of the mgr, and lost locks.

use crate::cluster::Cluster;
use crate::memory_mgr::{MemoryMgr, options};
use bytes::Bytes;
use client::{CreateOptions, ErrorKind, File, HeldLock, LockKind, Mount, OpenFlags};
use types::{ByteRange, Status};

const SHARED: LockKind = LockKind::Read;
const EXCLUSIVE: LockKind = LockKind::Write;

async fn create(mount: &Mount, name: &str) -> File {
    mount.create(&mount.root(), name.as_bytes(), CreateOptions::default()).await.unwrap()
}

async fn open(mount: &Mount, name: &str) -> File {
    let (node, _) = mount.lookup(&mount.root(), name.as_bytes()).await.unwrap();
    mount.open(&node, OpenFlags::READ_WRITE).await.unwrap()
}

fn bytes(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

async fn read(file: &File) -> Vec<u8> {
    file.read_at(0, 1000).await.unwrap().to_vec()
}

#[tokio::test]
async fn locks_exclude_conflicting_locks_of_other_owners() {
    let mgr = MemoryMgr::start().await;
    let (mount, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    let (mine, theirs) = (create(&mount, "f").await, open(&other, "f").await);
    mine.lock(1, bytes(10, 10), EXCLUSIVE).await.unwrap();
    assert!(!theirs.try_lock(1, bytes(0, 11), SHARED).await.unwrap(), "the same number in two mounts names two owners");
    assert!(!mine.try_lock(2, bytes(19, 1), SHARED).await.unwrap());
    let found = theirs.test_lock(1, ByteRange::ALL, SHARED).await.unwrap();
    assert_eq!(found, Some(HeldLock { range: bytes(10, 10), kind: EXCLUSIVE, owner: None }));
    let found = mine.test_lock(2, bytes(15, u64::MAX), EXCLUSIVE).await.unwrap();
    assert_eq!(found, Some(HeldLock { range: bytes(10, 10), kind: EXCLUSIVE, owner: Some(1) }));
    assert_eq!(mine.test_lock(1, ByteRange::ALL, EXCLUSIVE).await.unwrap(), None);
    // Unlock the middle of the locked range, and downgrade the lock on the end of the range to a shared lock.
    mine.unlock(1, bytes(12, 3)).await.unwrap();
    mine.lock(1, bytes(15, u64::MAX), SHARED).await.unwrap();
    assert!(theirs.try_lock(1, bytes(12, 100), SHARED).await.unwrap());
    assert!(!mine.try_lock(1, bytes(20, 1), EXCLUSIVE).await.unwrap());
    theirs.unlock(1, ByteRange::ALL).await.unwrap();
    assert!(mine.try_lock(1, bytes(20, 1), EXCLUSIVE).await.unwrap());
    assert_eq!(mgr.counts().locks, 4, "two locks before the gap and three after it, one of them unlocked");
    // Lock owners belong to the mount. So an open can release a lock that the same lock owner acquired through another
    // open.
    let again = open(&mount, "f").await;
    again.unlock(1, bytes(0, 15)).await.unwrap();
    assert!(theirs.try_lock(1, bytes(0, 15), EXCLUSIVE).await.unwrap());
    mine.close().await.unwrap();
    assert!(theirs.try_lock(1, ByteRange::ALL, EXCLUSIVE).await.unwrap(), "a close unlocks");
    let reader = mount.open(&theirs.node(), OpenFlags::READ).await.unwrap();
    assert_eq!(reader.lock(5, bytes(0, 0), SHARED).await.unwrap_err().kind(), ErrorKind::Usage);
    assert!(reader.lock(5, bytes(0, 1), EXCLUSIVE).await.is_err(), "the file is not open for writing");
    for file in [again, theirs, reader] {
        file.close().await.unwrap();
    }
    assert_eq!((mgr.counts().locks, mgr.counts().opens), (0, 0));
}

#[tokio::test]
async fn the_next_lock_holder_sees_bytes_written_under_the_lock() {
    let mgr = MemoryMgr::start().await;
    let (mount, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    let (mine, theirs) = (create(&mount, "f").await, open(&other, "f").await);
    mine.lock(1, ByteRange::ALL, EXCLUSIVE).await.unwrap();
    let waiting = async {
        theirs.lock(1, bytes(0, 5), EXCLUSIVE).await.unwrap();
        assert_eq!(read(&theirs).await, b"first");
        theirs.write_at(0, Bytes::from_static(b"later")).await.unwrap();
        theirs.unlock(1, bytes(0, 5)).await.unwrap();
    };
    let holding = async {
        while mgr.counts().lock_waits == 0 {
            tokio::task::yield_now().await;
        }
        mine.write_at(0, Bytes::from_static(b"first")).await.unwrap();
        mine.unlock(1, ByteRange::ALL).await.unwrap();
        // The other client already waits for the lock. So this client gets the lock only after the other client has
        // written the file and released the lock.
        mine.lock(1, ByteRange::ALL, EXCLUSIVE).await.unwrap();
        assert_eq!(read(&mine).await, b"later");
    };
    tokio::join!(waiting, holding);
}

#[tokio::test]
async fn a_lock_whose_request_was_cancelled_is_not_held() {
    let mgr = MemoryMgr::start().await;
    let (mount, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    let (mine, theirs) = (create(&mount, "f").await, open(&other, "f").await);
    mine.lock(2, bytes(5, 1), SHARED).await.unwrap();
    for owner in [1, 2] {
        let (locks, unlocks) = (mount.counters().operation("LOCK"), mount.counters().operation("LOCKU"));
        let asked = mine.lock(owner, bytes(0, 10), SHARED);
        let sent = async {
            while mount.counters().operation("LOCK") == locks {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = asked => panic!("the answer arrived before the request was cancelled"),
            () = sent => {}
        }
        while mount.counters().operation("LOCKU") == unlocks {
            tokio::task::yield_now().await;
        }
    }
    // After the cancelled lock request, the lock owner holds only the lock that it held before the request. So all
    // bytes outside this lock become free.
    for free in [bytes(0, 5), bytes(6, 4)] {
        while !theirs.try_lock(1, free, EXCLUSIVE).await.unwrap() {
            tokio::task::yield_now().await;
        }
    }
    assert!(!theirs.try_lock(1, bytes(5, 1), EXCLUSIVE).await.unwrap());
}

#[tokio::test]
async fn locks_survive_an_expired_lease_without_conflicting_requests() {
    let mgr = MemoryMgr::start().await;
    let (mount, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    let (mine, theirs) = (create(&mount, "f").await, open(&other, "f").await);
    mine.lock(1, bytes(0, 10), EXCLUSIVE).await.unwrap();
    mgr.lapse().await;
    assert_eq!(mgr.counts().lapsed, 2);
    mine.write_at(0, Bytes::from_static(b"mine")).await.unwrap();
    mine.fsync().await.unwrap();
    assert!(!theirs.try_lock(1, bytes(0, 1), SHARED).await.unwrap());
    mine.unlock(1, bytes(0, 10)).await.unwrap();
    assert!(theirs.try_lock(1, bytes(0, 1), SHARED).await.unwrap());
}

/// Waits until the client has noticed that it has lost a lock on this file.
async fn wait_for_lock_loss(file: &File) {
    loop {
        match file.read_at(0, 1).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::LockLost, "{error}");
                return;
            }
        }
        file.refresh().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_taken_by_another_client_is_lost_with_bytes_written_under_it() {
    let mgr = MemoryMgr::start().await;
    let (mount, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    let (mine, theirs) = (create(&mount, "f").await, open(&other, "f").await);
    let (locked, free) = (create(&mount, "g").await, create(&mount, "h").await);
    mine.lock(1, bytes(0, 10), EXCLUSIVE).await.unwrap();
    locked.lock(1, bytes(0, 10), EXCLUSIVE).await.unwrap();
    free.write_at(0, Bytes::from_static(b"free")).await.unwrap();
    mine.write_at(0, Bytes::from_static(b"mine")).await.unwrap();
    mgr.lapse().await;
    theirs.lock(1, bytes(9, 1), EXCLUSIVE).await.unwrap();
    theirs.write_at(0, Bytes::from_static(b"theirs")).await.unwrap();
    theirs.fsync().await.unwrap();
    wait_for_lock_loss(&mine).await;
    for error in [
        mine.write_at(0, Bytes::from_static(b"mine")).await.unwrap_err(),
        mine.fsync().await.unwrap_err(),
        mine.lock(1, bytes(20, 1), SHARED).await.unwrap_err(),
        mine.unlock(1, ByteRange::ALL).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLost, 5));
    }
    // After the program has unlocked the lost lock, the program can use the file again. The file does not contain the
    // bytes that the program wrote under the lost lock.
    assert!(!mine.try_lock(1, bytes(9, 1), EXCLUSIVE).await.unwrap());
    assert_eq!(read(&mine).await, b"theirs");
    mine.close().await.unwrap();
    // This client has lost all its locks, also on a file that the other client has not locked. Files on which this
    // client held no lock are not affected.
    assert_eq!(locked.write_at(0, Bytes::from_static(b"x")).await.unwrap_err().kind(), ErrorKind::LockLost);
    assert_eq!(locked.close().await.unwrap_err().kind(), ErrorKind::LockLost);
    free.fsync().await.unwrap();
    assert_eq!(read(&free).await, b"free");
    free.close().await.unwrap();
    theirs.unlock(1, ByteRange::ALL).await.unwrap();
    assert_eq!(read(&theirs).await, b"theirs");
    theirs.close().await.unwrap();
    assert_eq!(mgr.counts().opens, 0);
}

/// When the lease of a client expires, its buffered bytes do not overwrite bytes that another client writes after the
/// expiry. The buffered bytes of files that no other client writes are not lost.
#[tokio::test]
async fn buffered_bytes_are_lost_only_in_files_that_another_client_wrote() {
    let mgr = MemoryMgr::start().await;
    let (mount, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    let (mine, free) = (create(&mount, "f").await, create(&mount, "g").await);
    mine.write_at(0, Bytes::from_static(b"mine")).await.unwrap();
    free.write_at(0, Bytes::from_static(b"free")).await.unwrap();
    assert!(mine.is_alone() && free.is_alone());
    mgr.lapse().await;
    let theirs = open(&other, "f").await;
    theirs.write_at(0, Bytes::from_static(b"theirs")).await.unwrap();
    theirs.fsync().await.unwrap();
    let error = mine.fsync().await.unwrap_err();
    assert!(error.is(Status::Io), "{error}");
    assert_eq!((read(&mine).await, read(&theirs).await), (b"theirs".to_vec(), b"theirs".to_vec()));
    free.fsync().await.unwrap();
    // fsync has reported the loss of the buffered bytes. So the client accepts new writes, and writes their bytes to
    // the file.
    mine.write_at(0, Bytes::from_static(b"mine")).await.unwrap();
    mine.close().await.unwrap();
    assert_eq!(read(&theirs).await, b"miners");
    assert_eq!(read(&open(&other, "g").await).await, b"free");
}

#[tokio::test]
async fn an_expired_client_loses_its_locks_and_keeps_its_files() {
    let mgr = MemoryMgr::start().await;
    let mount = mgr.mount(options()).await;
    let (locked, free) = (create(&mount, "f").await, create(&mount, "g").await);
    locked.lock(7, bytes(0, 1), EXCLUSIVE).await.unwrap();
    locked.write_at(0, Bytes::from_static(b"old")).await.unwrap();
    locked.fsync().await.unwrap();
    mgr.expire().await;
    free.write_at(0, Bytes::from_static(b"new")).await.unwrap();
    free.fsync().await.unwrap();
    assert_eq!(locked.read_at(0, 3).await.unwrap_err().kind(), ErrorKind::LockLost);
    // The program has not unlocked after the loss of its lock, so close reports the lost lock.
    assert_eq!(locked.close().await.unwrap_err().kind(), ErrorKind::LockLost);
    let again = open(&mount, "f").await;
    again.lock(7, bytes(0, 1), EXCLUSIVE).await.unwrap();
    assert_eq!(read(&again).await, b"old");
    free.close().await.unwrap();
}

#[tokio::test]
async fn a_file_denied_by_another_client_fails_and_other_files_do_not() {
    let mgr = MemoryMgr::start().await;
    let mount = mgr.mount(options()).await;
    let file = create(&mount, "f").await;
    file.write_at(0, Bytes::from_static(b"x")).await.unwrap();
    file.fsync().await.unwrap();
    file.lock(1, bytes(0, 1), SHARED).await.unwrap();
    mgr.lapse().await;
    mgr.open_alone(&file.node().handle).await;
    wait_for_lock_loss(&file).await;
    assert_eq!(file.unlock(1, ByteRange::ALL).await.unwrap_err().kind(), ErrorKind::LockLost);
    // Another client has opened the file and denies access by other clients (share deny). So the mgr refuses the new
    // OPEN of this client.
    assert!(file.read_at(0, 1).await.unwrap_err().is(Status::Delay));
    let other = create(&mount, "g").await;
    other.write_at(0, Bytes::from_static(b"x")).await.unwrap();
    other.close().await.unwrap();
    let _ = file.close().await;
    assert_eq!(mgr.counts().opens, 1, "only the open of the client without conflicts is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_a_restart_of_the_mgr() {
    let mut cluster = Cluster::start(1).await;
    let (mount, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let (mine, theirs) = (create(&mount, "f").await, open(&other, "f").await);
    mine.lock(1, bytes(0, 10), EXCLUSIVE).await.unwrap();
    mine.lock(1, bytes(3, 2), SHARED).await.unwrap();
    mine.lock(2, bytes(100, u64::MAX), SHARED).await.unwrap();
    theirs.lock(1, bytes(50, 1), EXCLUSIVE).await.unwrap();
    mine.write_at(0, Bytes::from_static(b"under the lock")).await.unwrap();
    for _ in 0..2 {
        cluster.restart_mgr().await;
        // Each client notices the restart when it sends a request. The mgr grants no new lock before both clients have
        // reclaimed.
        let both = tokio::join!(theirs.try_lock(1, bytes(0, 1), SHARED), mine.try_lock(1, bytes(50, 1), SHARED));
        assert_eq!((both.0.unwrap(), both.1.unwrap()), (false, false));
    }
    assert!(theirs.try_lock(1, bytes(3, 2), SHARED).await.unwrap());
    assert!(!theirs.try_lock(1, bytes(200, 1), EXCLUSIVE).await.unwrap());
    assert!(theirs.try_lock(1, bytes(10, 40), EXCLUSIVE).await.unwrap());
    mine.unlock(1, ByteRange::ALL).await.unwrap();
    theirs.lock(1, bytes(0, 10), EXCLUSIVE).await.unwrap();
    assert_eq!(read(&theirs).await, b"under the lock");
    mine.close().await.unwrap();
    theirs.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_lock_request_succeeds_after_a_restart_of_the_mgr() {
    let mut cluster = Cluster::start(1).await;
    let (mount, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let (mine, theirs) = (create(&mount, "f").await, open(&other, "f").await);
    mine.lock(1, ByteRange::ALL, EXCLUSIVE).await.unwrap();
    let waiting = theirs.lock(1, ByteRange::ALL, EXCLUSIVE);
    let holding = async {
        cluster.restart_mgr().await;
        mine.write_at(0, Bytes::from_static(b"first")).await.unwrap();
        mine.unlock(1, ByteRange::ALL).await.unwrap();
    };
    let (got, ()) = tokio::join!(waiting, holding);
    got.unwrap();
    assert_eq!(read(&theirs).await, b"first");
    theirs.close().await.unwrap();
    mine.close().await.unwrap();
}

#[tokio::test]
async fn a_single_appender_needs_few_locks_and_writes() {
    let mgr = MemoryMgr::start().await;
    let (mount, other) = (mgr.mount(options()).await, mgr.mount(options()).await);
    mount.set_policy(b"sharing", Some(b"close-to-open")).unwrap();
    let (mine, theirs) = (create(&mount, "f").await, open(&other, "f").await);
    let before = (mount.counters().operation("LOCK"), mount.counters().operation("WRITE"));
    for i in 0..100u64 {
        assert_eq!(mine.append(Bytes::from(vec![i as u8; 3])).await.unwrap(), 3 * i);
    }
    let after = (mount.counters().operation("LOCK"), mount.counters().operation("WRITE"));
    // The time for 100 appends varies from run to run. All appends within a tenth of a second share one append lock.
    assert!(after.0 - before.0 <= 10 && after.1 - before.1 <= 10, "{before:?} {after:?}");
    // The client makes appended bytes durable before it releases the append lock. So the next appender, on another
    // client, appends after these bytes even without an fsync.
    assert_eq!(theirs.append(Bytes::from_static(b"next")).await.unwrap(), 300);
    mine.close().await.unwrap();
    let all = read(&theirs).await;
    assert!((0..100).all(|i| all[3 * i..3 * i + 3] == [i as u8; 3]) && all[300..] == *b"next");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_several_mounts_do_not_overlap() {
    let mgr = MemoryMgr::start().await;
    let mut mounts = Vec::new();
    for _ in 0..3 {
        mounts.push(mgr.mount(options()).await);
    }
    create(&mounts[0], "f").await.close().await.unwrap();
    let mut appenders = Vec::new();
    for who in 0..6u8 {
        let mount = mounts[who as usize % 3].clone();
        appenders.push(tokio::spawn(async move {
            let file = open(&mount, "f").await;
            let mut places = Vec::new();
            for i in 0..30u8 {
                places.push((file.append(Bytes::from(vec![who, i, who ^ i])).await.unwrap(), who, i));
                if i % 11 == who {
                    // Do not append for some time, so that this client releases the append lock and the other clients
                    // can append.
                    tokio::time::sleep(std::time::Duration::from_millis(120)).await;
                }
            }
            file.close().await.unwrap();
            places
        }));
    }
    let mut places = Vec::new();
    for appender in appenders {
        places.extend(appender.await.unwrap());
    }
    let all = read(&open(&mounts[0], "f").await).await;
    assert_eq!(all.len(), 3 * places.len());
    assert!(places.iter().all(|(at, who, i)| all[*at as usize..][..3] == [*who, *i, who ^ i]));
}
