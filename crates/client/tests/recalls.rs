//! Tests of layout recalls while the client that holds the layout is reading or writing.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, File, OpenFlags};

/// The length of a write that needs several requests, in bytes.
const LEN: u64 = 5 << 20;

async fn write(file: &File, byte: u8) {
    file.write_at(0, Bytes::from(vec![byte; LEN as usize])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_truncates_by_two_clients_do_not_deadlock() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let mine = one.create(&one.root(), b"f", CreateOptions::default()).await.unwrap();
    let (node, _) = other.lookup(&other.root(), b"f").await.unwrap();
    let theirs = other.open(&node, OpenFlags::READ_WRITE).await.unwrap();
    for round in 1..=10 {
        // After its write, each client holds a read-write layout. The mgr recalls this layout before it executes the
        // truncate of the other client.
        write(&mine, round).await;
        write(&theirs, round).await;
        let (a, b) = tokio::join!(mine.set_len(LEN / 2), theirs.set_len(LEN / 2));
        a.unwrap();
        b.unwrap();
    }
    // The mgr revokes a layout if the client does not return it within a lease time. Here, both clients have returned
    // their layouts in time.
    assert_eq!(cluster.mgr.as_ref().unwrap().counters().layouts_revoked, 0);
    mine.close().await.unwrap();
    theirs.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layout_is_returned_during_writes() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let mine = one.create(&one.root(), b"f", CreateOptions::default()).await.unwrap();
    let (node, _) = other.lookup(&other.root(), b"f").await.unwrap();
    let theirs = other.open(&node, OpenFlags::READ_WRITE).await.unwrap();
    let writing = async {
        for round in 1..=20 {
            write(&mine, round).await;
            mine.fsync().await.unwrap();
        }
    };
    let cutting = async {
        for _ in 0..20 {
            theirs.set_len(2 * LEN).await.unwrap();
        }
    };
    tokio::join!(writing, cutting);
    assert_eq!(cluster.mgr.as_ref().unwrap().counters().layouts_revoked, 0);
    assert!(mine.read_at(0, LEN as usize).await.unwrap().to_vec() == vec![20; LEN as usize]);
    mine.close().await.unwrap();
    theirs.close().await.unwrap();
}
