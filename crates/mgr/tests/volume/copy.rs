//! Server-side copy: the iods copy bytes from each other at the request of the mgr. Some tests make copies that the
//! iods cannot execute.

use crate::cluster::{Cluster, create, ctx, pattern, read, set_size, write};
use nfs::fs::{FileSystem, Stability};
use types::{ByteRange, limits};

const LEN: usize = 900_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn iods_copy_data_and_the_mgr_updates_the_size() {
    let mut cluster = Cluster::new(3, "4096").await;
    let files = cluster.files();
    let (from, to) = (create(&files, "from").await, create(&files, "to").await);
    write(&files, from, 0, &pattern(LEN, 1), Stability::FileSync).await;
    let (before, counted) = (files.getattr(&ctx(1), to).await.unwrap(), cluster.mgr().counters());
    let range = ByteRange { offset: 5000, len: 1 << 30 };
    let copied = files.copy(&ctx(1), from, range, to, 777).await.unwrap().unwrap();
    assert_eq!((copied.count as usize, copied.stable), (LEN - 5000, Stability::Unstable));
    assert_eq!(files.commit(&ctx(1), to, ByteRange::ALL).await.unwrap(), copied.verifier);
    let (after, counters) = (files.getattr(&ctx(1), to).await.unwrap(), cluster.mgr().counters());
    assert_eq!(after.size as usize, 777 + LEN - 5000);
    assert!(after.change > before.change && after.mtime > before.mtime);
    assert_eq!(counters.iod_copied_bytes as usize, LEN - 5000);
    assert_eq!(counters.proxy_write_bytes, counted.proxy_write_bytes);
    assert_eq!(counters.proxy_read_bytes, counted.proxy_read_bytes);
    // The iods copy no bytes after the end of the source file, and none beyond the largest file size.
    set_size(&files, from, 6000).await;
    assert_eq!(files.copy(&ctx(1), from, range, to, 0).await.unwrap().unwrap().count, 1000);
    let behind = ByteRange { offset: 6000, len: 1 };
    assert_eq!(files.copy(&ctx(1), from, behind, to, 0).await, Ok(None));
    assert_eq!(files.copy(&ctx(1), from, range, to, limits::FILE_SIZE_MAX).await, Err(types::Status::FBig));
    drop(files);
    cluster.restart_mgr().await;
    let files = cluster.files();
    let got = read(&files, to, 0, 1 << 20).await.unwrap();
    assert!(got[..1000] == pattern(LEN, 1)[5000..6000] && got[1000..] == pattern(LEN, 1)[5000 + 223..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_declined_if_the_iods_cannot_reach_each_other() {
    let mut cluster = Cluster::stopped(2, "4096").await;
    // The mgr reaches these iods only at Unix sockets. Other iods cannot connect to these sockets, so the iods cannot
    // copy from each other.
    let sockets = cluster.iods.iter().flatten().map(|iod| format!("unix:{}", iod.unix_path().unwrap().display()));
    cluster.config.iods = sockets.collect();
    cluster.start_mgr().await;
    cluster.wait_up(2).await;
    let files = cluster.files();
    let (from, to) = (create(&files, "from").await, create(&files, "to").await);
    write(&files, from, 0, &pattern(LEN, 1), Stability::FileSync).await;
    let range = ByteRange { offset: 0, len: LEN as u64 };
    for _ in 0..2 {
        assert_eq!(files.copy(&ctx(1), from, range, to, 1).await, Ok(None));
    }
    assert_eq!((cluster.mgr().counters().iod_copied_bytes, cluster.up()), (0, 2));
    // The reply of the mgr confirmed no bytes to the client, although the iods may have copied some.
    write(&files, to, 1, &pattern(LEN, 1), Stability::FileSync).await;
    assert!(read(&files, to, 1, 1 << 20).await.unwrap() == pattern(LEN, 1));
}
