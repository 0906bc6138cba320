//! Files that a mount has alone: what it keeps of them is handed on before others have them.

#[path = "support/cluster.rs"]
mod cluster;

use bytes::Bytes;
use client::{CreateOptions, File, Keeper, Mount, OpenFlags, OpenOptions};
use cluster::{Cluster, options};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use types::FileId;

type Handing = futures_util::future::BoxFuture<'static, ()>;

/// Keeps bytes for a file, which it writes when it has to.
#[derive(Default)]
struct Late {
    kept: Mutex<Option<(Arc<File>, Bytes)>>,
    asked: AtomicU32,
}

impl Keeper for Late {
    fn hand_on(&self, file: FileId) -> Handing {
        self.asked.fetch_add(1, SeqCst);
        let kept = self.kept.lock().unwrap().take();
        Box::pin(async move {
            let Some((open, data)) = kept else { return };
            assert_eq!(open.node().id, file);
            open.write_at(0, data).await.unwrap();
        })
    }
}

async fn keeping(mount: &Mount) -> Arc<Late> {
    let late = Arc::new(Late::default());
    mount.keep_with(late.clone()).unwrap();
    assert!(mount.keep_with(late.clone()).is_err(), "there is one already");
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
async fn what_is_kept_is_there_when_others_come() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let late = keeping(&one).await;
    let mine = Arc::new(create(&one, true).await);
    assert!(mine.is_alone());
    let data = Bytes::from(vec![7; 300_000]);
    *late.kept.lock().unwrap() = Some((mine.clone(), data.clone()));
    let (_, attrs) = other.lookup(&other.root(), b"f").await.unwrap();
    assert_eq!(attrs.size, 300_000, "who looks at it sees all of it");
    let theirs = open(&other, OpenFlags::READ, false).await;
    assert!(theirs.read_at(0, 400_000).await.unwrap().to_vec() == data);
    assert!(!mine.is_alone());
    assert_eq!(late.asked.load(SeqCst), 1);
    // As long as they have it open, it is theirs, too.
    assert!(!mine.ask_alone().await.unwrap());
    theirs.close().await.unwrap();
    assert!(mine.ask_alone().await.unwrap());
    assert!(mine.ask_alone().await.unwrap(), "it has it already");
    // A second open here changes nothing, and whoever closes last gives it back.
    let again = open(&one, OpenFlags::READ_WRITE, true).await;
    assert!(again.is_alone());
    Arc::try_unwrap(mine).ok().unwrap().close().await.unwrap();
    assert!(again.is_alone());
    again.close().await.unwrap();
    let theirs = open(&other, OpenFlags::READ_WRITE, true).await;
    assert!(theirs.is_alone());
    assert_eq!(late.asked.load(SeqCst), 1, "nobody had to be asked");
    theirs.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_has_alone_what_others_have_open() {
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
async fn an_mgr_that_restarts_has_forgotten_it() {
    let mut cluster = Cluster::start(1).await;
    let one = cluster.mount(options()).await;
    let late = keeping(&one).await;
    let mine = Arc::new(create(&one, true).await);
    *late.kept.lock().unwrap() = Some((mine.clone(), Bytes::from_static(b"kept")));
    cluster.restart_mgr().await;
    mine.refresh().await.unwrap();
    assert!(!mine.is_alone(), "others may come unseen");
    while late.asked.load(SeqCst) == 0 || late.kept.lock().unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    let other = cluster.mount(options()).await;
    mine.fsync().await.unwrap();
    let theirs = open(&other, OpenFlags::READ, false).await;
    while theirs.refresh().await.unwrap().size < 4 {
        mine.fsync().await.unwrap();
    }
    assert_eq!(theirs.read_at(0, 10).await.unwrap().to_vec(), b"kept");
    theirs.close().await.unwrap();
    Arc::try_unwrap(mine).ok().unwrap().close().await.unwrap();
}
