//! Tests of read-ahead. Read-ahead reduces the number of requests, as the counters show. No read returns bytes that
//! are older than the consistency guarantees allow.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, File, LockKind, Mount, OpenFlags, Options, Origin, Settings};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use types::ByteRange;

const UNIT: u64 = 64 << 10;

async fn cluster_and_mount() -> (Cluster, Mount) {
    let cluster = Cluster::start(4).await;
    let mount = cluster.mount(options()).await;
    mount.setxattr(&mount.root(), b"weir.stripe_unit", b"64K", client::XattrMode::Either).await.unwrap();
    (cluster, mount)
}

fn fill(seed: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8).collect::<Vec<_>>().into()
}

async fn written(mount: &Mount, name: &[u8], data: &Bytes) -> File {
    let file = mount.create(&mount.root(), name, CreateOptions::default()).await.unwrap();
    file.write_at(0, data.clone()).await.unwrap();
    let node = file.node();
    file.close().await.unwrap();
    mount.open(&node, OpenFlags::READ).await.unwrap()
}

/// Reads the file with these requests, and returns their cost: the bytes read from iods or lent files, the number of
/// such reads, and the bytes that came from read-ahead buffers.
async fn cost(mount: &Mount, file: &File, data: &Bytes, requests: impl IntoIterator<Item = (u64, usize)>) -> [u64; 3] {
    let before = mount.counters();
    for (offset, len) in requests {
        let got = file.read_at(offset, len).await.unwrap();
        let end = data.len().min(offset as usize + len);
        assert_eq!(got.to_vec(), data[(offset as usize).min(end)..end], "{len} at {offset}");
        assert_eq!(got.eof, offset as usize + len >= data.len());
    }
    let after = mount.counters();
    let requests = |counters: &client::Counters| counters.rpc("READ") + counters.short_circuit_reads;
    [after.read_direct - before.read_direct, requests(&after) - requests(&before), after.read_ahead - before.read_ahead]
}

#[tokio::test(flavor = "multi_thread")]
async fn sequential_reads_need_few_requests_and_fetch_every_byte_once() {
    let (_cluster, mount) = cluster_and_mount().await;
    let data = fill(1, (8 << 20) + 1000);
    let file = written(&mount, b"f", &data).await;
    let all = |len: usize| (0..=data.len() / len).map(move |n| ((n * len) as u64, len));
    for len in [4096, 10_000, 128 << 10] {
        let again = mount.open(&file.node(), OpenFlags::READ).await.unwrap();
        let [bytes, requests, ahead] = cost(&mount, &again, &data, all(len)).await;
        assert_eq!(bytes, data.len() as u64, "{len}");
        // The client needs one request for each stripe unit, and additional requests where a read-ahead range begins
        // inside a stripe unit.
        assert!(requests <= 2 * data.len() as u64 / UNIT, "{len}: {requests} requests");
        assert!(ahead >= bytes - 4 * len as u64, "{len}: {ahead} of {bytes} bytes were read ahead");
        again.close().await.unwrap();
    }
    let plain = Settings::parse(Origin::Mount, "read_ahead=0").unwrap();
    let plain = mount_with(&_cluster, plain).await;
    let file = plain.open(&file.node(), OpenFlags::READ).await.unwrap();
    let [bytes, requests, ahead] = cost(&plain, &file, &data, all(16 << 10)).await;
    assert_eq!((bytes, ahead), (data.len() as u64, 0), "read-ahead is switched off");
    assert!(requests >= data.len() as u64 >> 14);
}

async fn mount_with(cluster: &Cluster, policy: Settings) -> Mount {
    cluster.mount(Options { policy, ..options() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn strided_reads_are_read_ahead_and_random_reads_are_not() {
    let (_cluster, mount) = cluster_and_mount().await;
    let data = fill(2, 16 << 20);
    let file = written(&mount, b"f", &data).await;
    // The access pattern of a process that reads every eighth record of the file, as one of eight parallel processes
    // does.
    let (step, len) = (8 * 47_104, 47_104);
    let records = data.len().div_ceil(step) as u64;
    let requests = (0..records).map(|n| (n * step as u64, len));
    let [bytes, _, ahead] = cost(&mount, &file, &data, requests).await;
    assert!(ahead >= (records - 4) * len as u64, "{ahead} of {bytes}");
    assert!(bytes <= records * len as u64, "only records are read, and no bytes between them");
    let again = mount.open(&file.node(), OpenFlags::READ).await.unwrap();
    let requests = (0..500_u64).map(|n| ((n * n * 7919 % 4096) * 4096, 4096));
    let [bytes, requests, ahead] = cost(&mount, &again, &data, requests).await;
    assert!(bytes <= 520 * 4096 && requests <= 520 && ahead <= 20 * 4096, "{bytes} {requests} {ahead}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_discards_bytes_read_ahead_before_another_client_wrote() {
    let (cluster, mount) = cluster_and_mount().await;
    let other = cluster.mount(options()).await;
    let data = fill(3, 4 << 20);
    let mine = written(&mount, b"f", &data).await;
    let theirs = other.open(&mine.node(), OpenFlags::READ_WRITE).await.unwrap();
    for n in 0..40 {
        mine.read_at(n * 4096, 4096).await.unwrap();
    }
    theirs.lock(1, ByteRange::ALL, LockKind::Write).await.unwrap();
    let newer = fill(4, 4 << 20);
    theirs.write_at(0, newer.clone()).await.unwrap();
    theirs.unlock(1, ByteRange::ALL).await.unwrap();
    mine.lock(1, ByteRange::ALL, LockKind::Read).await.unwrap();
    for n in 40..100 {
        let (offset, len) = (n * 4096, 4096);
        let got = mine.read_at(offset as u64, len).await.unwrap().to_vec();
        assert_eq!(got, newer[offset..offset + len], "{n}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Sends `count` reads of `len` bytes. The offset of each read is `step` bytes larger than the offset of the
    /// previous read.
    Read {
        offset: usize,
        len: usize,
        step: usize,
        count: usize,
    },
    Write {
        offset: usize,
        len: usize,
    },
    Cut {
        size: usize,
    },
    Punch {
        offset: usize,
        len: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    let (at, len) = (0usize..1 << 20, 1usize..20_000);
    let steps = prop_oneof![
        6 => (at.clone(), len.clone(), prop_oneof![3 => Just(0), 1 => 0usize..10_000], 3usize..40)
            .prop_map(|(offset, len, gap, count)| Step::Read { offset, len, step: len + gap, count }),
        3 => (at.clone(), len.clone()).prop_map(|(offset, len)| Step::Write { offset, len }),
        1 => at.clone().prop_map(|size| Step::Cut { size }),
        1 => (at, len).prop_map(|(offset, len)| Step::Punch { offset, len }),
    ];
    prop::collection::vec((steps, any::<bool>()), 1..25)
}

/// If two opens on one mount use the same file, a change through one open is visible through the other open at once,
/// even in bytes that the client has read ahead. A failing test prints its random steps.
#[test]
fn opens_of_one_mount_see_changes_at_once_despite_read_ahead() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (_cluster, mount) = runtime.block_on(cluster_and_mount());
    let mut runner = TestRunner::new(ProptestConfig { cases: 60, ..ProptestConfig::default() });
    let outcome = runner.run(&steps(), |steps| {
        runtime.block_on(async {
            let mut model = fill(5, 1 << 20).to_vec();
            let first = written(&mount, b"both", &model.clone().into()).await;
            let node = first.node();
            first.close().await.unwrap();
            let files = [0, 1].map(|_| mount.open(&node, OpenFlags::READ_WRITE));
            let files = futures_util::future::try_join_all(files).await.unwrap();
            for (number, (step, which)) in steps.iter().enumerate() {
                let file = &files[usize::from(*which)];
                match *step {
                    Step::Read { offset, len, step, count } => {
                        for n in 0..count {
                            let at = offset + n * step;
                            let end = model.len().min(at + len);
                            let got = file.read_at(at as u64, len).await.unwrap();
                            prop_assert_eq!(got.eof, at + len >= model.len());
                            prop_assert!(got.to_vec() == model[at.min(end)..end], "{len} at {at}");
                        }
                    }
                    Step::Write { offset, len } => {
                        let data = fill(number as u64, len);
                        file.write_at(offset as u64, data.clone()).await.unwrap();
                        model.resize(model.len().max(offset + len), 0);
                        model[offset..offset + len].copy_from_slice(&data);
                    }
                    Step::Cut { size } => {
                        file.set_len(size as u64).await.unwrap();
                        model.resize(size, 0);
                    }
                    Step::Punch { offset, len } => {
                        file.punch(ByteRange { offset: offset as u64, len: len as u64 }).await.unwrap();
                        let end = model.len().min(offset + len);
                        model[offset.min(end)..end].fill(0);
                    }
                }
            }
            for file in files {
                file.close().await.unwrap();
            }
            mount.remove(&mount.root(), b"both").await.unwrap();
            Ok(())
        })
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
