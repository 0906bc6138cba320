//! Random sequences of writes, truncations, holes and reads on the mgr path, compared with a flat buffer in memory.

use crate::cluster::{Cluster, create, ctx, read, set_size, write};
use mgr::Files;
use nfs::fs::{Content, FileSystem, Stability};
use proptest::prelude::*;
use types::{ByteRange, FileId, Status};

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, len: usize, seed: u8, stable: bool },
    Read { at: u64, len: u32 },
    Cut(u64),
    Punch { at: u64, len: u64 },
    Allocate { at: u64, len: u64 },
    Seek(u64),
    Commit,
}

/// Generates offsets and lengths, mostly near the boundaries of stripe units.
fn place(unit: u64) -> impl Strategy<Value = u64> {
    let near = (0u64..24, -3i64..4).prop_map(move |(n, d)| (n * unit).saturating_add_signed(d));
    prop_oneof![3 => near, 1 => 0..20 * unit].prop_map(|at| at.min(600_000))
}

fn step(unit: u64) -> impl Strategy<Value = Step> {
    let len = move || place(unit).prop_map(|n| n.min(300_000));
    prop_oneof![
        5 => (place(unit), len(), 1u8..250, any::<bool>())
            .prop_map(|(at, len, seed, stable)| Step::Write { at, len: len as usize, seed, stable }),
        3 => (place(unit), len()).prop_map(|(at, len)| Step::Read { at, len: len as u32 }),
        2 => place(unit).prop_map(Step::Cut),
        1 => (place(unit), len()).prop_map(|(at, len)| Step::Punch { at, len }),
        1 => (place(unit), len()).prop_map(|(at, len)| Step::Allocate { at, len: len.max(1) }),
        1 => place(unit).prop_map(Step::Seek),
        1 => Just(Step::Commit),
    ]
}

/// Applies one operation of a random sequence to the file, and to the buffer with the expected bytes.
async fn run(files: &Files, file: FileId, flat: &mut Vec<u8>, step: &Step) {
    match *step {
        Step::Write { at, len, seed, stable } => {
            let data = crate::cluster::pattern(len, seed);
            let stable = if stable { Stability::FileSync } else { Stability::Unstable };
            write(files, file, at, &data, stable).await;
            let (at, end) = (at as usize, at as usize + len);
            if len > 0 {
                flat.resize(flat.len().max(end), 0);
                flat[at..end].copy_from_slice(&data);
            }
        }
        Step::Read { at, len } => {
            let out = files.read(&ctx(2), file, at, len).await.unwrap();
            let start = (at as usize).min(flat.len());
            let end = (at as usize + len as usize).min(flat.len()).max(start);
            assert!(out.data.to_bytes() == flat[start..end], "read of {len} at {at}");
            assert_eq!(out.eof, at as usize + len as usize >= flat.len());
        }
        Step::Cut(size) => {
            assert_eq!(set_size(files, file, size).await.size, size);
            flat.resize(size as usize, 0);
        }
        Step::Punch { at, len } => {
            files.deallocate(&ctx(1), file, ByteRange { offset: at, len }).await.unwrap();
            let end = ((at + len) as usize).min(flat.len());
            flat[(at as usize).min(end)..end].fill(0);
        }
        Step::Allocate { at, len } => {
            files.allocate(&ctx(1), file, ByteRange { offset: at, len }).await.unwrap();
            flat.resize(flat.len().max((at + len) as usize), 0);
        }
        Step::Seek(at) => seek(files, file, flat, at).await,
        Step::Commit => drop(files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap()),
    }
    assert_eq!(files.getattr(&ctx(1), file).await.unwrap().size, flat.len() as u64);
}

/// Checks the replies to SEEK. An iod may report unwritten bytes as data, but every byte that it reports as a hole must
/// be zero.
async fn seek(files: &Files, file: FileId, flat: &[u8], at: u64) {
    let data = files.seek(&ctx(1), file, at, Content::Data).await;
    let hole = files.seek(&ctx(1), file, at, Content::Hole).await;
    let size = flat.len() as u64;
    if at >= size {
        assert_eq!((data, hole), (Err(Status::NxIo), Err(Status::NxIo)));
        return;
    }
    let data_at = match data {
        Ok(found) => {
            assert!(found.offset >= at && found.offset < size && !found.eof);
            found.offset
        }
        Err(e) => {
            assert_eq!(e, Status::NxIo);
            size
        }
    };
    assert!(flat[at as usize..data_at as usize].iter().all(|b| *b == 0), "data from {at} before {data_at} missed");
    let hole = hole.unwrap();
    assert_eq!(hole.eof, hole.offset == size);
    assert!(hole.offset >= at && hole.offset <= size);
    assert!(hole.eof || flat[hole.offset as usize] == 0, "a hole at {} that holds data", hole.offset);
    assert!(hole.offset == at || data_at == at, "neither data nor hole at {at}");
}

fn case() -> impl Strategy<Value = (usize, u64, u32, u64, Vec<Step>)> {
    // Gather delays in milliseconds: 0 (no gathering), the default, and a delay longer than a test case.
    let delay = || prop_oneof![Just(0u32), Just(2), Just(1000)];
    let inline = || prop_oneof![2 => Just(0u64), 1 => Just(100), 2 => Just(4096), 2 => Just(16384)];
    (1usize..=4, prop_oneof![Just(64u64), Just(192), Just(4096), Just(65536), Just(1 << 20)]).prop_flat_map(
        move |(iods, unit)| (Just(iods), Just(unit), delay(), inline(), prop::collection::vec(step(unit), 1..25)),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn file_io_through_the_mgr_equals_a_flat_buffer((iods, unit, delay, inline, steps) in case()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut cluster = Cluster::stopped(iods, &unit.to_string()).await;
            cluster.config.mgr_gather_delay_ms = delay;
            cluster.config.inline_max = inline.to_string();
            cluster.start_mgr().await;
            let file = create(&cluster.files(), "f").await;
            let mut flat = Vec::new();
            for step in &steps {
                run(&cluster.files(), file, &mut flat, step).await;
            }
            // After a restart of the mgr, the file must have the same content as before.
            cluster.restart_mgr().await;
            let files = cluster.files();
            assert_eq!(files.getattr(&ctx(1), file).await.unwrap().size, flat.len() as u64);
            assert!(read(&files, file, 0, 1 << 20).await.unwrap() == flat[..flat.len().min(1 << 20)]);
            drop(files);
            cluster.mgr.take().unwrap().stop().await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_of_one_file_do_not_disturb_each_other() {
    let cluster = Cluster::new(3, "4096").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let part = 40_000;
    let writers = (0..8u8).map(|i| {
        let files = files.clone();
        tokio::spawn(async move {
            let data = crate::cluster::pattern(part, i);
            for (k, chunk) in data.chunks(7000).enumerate() {
                let at = i as usize * part + k * 7000;
                let stable = if k % 2 == 0 { Stability::Unstable } else { Stability::FileSync };
                write(&files, file, at as u64, chunk, stable).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let want: Vec<u8> = (0..8u8).flat_map(|i| crate::cluster::pattern(part, i)).collect();
    assert!(read(&files, file, 0, 1 << 20).await.unwrap() == want);
}
