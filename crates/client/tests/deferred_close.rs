//! Tests of deferred closes. The client sends many CLOSEs in one COMPOUND, also if files are removed, a mount
//! disconnects, or the mgr restarts.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, File, Mount, OpenFlags, Options, Origin, Settings};

const FILES: usize = 50;

/// Returns options with which the small files of these tests take the mgr path. Without a layout, their closes need no
/// LAYOUTRETURN.
fn small() -> Options {
    Options { policy: Settings::parse(Origin::Mount, "write_threshold=64K").unwrap(), ..options() }
}

/// Returns the number that the status of the mgr contains under this name.
async fn told(mount: &Mount, name: &str) -> u64 {
    let status = mount.status().await.unwrap();
    let mut values = status.groups.iter().flat_map(|group| &group.values);
    match values.find(|(known, _)| known == name) {
        Some((_, wire::admin::Value::Number(number))) => *number,
        other => panic!("{name}: {other:?}"),
    }
}

/// Waits until the mgr has executed all deferred closes, so that no file is open.
async fn all_closed(mount: &Mount) {
    while told(mount, "open_files").await > 0 {
        tokio::task::yield_now().await;
    }
}

async fn opened(mount: &Mount) -> Vec<File> {
    let mut files = Vec::new();
    for n in 0..FILES {
        let file = mount.create(&mount.root(), n.to_string().as_bytes(), CreateOptions::default()).await.unwrap();
        file.write_at(0, Bytes::from(vec![n as u8; 100])).await.unwrap();
        file.flush().await.unwrap();
        files.push(file);
    }
    assert_eq!(told(mount, "open_files").await, FILES as u64);
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsynced_create_is_made_durable_by_the_next_flush_sync_or_close() {
    let cluster = Cluster::start(1).await;
    let (mount, other) = (cluster.mount(small()).await, cluster.mount(small()).await);
    let soon = CreateOptions { unsynced: true, ..CreateOptions::default() };
    let make = async |name: &str, options| mount.create(&mount.root(), name.as_bytes(), options).await.unwrap();
    // Create a first file before the test counts flushes. For this file, the metadata store allocates a block of file
    // ids, which costs an additional flush.
    make("first", CreateOptions::default()).await.close().await.unwrap();
    let commits = || mount.counters().operation("COMMIT");
    let flushes = async || told(&mount, "flushes").await;
    // If a program writes to the new file on the mgr path, one flush of the metadata store makes the file and its bytes
    // durable, and the client sends no COMMIT.
    let (before, asked) = (flushes().await, commits());
    let file = make("written", soon).await;
    assert!(file.is_unsynced());
    assert_eq!(flushes().await, before);
    file.write_at(0, Bytes::from(vec![7; 100])).await.unwrap();
    file.flush().await.unwrap();
    assert!(!file.is_unsynced());
    assert_eq!((flushes().await, commits()), (before + 1, asked));
    file.close().await.unwrap();
    // If no program has written to the new file, each way to sync or close the file (flush, fsync, close, `leave`,
    // `sync_names`) costs one COMMIT and one flush of the metadata store.
    let before = flushes().await;
    for (n, name) in ["flushed", "synced", "closed", "left", "with its directory"].iter().enumerate() {
        let file = make(name, soon).await;
        match n {
            0 => file.flush().await.unwrap(),
            1 => file.fsync().await.unwrap(),
            2 => file.close().await.unwrap(),
            3 => file.leave().await.unwrap(),
            _ => {
                mount.sync_names().await.unwrap();
                assert!(!file.is_unsynced());
            }
        }
        assert_eq!(flushes().await, before + n as u64 + 1, "{name}");
    }
    assert_eq!(commits(), asked + 5);
    // A second client opens the existing file through a create. The mgr makes the file durable before it answers the
    // create.
    let file = make("there", soon).await;
    let found = other.create(&other.root(), b"there", soon).await.unwrap();
    assert!(!found.is_unsynced());
    assert_eq!(flushes().await, before + 6);
    file.close().await.unwrap();
    found.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_closes_of_many_files_share_compounds() {
    let cluster = Cluster::start(1).await;
    let mount = cluster.mount(small()).await;
    let files = opened(&mount).await;
    let before = mount.counters();
    for file in files {
        file.leave().await.unwrap();
    }
    all_closed(&mount).await;
    let after = mount.counters();
    assert_eq!(after.operation("CLOSE") - before.operation("CLOSE"), FILES as u64);
    let compounds = after.rpc("COMPOUND") - before.rpc("COMPOUND");
    assert!(compounds <= FILES as u64 / 8, "{compounds}");
    // `leave` (a deferred close) sends gathered bytes before it returns, so another client can read these bytes at
    // once.
    let node = mount.lookup(&mount.root(), b"7").await.unwrap().0;
    let file = mount.open(&node, OpenFlags::READ_WRITE).await.unwrap();
    file.write_at(0, Bytes::from_static(b"new")).await.unwrap();
    file.leave().await.unwrap();
    let other = cluster.mount(small()).await;
    let file = other.open(&node, OpenFlags::READ).await.unwrap();
    assert_eq!(file.read_at(0, 4).await.unwrap().to_vec(), b"new\x07");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_closes_are_sent_before_the_session_ends() {
    let cluster = Cluster::start(1).await;
    let (mount, other) = (cluster.mount(small()).await, cluster.mount(small()).await);
    for file in opened(&mount).await {
        file.leave().await.unwrap();
    }
    mount.disconnect().await.unwrap();
    assert_eq!(told(&other, "open_files").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_closes_survive_removals_and_a_restart_of_the_mgr() {
    let mut cluster = Cluster::start(1).await;
    let mount = cluster.mount(small()).await;
    for (n, file) in opened(&mount).await.into_iter().enumerate() {
        file.leave().await.unwrap();
        if n % 2 == 0 {
            mount.remove(&mount.root(), n.to_string().as_bytes()).await.unwrap();
        }
    }
    all_closed(&mount).await;
    // The count of files in the status of the mgr includes the root directory.
    assert_eq!(told(&mount, "files").await, 1 + FILES as u64 / 2);
    for n in (1..FILES).step_by(2) {
        let node = mount.lookup(&mount.root(), n.to_string().as_bytes()).await.unwrap().0;
        mount.open(&node, OpenFlags::READ).await.unwrap().leave().await.unwrap();
    }
    cluster.restart_mgr().await;
    let file = mount.create(&mount.root(), b"after", CreateOptions::default()).await.unwrap();
    file.leave().await.unwrap();
    all_closed(&mount).await;
}
