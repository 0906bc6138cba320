//! Tests of SETATTR by filehandle, without an open, while the client closes the last open of the file.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, Mount};
use types::{SetAttrs, SetTime, Timestamp};

const LEN: u64 = 100_000;

/// Runs one round: writes a file, starts its deferred close in a second task, yields `turns` times to this task, sends
/// SETATTR with `changes` by filehandle, and checks the resulting attributes.
async fn round(mount: &Mount, name: String, changes: SetAttrs, turns: u32) {
    let file = mount.create(&mount.root(), name.as_bytes(), CreateOptions::default()).await.unwrap();
    let node = file.node();
    file.write_at(0, Bytes::from(vec![7; LEN as usize])).await.unwrap();
    // In half of the rounds, flush the file before the deferred close. A FUSE mount does so: it flushes at close(2) and
    // closes the file later.
    if turns.is_multiple_of(2) {
        file.flush().await.unwrap();
    }
    let closing = tokio::spawn(file.leave());
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
    let set = mount.setattr(&node, &changes).await.unwrap_or_else(|error| panic!("{name}, {turns} turns: {error}"));
    closing.await.unwrap().unwrap();
    let now = mount.getattr(&node).await.unwrap();
    for attrs in [set, now] {
        assert_eq!(attrs.size, changes.size.unwrap_or(LEN), "{name}, {turns} turns");
        if let Some(SetTime::To(mtime)) = changes.mtime {
            assert_eq!(attrs.mtime, mtime, "{name}, {turns} turns");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn attributes_can_be_set_by_node_while_the_last_open_is_closed() {
    let cluster = Cluster::start(2).await;
    let mount = Mount::connect(&cluster.target, options()).await.unwrap();
    let size = SetAttrs { size: Some(LEN / 3), ..SetAttrs::default() };
    let time = Timestamp::new(1_100_000_000, 7).unwrap();
    let mtime = SetAttrs { mtime: Some(SetTime::To(time)), ..SetAttrs::default() };
    let rounds = async |worker: u32| {
        for n in 0..150 {
            let (changes, turns) = if n % 2 == 0 { (size, n / 2 % 40) } else { (mtime, n / 2 % 40) };
            round(&mount, format!("{worker}-{n}"), changes, turns).await;
        }
    };
    tokio::join!(rounds(0), rounds(1), rounds(2), rounds(3));
    mount.disconnect().await.unwrap();
}
