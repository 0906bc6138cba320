//! Log files (`layout=log`): several clients write one file, each to a data log of its own, and every client reads the
//! same bytes on the direct path and on the mgr path.

use crate::cluster::{Cluster, options};
use crate::seeded_random::{SeededRandom, seed};
use bytes::Bytes;
use client::{CreateOptions, File, Mount, OpenFlags, Options, XattrMode};
use std::path::Path;
use types::ByteRange;

const NAME: &[u8] = b"f";
/// The stripe unit of the files. A unit of a data log has four stripe units, and a shard of the index 64.
const UNIT: usize = 4096;

/// Starts a cluster whose new files are log files.
async fn cluster(iods: usize) -> Cluster {
    let mut cluster = Cluster::start(iods).await;
    cluster.policy = Some("layout=log".into());
    cluster.restart_mgr().await;
    let mount = cluster.mount(options()).await;
    mount.setxattr(&mount.root(), b"weir.stripe_unit", b"4096", XattrMode::Either).await.unwrap();
    mount.disconnect().await.unwrap();
    cluster
}

/// Returns the options of a client that uses the mgr path only.
fn through_mgr() -> Options {
    Options { direct: false, ..options() }
}

async fn create(mount: &Mount) -> File {
    mount.create(&mount.root(), NAME, CreateOptions::default()).await.unwrap()
}

async fn open(mount: &Mount, flags: OpenFlags) -> File {
    let (node, _) = mount.lookup(&mount.root(), NAME).await.unwrap();
    mount.open(&node, flags).await.unwrap()
}

/// Reads the whole file through new opens on a direct mount and on a mount that uses the mgr path.
async fn check(cluster: &Cluster, expected: &[u8]) {
    for options in [options(), through_mgr()] {
        let direct = options.direct;
        let mount = cluster.mount(options).await;
        let file = open(&mount, OpenFlags::READ).await;
        let got = file.read_at(0, expected.len() + 100).await.unwrap().to_vec();
        let first = got.iter().zip(expected).position(|(got, expected)| got != expected);
        assert!(first.is_none() && got.len() == expected.len(), "direct: {direct}, {first:?}, {} bytes", got.len());
        file.close().await.unwrap();
        mount.disconnect().await.unwrap();
    }
}

/// Returns the names of all object files below a folder of an iod's store.
fn objects(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(objects(&entry.path())),
            false => found.push(entry.file_name().into_string().unwrap()),
        }
    }
    found
}

/// Returns the names of the objects of all iods.
fn all_objects(cluster: &Cluster) -> Vec<String> {
    let stores = (0..cluster.iods.len()).map(|index| cluster.store(index).join("objects"));
    stores.filter(|store| store.exists()).flat_map(|store| objects(&store)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_writers_write_one_checkpoint() {
    const WRITERS: usize = 4;
    const RECORD: usize = 1777;
    const RECORDS: usize = 100;
    let cluster = cluster(3).await;
    let first = cluster.mount(options()).await;
    let created = create(&first).await;
    let mut mounts = Vec::new();
    for _ in 0..WRITERS {
        mounts.push(cluster.mount(options()).await);
    }
    let byte = |writer: usize, record: usize| (1 + writer * 61 + record) as u8;
    let write = |mount: Mount, writer: usize| async move {
        let file = open(&mount, OpenFlags::READ_WRITE).await;
        for record in 0..RECORDS {
            let offset = (record * WRITERS + writer) * RECORD;
            file.write_at(offset as u64, Bytes::from(vec![byte(writer, record); RECORD])).await.unwrap();
        }
        file.close().await.unwrap();
        mount
    };
    let all = mounts.into_iter().enumerate().map(|(writer, mount)| write(mount, writer));
    let mounts = futures_util::future::join_all(all).await;
    let expected: Vec<u8> =
        (0..WRITERS * RECORDS).flat_map(|at| vec![byte(at % WRITERS, at / WRITERS); RECORD]).collect();
    check(&cluster, &expected).await;
    created.close().await.unwrap();
    let logs = all_objects(&cluster).iter().filter(|name| name.contains("-8")).count();
    assert!(logs >= WRITERS, "{logs} objects of data logs");

    first.remove(&first.root(), NAME).await.unwrap();
    for mount in mounts {
        mount.disconnect().await.unwrap();
    }
    wait_until("all objects are gone", || all_objects(&cluster).is_empty()).await;
}

async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("not within 20 s: {what}");
}

/// The bytes of the mgr path are in the striped base, those of the direct path in data logs. Whichever was written
/// later is read, also after truncations and with holes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_later_write_wins_on_both_paths() {
    let cluster = cluster(2).await;
    let mounts = [cluster.mount(options()).await, cluster.mount(options()).await, cluster.mount(through_mgr()).await];
    let created = create(&mounts[0]).await;
    let mut files = Vec::new();
    for mount in &mounts {
        files.push(open(mount, OpenFlags::READ_WRITE).await);
    }
    let seed = seed();
    let mut random = SeededRandom(seed);
    let mut model: Vec<u8> = Vec::new();
    const LONGEST: usize = 80 * UNIT;
    for step in 0..400 {
        let file = &files[random.below(3)];
        let offset = random.below(LONGEST);
        match random.below(10) {
            0 => {
                file.set_len(offset as u64).await.unwrap();
                model.resize(offset, 0);
            }
            1 => {
                let end = (offset + random.below(3 * UNIT)).min(model.len());
                if offset < end {
                    file.punch(ByteRange { offset: offset as u64, len: (end - offset) as u64 }).await.unwrap();
                    model[offset..end].fill(0);
                }
            }
            2 => file.fsync().await.unwrap(),
            3..=5 => {
                let got = file.read_at(offset as u64, 6 * UNIT).await.unwrap().to_vec();
                let expected = &model[offset.min(model.len())..(offset + 6 * UNIT).min(model.len())];
                assert!(got == expected, "seed {seed}, step {step}, offset {offset}");
            }
            _ => {
                let len = 1 + random.below(5 * UNIT);
                let byte = 1 + random.below(255) as u8;
                file.write_at(offset as u64, Bytes::from(vec![byte; len])).await.unwrap();
                model.resize(model.len().max(offset + len), 0);
                model[offset..offset + len].fill(byte);
            }
        }
    }
    for file in files {
        file.close().await.unwrap();
    }
    created.close().await.unwrap();
    check(&cluster, &model).await;
}

/// An iod loses registrations that are not durable when it stops. The writer then writes the bytes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_an_iod_before_the_sync_loses_nothing() {
    let mut cluster = cluster(3).await;
    let mount = cluster.mount(options()).await;
    let file = create(&mount).await;
    let mut expected = vec![0; 40 * UNIT];
    for round in 0..3 {
        for block in 0..40 {
            let byte = (1 + round * 40 + block) as u8;
            file.write_at((block * UNIT) as u64, Bytes::from(vec![byte; UNIT])).await.unwrap();
            expected[block * UNIT..][..UNIT].fill(byte);
        }
        file.push().await.unwrap();
        cluster.stop_iod(round);
        cluster.start_iod(round);
        file.fsync().await.unwrap();
        check(&cluster, &expected).await;
    }
    file.close().await.unwrap();
    for round in 0..3 {
        cluster.stop_iod(round);
        cluster.start_iod(round);
    }
    check(&cluster, &expected).await;
}
