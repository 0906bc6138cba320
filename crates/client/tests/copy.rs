//! Tests of copies within the file system. The target file has the right contents, and the copied bytes do not pass
//! through the mgr if the iods can copy them directly.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, File, Mount, OpenFlags, Options, XattrMode};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use types::{ByteRange, Status};

/// Creates a file with this stripe unit, stripe count and number of mirrors.
async fn striped(mount: &Mount, unit: u64, count: usize, mirrors: u32) -> File {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("dir{}", NEXT.fetch_add(1, Relaxed));
    let (dir, _) = mount.mkdir(&mount.root(), name.as_bytes(), 0o755).await.unwrap();
    let policy = [("stripe_unit", unit), ("stripe_count", count as u64), ("mirrors", mirrors.into())];
    for (key, value) in policy {
        mount
            .setxattr(&dir, format!("weir.{key}").as_bytes(), value.to_string().as_bytes(), XattrMode::Either)
            .await
            .unwrap();
    }
    mount.create(&dir, b"f", CreateOptions::default()).await.unwrap()
}

fn fill(seed: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8 | 1).collect::<Vec<_>>().into()
}

async fn content(file: &File) -> Vec<u8> {
    file.refresh().await.unwrap();
    let mut all = Vec::new();
    while (all.len() as u64) < file.size() {
        let got = file.read_at(all.len() as u64, 8 << 20).await.unwrap().to_vec();
        all.extend_from_slice(&got);
    }
    all
}

/// Returns the number of file bytes that passed through the mgr, and the number of bytes that iods copied directly to
/// each other.
fn moved(cluster: &Cluster) -> (u64, u64) {
    let counters = cluster.mgr.as_ref().unwrap().counters();
    (counters.proxy_read_bytes + counters.proxy_write_bytes, counters.iod_copied_bytes)
}

/// Returns the number of bytes of a file that are not in holes, as the file systems of the iods report them.
async fn data_bytes(file: &File) -> u64 {
    let (mut at, mut sum) = (0, 0);
    while let Some(run) = file.next_data(at).await.unwrap() {
        sum += run.len;
        at = run.end();
    }
    sum
}

/// After `fsync` and close, a seek for data still skips the holes of the file, on the direct path and on the mgr path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_file_has_its_holes() {
    const FAR: u64 = 1 << 40;
    let cluster = Cluster::start(3).await;
    let mount = cluster.mount(options()).await;
    for (unit, count) in [(1 << 20, 1), (65536, 3)] {
        let made = striped(&mount, unit, count, 1).await;
        for at in [0, FAR] {
            made.write_at(at, fill(at, 5000)).await.unwrap();
            made.fsync().await.unwrap();
        }
        let node = made.node();
        made.close().await.unwrap();
        for direct in [true, false] {
            let reader = cluster.mount(Options { direct, ..options() }).await;
            let file = reader.open(&node, OpenFlags::READ).await.unwrap();
            let first = file.next_data(0).await.unwrap().unwrap();
            assert!(first.offset == 0 && (5000..1 << 20).contains(&first.len), "{count}, {direct}: {first:?}");
            let second = file.next_data(first.end()).await.unwrap().unwrap();
            assert!((FAR - (1 << 20)..=FAR).contains(&second.offset), "{count}, {direct}: {second:?}");
            assert_eq!(second.end(), FAR + 5000, "{count}, {direct}");
            file.close().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_of_a_copy_passes_the_mgr() {
    let cluster = Cluster::start(4).await;
    let mount = cluster.mount(options()).await;
    // Each case contains: the stripe unit and stripe count of the source, the stripe unit and stripe count of the
    // target, the number of mirrors of the target, and the target offset.
    for (source, target, mirrors, at) in [
        ((1 << 20, 4), (1 << 20, 4), 1, 0),
        ((65536, 4), (65536, 4), 1, 65536),
        ((65536, 3), (1 << 20, 2), 1, 12_345),
        ((1 << 20, 1), (192, 4), 1, 7),
        ((65536, 2), (65536, 4), 2, 1),
    ] {
        let from = striped(&mount, source.0, source.1, 1).await;
        let to = striped(&mount, target.0, target.1, mirrors).await;
        let data = fill(at + 3, 5_300_001);
        from.write_at(0, data.clone()).await.unwrap();
        from.fsync().await.unwrap();
        let before = moved(&cluster);
        let range = ByteRange { offset: 0, len: u64::MAX };
        let copied = to.copy_range(at, &from, range).await.unwrap();
        assert_eq!(copied, data.len() as u64);
        let after = moved(&cluster);
        assert_eq!((after.0 - before.0, after.1 - before.1), (0, copied), "{source:?} {target:?}");
        assert_eq!(to.size(), at + copied);
        let got = content(&to).await;
        assert!(got[..at as usize].iter().all(|b| *b == 0) && got[at as usize..] == data, "{source:?} {target:?}");
        let before = moved(&cluster);
        // A mount that uses only the mgr path must read the same bytes as the mount on the direct path.
        let other = cluster.mount(client::Options { direct: false, ..options() }).await;
        let file = other.open(&to.node(), OpenFlags::READ).await.unwrap();
        assert!(content(&file).await == got);
        assert!(moved(&cluster).0 > before.0);
        file.close().await.unwrap();
        from.close().await.unwrap();
        to.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_keep_holes_and_stop_at_the_end_of_the_source() {
    let cluster = Cluster::start(3).await;
    let mount = cluster.mount(options()).await;
    let (from, to) = (striped(&mount, 65536, 3, 1).await, striped(&mount, 65536, 3, 1).await);
    let mut model = vec![0; 6 << 20];
    for at in [1usize << 20, 4 << 20] {
        from.write_at(at as u64, fill(1, 1 << 20)).await.unwrap();
        model[at..at + (1 << 20)].copy_from_slice(&fill(1, 1 << 20));
    }
    from.set_len(6 << 20).await.unwrap();
    to.write_at(0, fill(2, 3 << 20)).await.unwrap();
    let before = moved(&cluster);
    assert_eq!(to.copy_range(0, &from, ByteRange { offset: 0, len: 6 << 20 }).await.unwrap(), 6 << 20);
    assert_eq!(moved(&cluster).0, before.0);
    assert!(content(&to).await == model);
    assert_eq!(data_bytes(&to).await, data_bytes(&from).await);
    // If the range to copy goes beyond the end of the source file, only the bytes before the end are copied.
    assert_eq!(to.copy_range(0, &from, ByteRange { offset: (6 << 20) - 5, len: 100 }).await.unwrap(), 5);
    assert_eq!(to.copy_range(0, &from, ByteRange { offset: 6 << 20, len: 100 }).await.unwrap(), 0);
    let other = cluster.mount(options()).await;
    let same = other.open(&from.node(), OpenFlags::READ_WRITE).await.unwrap();
    same.set_len(2 << 20).await.unwrap();
    // Another client has truncated the source file, and this mount does not know the new size yet. The copy still ends
    // at the new size.
    assert_eq!(to.copy_range(0, &from, ByteRange { offset: 1 << 20, len: 5 << 20 }).await.unwrap(), 1 << 20);
    assert!(content(&to).await[..1 << 20] == fill(1, 1 << 20));
    let error = from.copy_range(9, &from, ByteRange { offset: 0, len: 10 }).await.unwrap_err();
    assert!(error.is(Status::Inval), "{error}");
    // Copy a range from a file to the same file. The client does this by reading and writing.
    let mut expected = content(&to).await;
    assert_eq!(to.copy_range(5 << 20, &to, ByteRange { offset: 7, len: 3 << 20 }).await.unwrap(), 3 << 20);
    expected.resize(8 << 20, 0);
    expected.copy_within(7..7 + (3 << 20), 5 << 20);
    assert!(content(&to).await == expected);
    assert_eq!(
        to.copy_range(0, &to, ByteRange { offset: (8 << 20) - 3, len: 10 }).await.unwrap(),
        3,
        "the copy stops at the end of the source"
    );
}

#[derive(Clone, Debug)]
struct Step {
    from: usize,
    to: usize,
    len: usize,
    write: bool,
}

#[test]
fn any_sequence_of_copies_matches_the_flat_models() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (cluster, mount) = runtime.block_on(async {
        let cluster = Cluster::start(4).await;
        let mount = cluster.mount(options()).await;
        (cluster, mount)
    });
    let place = || prop_oneof![3 => 0usize..3000, 2 => (0usize..12).prop_map(|n| n * 4096), 1 => 0usize..60_000];
    let step = (place(), place(), 1usize..50_000, prop::bool::weighted(0.3));
    let step = step.prop_map(|(from, to, len, write)| Step { from, to, len, write });
    let unit = || prop_oneof![Just(64u64), Just(192), Just(4096), Just(65536)];
    let files = ((unit(), 1usize..=4), (unit(), 1usize..=4));
    let mut runner = TestRunner::new(ProptestConfig { cases: 48, ..ProptestConfig::default() });
    let outcome = runner.run(&(files, prop::collection::vec(step, 1..12)), |((source, target), steps)| {
        runtime.block_on(async {
            let from = striped(&mount, source.0, source.1, 1).await;
            let to = striped(&mount, target.0, target.1, 1).await;
            let mut models = (Vec::new(), Vec::new());
            let before = moved(&cluster).0;
            for (seed, Step { from: at, to: target, len, write }) in steps.into_iter().enumerate() {
                if write {
                    let data = fill(seed as u64, len);
                    from.write_at(at as u64, data.clone()).await.unwrap();
                    models.0.resize(models.0.len().max(at + len), 0u8);
                    models.0[at..at + len].copy_from_slice(&data);
                }
                let range = ByteRange { offset: at as u64, len: len as u64 };
                let copied = to.copy_range(target as u64, &from, range).await.unwrap() as usize;
                prop_assert_eq!(copied, len.min(models.0.len().saturating_sub(at)));
                if copied > 0 {
                    models.1.resize(models.1.len().max(target + copied), 0u8);
                    models.1[target..target + copied].copy_from_slice(&models.0[at..at + copied]);
                }
                prop_assert_eq!(to.size(), models.1.len() as u64);
            }
            prop_assert!(content(&to).await == models.1);
            prop_assert!(content(&from).await == models.0);
            prop_assert_eq!(moved(&cluster).0, before);
            from.close().await.unwrap();
            to.close().await.unwrap();
            Ok(())
        })
    });
    drop(mount);
    drop(cluster);
    outcome.unwrap();
}

/// Several tasks copy different ranges into one target file concurrently. A task that copies a hole must not truncate
/// the target file, because another task may have extended it already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_copies_of_holes_do_not_shorten_the_target() {
    const PART: u64 = 1 << 20;
    const PARTS: u64 = 6;
    let cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let source = striped(&mount, 64 << 10, 2, 1).await;
    source.write_at(PARTS * PART, fill(1, 10)).await.unwrap();
    for round in 0..30 {
        let target = striped(&mount, 64 << 10, 2, 1).await;
        let part = |i| target.copy_range(i * PART, &source, ByteRange { offset: i * PART, len: PART });
        let copied = futures_util::future::join_all((0..PARTS).rev().map(part)).await;
        assert!(copied.into_iter().all(|copied| copied.unwrap() == PART));
        assert_eq!(content(&target).await.len() as u64, PARTS * PART, "round {round}");
        target.close().await.unwrap();
    }
}

/// Iods stop and start again while they copy. Each copy still completes with the right contents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_survive_restarts_of_iods() {
    let mut cluster = Cluster::start(3).await;
    let mount = cluster.mount(options()).await;
    let (from, to) = (striped(&mount, 65536, 3, 1).await, striped(&mount, 196_608, 3, 1).await);
    let data = fill(5, 24 << 20);
    from.write_at(0, data.clone()).await.unwrap();
    from.fsync().await.unwrap();
    let (from, to) = (std::sync::Arc::new(from), std::sync::Arc::new(to));
    for round in 0..4u64 {
        let begun = moved(&cluster).1;
        let copying = {
            let (from, to) = (from.clone(), to.clone());
            tokio::spawn(
                async move { to.copy_range(round * 1000, &from, ByteRange { offset: 0, len: 24 << 20 }).await },
            )
        };
        // In odd rounds, stop an iod after the iods have copied some bytes. In even rounds, stop the iod at once.
        while moved(&cluster).1 == begun && !copying.is_finished() && round % 2 == 1 {
            tokio::task::yield_now().await;
        }
        let victim = (round % 3) as usize;
        cluster.stop_iod(victim);
        cluster.start_iod(victim);
        let copied = copying.await.unwrap().unwrap();
        assert_eq!(copied, 24 << 20);
        let got = content(&to).await;
        assert!(got[(round * 1000) as usize..(round * 1000) as usize + data.len()] == data, "round {round}");
    }
}
