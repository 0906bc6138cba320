//! File lengths that iods request from the mgr (LENGTHS): the mgr returns no length while a client may have written
//! more bytes than the client has reported.

use crate::cluster::{Cluster, create, ctx, pattern, remove, set_size, write};
use layout::kinds::native::KIND;
use mgr::Files;
use nfs::fs::{FileSystem, Iomode, LayoutAsk, LayoutGone, Stability};
use std::time::Duration;
use types::{ByteRange, FileId, Generation, ObjectId, limits};
use wire::native::FileLength;

async fn layout(files: &Files, client: u64, file: FileId) {
    let (iomode, range) = (Iomode::ReadWrite, ByteRange::ALL);
    let ask =
        LayoutAsk { file, kind: KIND, iomode, readable: true, range, min_len: 0, max_body: limits::LAYOUT_BODY_MAX };
    files.layout_get(&ctx(client), ask).await.unwrap();
}

async fn give_back(files: &Files, client: u64, file: FileId) {
    let why = LayoutGone::Returned { kind: KIND, body: Default::default() };
    files.layout_gone(&ctx(client), client, file, Iomode::ReadWrite, ByteRange::ALL, why).await.unwrap();
}

/// Returns the length that the mgr returns to an iod for a file (LENGTHS).
async fn length(cluster: &Cluster, iod: usize, file: FileId) -> Option<u64> {
    length_answer(cluster, iod, file).await.map(|told| told.file)
}

/// Returns the length of a file, and the length that its object on the iod must have at least, as the mgr returns them
/// to the iod.
async fn length_answer(cluster: &Cluster, iod: usize, file: FileId) -> Option<FileLength> {
    let served = cluster.iods[iod].as_ref().unwrap().volume().clone();
    tokio::task::spawn_blocking(move || served.file_length(ObjectId::stream_0(file))).await.unwrap()
}

/// Repeatedly requests the length of the file at the iod, until the mgr has received a length request of an iod.
async fn wait_for_request(cluster: &Cluster, iod: usize, file: FileId) {
    let asked = || cluster.mgr().counters().lengths_asked;
    let before = asked();
    while asked() == before {
        length(cluster, iod, file).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn iods_learn_a_size_only_while_no_client_may_have_written_more() {
    let mut cluster = Cluster::new(2, "64").await;
    for iod in 0..2 {
        cluster.stop_iod(iod);
        cluster.start_data_server(iod);
    }
    cluster.wait_up(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    wait_for_request(&cluster, 0, file).await;
    wait_for_request(&cluster, 1, file).await;
    write(&files, file, 0, &pattern(100, 1), Stability::FileSync).await;
    files.closed(&ctx(1), file, true).await.unwrap();
    // The file has 100 bytes and a stripe unit of 64 bytes, so one of its objects has 64 bytes and the other has 36.
    let both = [length_answer(&cluster, 0, file).await.unwrap(), length_answer(&cluster, 1, file).await.unwrap()];
    assert_eq!(both.map(|told| told.file), [100, 100]);
    assert_eq!((both[0].least + both[1].least, both[0].least.max(both[1].least)), (100, 64));
    // A second client gets a write layout and extends the file on the direct path.
    layout(&files, 7, file).await;
    assert_eq!(length(&cluster, 0, file).await, None);
    let served = cluster.iods[0].as_ref().unwrap().volume().clone();
    served.write_object(ObjectId::stream_0(file), Generation(1), 200, &[1; 50], true).unwrap();
    files.closed(&ctx(1), file, false).await.unwrap();
    assert_eq!(length(&cluster, 1, file).await, None, "the close of another client sends no size");
    give_back(&files, 7, file).await;
    let longer = files.getattr(&ctx(1), file).await.unwrap().size;
    assert!(longer > 300);
    assert_eq!(length(&cluster, 1, file).await, Some(longer));
    set_size(&files, file, 30).await;
    assert_eq!(length(&cluster, 1, file).await, Some(30));
    // The mgr returns no length for an inode that does not exist or is not a regular file.
    assert_eq!((length(&cluster, 0, FileId::ROOT).await, length(&cluster, 0, FileId(9999)).await), (None, None));
    // A restarted mgr does not know which clients wrote the file, so it queries the iods for the size of the file
    // before it returns a length.
    layout(&files, 7, file).await;
    drop(files);
    cluster.restart_mgr().await;
    cluster.wait_up(2).await;
    let begun = std::time::Instant::now();
    let told = loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "the iod never received the size");
        if let Some(told) = length(&cluster, 0, file).await {
            break told;
        }
        tokio::task::yield_now().await;
    };
    let counters = cluster.mgr().counters();
    assert!(told == 30 && counters.size_queries > 0, "sent {told} without measuring the iods");
    assert!(counters.lengths_unknown < counters.lengths_asked);
    let files = cluster.files();
    remove(&files, "f").await;
    files.reap(&ctx(1), file).await.unwrap();
    assert_eq!(length(&cluster, 0, file).await, None);
}
