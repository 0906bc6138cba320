//! Inline files: iods have no object of such a file until the file grows or a client requests a write layout.

use crate::cluster::{Cluster, create, ctx, pattern, read, remove, set_size, until, write};
use layout::kinds::native::KIND;
use nfs::fs::{Content, FileSystem, Iomode, LayoutAsk, Stability};
use types::{ByteRange, FileId, Status, limits};

async fn cluster(iods: usize) -> Cluster {
    let mut cluster = Cluster::stopped(iods, "4096").await;
    cluster.config.inline_max = "4096".into();
    cluster.start_mgr().await;
    cluster.wait_up(iods).await;
    cluster
}

fn ask(file: FileId, iomode: Iomode) -> LayoutAsk {
    let max_body = limits::LAYOUT_BODY_MAX;
    LayoutAsk { file, kind: KIND, iomode, readable: true, range: ByteRange::ALL, min_len: 0, max_body }
}

/// Returns the number of requests for data and objects that the iods have received.
fn data_requests(cluster: &Cluster) -> u64 {
    let counters = cluster.iods.iter().flatten().flat_map(|iod| iod.counters());
    let of_bytes = ["requests.write", "requests.read", "requests.remove", "requests.commit", "requests.size"];
    counters.filter(|counter| of_bytes.contains(&&*counter.name)).map(|counter| counter.value).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_files_cause_no_requests_to_iods() {
    let mut cluster = cluster(3).await;
    let files = cluster.files();
    let before = data_requests(&cluster);
    let data = pattern(4096, 3);
    let mut kept = Vec::new();
    for (i, stable) in [Stability::FileSync, Stability::Unstable].into_iter().cycle().take(20).enumerate() {
        let file = create(&files, &format!("f{i}")).await;
        write(&files, file, 100, &data[100..3000], stable).await;
        let out = write(&files, file, 0, &data[..200], stable).await;
        assert_eq!(files.commit(&ctx(1), file, ByteRange::ALL).await, Ok(out.verifier));
        files.closed(&ctx(1), file, true).await.unwrap();
        kept.push(file);
    }
    assert_eq!(cluster.mgr().counters().inline_writes, 40);
    // Clients can read inline files without any iod, even after a restart of the mgr.
    (0..3).for_each(|iod| cluster.stop_iod(iod));
    drop(files);
    cluster.restart_mgr().await;
    let files = cluster.files();
    for file in &kept {
        assert!(read(&files, *file, 0, 1 << 20).await.unwrap() == data[..3000]);
        assert!(read(&files, *file, 2990, 100).await.unwrap() == data[2990..3000]);
    }
    let file = kept[0];
    assert_eq!(set_size(&files, file, 1000).await.size, 1000);
    assert_eq!(set_size(&files, file, 2000).await.size, 2000);
    assert!(read(&files, file, 0, 1 << 20).await.unwrap() == [&data[..1000], &[0; 1000]].concat());
    let hole = async |at| files.seek(&ctx(1), file, at, Content::Hole).await;
    assert_eq!(hole(5).await.unwrap().offset, 1000);
    assert_eq!(files.seek(&ctx(1), file, 1500, Content::Data).await, Err(Status::NxIo));
    files.deallocate(&ctx(1), file, ByteRange { offset: 10, len: 20 }).await.unwrap();
    assert!(read(&files, file, 0, 40).await.unwrap() == [&data[..10], &[0; 20], &data[30..40]].concat());
    // A reader gets no layout, because the mgr itself has the bytes. A request for a write layout fails with `Delay`
    // while the iods are down.
    assert_eq!(files.layout_get(&ctx(1), ask(file, Iomode::Read)).await.map(drop), Err(Status::NoLayout));
    assert_eq!(files.layout_get(&ctx(1), ask(file, Iomode::ReadWrite)).await.map(drop), Err(Status::Delay));
    for (i, file) in kept.iter().enumerate() {
        assert_eq!(remove(&files, &format!("f{i}")).await, *file);
        files.reap(&ctx(0), *file).await.unwrap();
        assert_eq!(files.getattr(&ctx(1), *file).await, Err(Status::Stale));
    }
    (0..3).for_each(|iod| cluster.start_iod(iod));
    cluster.wait_up(3).await;
    assert_eq!((cluster.objects(), before), (0, 0));
    assert_eq!((data_requests(&cluster), cluster.mgr().counters().objects_swept), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inline_file_moves_to_iods_when_it_grows() {
    let mut cluster = cluster(2).await;
    let files = cluster.files();
    let data = pattern(20_000, 7);
    let grown = create(&files, "grown").await;
    write(&files, grown, 0, &data[..4000], Stability::Unstable).await;
    assert_eq!(cluster.objects(), 0);
    write(&files, grown, 4000, &data[4000..], Stability::Unstable).await;
    let granted = create(&files, "granted").await;
    write(&files, granted, 0, &data[..4000], Stability::Unstable).await;
    files.layout_get(&ctx(1), ask(granted, Iomode::ReadWrite)).await.unwrap();
    let reserved = create(&files, "reserved").await;
    write(&files, reserved, 0, &data[..50], Stability::FileSync).await;
    files.allocate(&ctx(1), reserved, ByteRange { offset: 0, len: 100 }).await.unwrap();
    let never = create(&files, "never written").await;
    files.layout_get(&ctx(1), ask(never, Iomode::ReadWrite)).await.unwrap();
    assert_eq!(cluster.mgr().counters().inline_moves, 3);
    for (file, len) in [(grown, 20_000), (granted, 4000)] {
        assert!(read(&files, file, 0, 1 << 20).await.unwrap() == data[..len]);
        files.layout_get(&ctx(2), ask(file, Iomode::Read)).await.unwrap();
    }
    // The moved bytes are durable on the iods before the namespace removes the inline bytes.
    files.commit(&ctx(1), grown, ByteRange::ALL).await.unwrap();
    drop(files);
    cluster.restart_mgr().await;
    let files = cluster.files();
    assert!(read(&files, grown, 0, 1 << 20).await.unwrap() == data);
    assert!(read(&files, granted, 0, 1 << 20).await.unwrap() == data[..4000]);
    assert!(read(&files, reserved, 0, 1 << 20).await.unwrap() == [&data[..50], &[0; 50]].concat());
}

/// Inline bytes that cannot move to iods stay in the metadata store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inline_file_that_cannot_move_stays_readable_and_moves_later() {
    let mut cluster = cluster(2).await;
    let files = cluster.files();
    let data = pattern(9000, 5);
    let file = create(&files, "f").await;
    write(&files, file, 0, &data[..3000], Stability::FileSync).await;
    cluster.stop_iod(1);
    until("the loss is noticed", || cluster.up() == 1).await;
    let more = async || files.write(&ctx(1), file, 3000, data[3000..].to_vec().into(), Stability::FileSync).await;
    assert_eq!(more().await.map(drop), Err(Status::Delay));
    assert!(read(&files, file, 0, 1 << 20).await.unwrap() == data[..3000]);
    cluster.start_iod(1);
    cluster.wait_up(2).await;
    more().await.unwrap();
    assert!(read(&files, file, 0, 1 << 20).await.unwrap() == data);
    assert_eq!(cluster.mgr().counters().inline_moves, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_lose_nothing_while_an_inline_file_moves() {
    let cluster = cluster(2).await;
    let files = cluster.files();
    for round in 0..20 {
        let file = create(&files, &format!("f{round}")).await;
        let data = pattern(8 * 1000, round);
        let writers = (0..8usize).map(|i| {
            let (files, part) = (files.clone(), data[i * 1000..][..1000].to_vec());
            tokio::spawn(async move {
                for (k, byte) in part.chunks(250).enumerate() {
                    let at = (i * 1000 + k * 250) as u64;
                    write(&files, file, at, byte, Stability::Unstable).await;
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        assert!(read(&files, file, 0, 1 << 20).await.unwrap() == data, "round {round}");
    }
    assert!(cluster.mgr().counters().inline_moves > 0);
}
