//! Tests of write delegations. A program that uses the client may have its own cache of file data, as the FUSE mount
//! does. Before another client uses a file, this cache writes its dirty bytes of the file to the client.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, File, Mount, OpenFlags, OpenOptions, UpperCache};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use types::FileId;

type Handing = futures_util::future::BoxFuture<'static, ()>;

/// A cache that holds dirty bytes of one file, and writes these bytes to the client when the client calls
/// `flush_and_invalidate`.
#[derive(Default)]
struct Late {
    kept: Mutex<Option<(Arc<File>, Bytes)>>,
    asked: AtomicU32,
}

impl UpperCache for Late {
    fn flush_and_invalidate(&self, file: FileId) -> Handing {
        self.asked.fetch_add(1, SeqCst);
        let kept = self.kept.lock().unwrap().take();
        Box::pin(async move {
            let Some((open, data)) = kept else { return };
            assert_eq!(open.node().id, file);
            open.write_at(0, data).await.unwrap();
        })
    }

    fn discard(&self, file: FileId) -> Handing {
        unreachable!("nobody takes {file} away")
    }
}

async fn keeping(mount: &Mount) -> Arc<Late> {
    let late = Arc::new(Late::default());
    mount.set_upper_cache(late.clone()).unwrap();
    assert!(mount.set_upper_cache(late.clone()).is_err(), "the mount has a cache already");
    late
}

async fn create(mount: &Mount, alone: bool) -> File {
    mount.create(&mount.root(), b"f", CreateOptions { alone, ..CreateOptions::default() }).await.unwrap()
}

async fn open(mount: &Mount, flags: OpenFlags, alone: bool) -> File {
    let (node, _) = mount.lookup(&mount.root(), b"f").await.unwrap();
    mount.open_with(&node, OpenOptions { flags, alone, ..OpenOptions::default() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_bytes_are_handed_over_before_another_client_reads() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let late = keeping(&one).await;
    let mine = Arc::new(create(&one, true).await);
    assert!(mine.is_alone());
    let data = Bytes::from(vec![7; 300_000]);
    *late.kept.lock().unwrap() = Some((mine.clone(), data.clone()));
    let (_, attrs) = other.lookup(&other.root(), b"f").await.unwrap();
    assert_eq!(attrs.size, 300_000, "another client gets the whole size");
    let theirs = open(&other, OpenFlags::READ, false).await;
    assert!(theirs.read_at(0, 400_000).await.unwrap().to_vec() == data);
    assert!(!mine.is_alone());
    assert_eq!(late.asked.load(SeqCst), 1);
    // The mgr grants no write delegation while another client has the file open.
    assert!(!mine.ask_alone().await.unwrap());
    theirs.close().await.unwrap();
    assert!(mine.ask_alone().await.unwrap());
    assert!(mine.ask_alone().await.unwrap(), "the mount holds the delegation already");
    // A second open of the file on the same mount shares the delegation. The last close of the file returns the
    // delegation.
    let again = open(&one, OpenFlags::READ_WRITE, true).await;
    assert!(again.is_alone());
    Arc::try_unwrap(mine).ok().unwrap().close().await.unwrap();
    assert!(again.is_alone());
    again.close().await.unwrap();
    let theirs = open(&other, OpenFlags::READ_WRITE, true).await;
    assert!(theirs.is_alone());
    assert_eq!(late.asked.load(SeqCst), 1, "no other client was asked");
    theirs.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_delegation_while_another_client_has_the_file_open() {
    let cluster = Cluster::start(1).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let mine = create(&one, false).await;
    let theirs = open(&other, OpenFlags::READ_WRITE, true).await;
    assert!(!theirs.is_alone() && !mine.is_alone());
    mine.close().await.unwrap();
    assert!(theirs.ask_alone().await.unwrap());
    theirs.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_delegation_is_reclaimed_after_a_restart_of_the_mgr() {
    let mut cluster = Cluster::start(1).await;
    let one = cluster.mount(options()).await;
    let late = keeping(&one).await;
    let mine = Arc::new(create(&one, true).await);
    *late.kept.lock().unwrap() = Some((mine.clone(), Bytes::from_static(b"kept")));
    cluster.restart_mgr().await;
    mine.refresh().await.unwrap();
    assert!(mine.is_alone());
    assert_eq!(late.asked.load(SeqCst), 0, "no other client wants the file");
    let other = cluster.mount(options()).await;
    let theirs = open(&other, OpenFlags::READ, false).await;
    assert_eq!(theirs.read_at(0, 10).await.unwrap().to_vec(), b"kept", "the read does not wait");
    assert!(!mine.is_alone());
    theirs.close().await.unwrap();
    Arc::try_unwrap(mine).ok().unwrap().close().await.unwrap();
}

/// The state of a cache whose `flush_and_invalidate` completes only after the client has called `discard`.
struct Stuck {
    end: tokio::sync::Semaphore,
    given_up: Mutex<u32>,
    again: Condvar,
}

struct Sticks(Arc<Stuck>);

impl UpperCache for Sticks {
    fn flush_and_invalidate(&self, _: FileId) -> Handing {
        let stuck = self.0.clone();
        Box::pin(async move { drop(stuck.end.acquire().await.unwrap()) })
    }

    fn discard(&self, _: FileId) -> Handing {
        let mut given_up = self.0.given_up.lock().unwrap();
        *given_up += 1;
        self.0.again.notify_all();
        // Wait up to 300 ms for a second call of `discard`, which would be an error: only one task of the client may
        // handle the revocation of the delegation.
        drop(self.0.again.wait_timeout_while(given_up, Duration::from_millis(300), |given_up| *given_up < 2).unwrap());
        self.0.end.add_permits(1);
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_a_revoked_delegation_do_not_overwrite_newer_bytes() {
    let mut cluster = Cluster::start(1).await;
    cluster.lease_secs = Some(2);
    cluster.restart_mgr().await;
    for len in [5, 1_000_000] {
        let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
        let stuck =
            Arc::new(Stuck { end: tokio::sync::Semaphore::new(0), given_up: Mutex::new(0), again: Condvar::new() });
        one.set_upper_cache(Arc::new(Sticks(stuck.clone()))).unwrap();
        let mine = create(&one, true).await;
        mine.write_at(0, Bytes::from(vec![1; len])).await.unwrap();
        // The mgr grants this open of the second client only after it has revoked the delegation of the first client,
        // which did not return its delegation in time.
        let theirs = open(&other, OpenFlags::READ_WRITE, false).await;
        let newer = Bytes::from(vec![2; len]);
        theirs.write_at(0, newer.clone()).await.unwrap();
        theirs.fsync().await.unwrap();
        assert!(mine.fsync().await.is_err(), "the buffered bytes are lost");
        assert_eq!(*stuck.given_up.lock().unwrap(), 1, "the bytes of the cache above are lost too");
        assert!(!mine.is_alone());
        assert!(theirs.read_at(0, 2 * len).await.unwrap().to_vec() == newer);
        // fsync has reported the loss of the buffered bytes. So the client accepts new writes, and writes their bytes
        // to the file.
        mine.write_at(0, Bytes::from_static(b"new")).await.unwrap();
        mine.close().await.unwrap();
        assert_eq!(theirs.read_at(0, 4).await.unwrap().to_vec(), [b'n', b'e', b'w', 2]);
        theirs.close().await.unwrap();
        one.remove(&one.root(), b"f").await.unwrap();
    }
}
