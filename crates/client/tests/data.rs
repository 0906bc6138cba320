//! File data through a client, an mgr and iods, compared with a byte array in memory (the model).

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, File, LockKind, Mount, Node, OpenFlags, Options, Origin, XattrMode};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use types::{ByteRange, SetAttrs};

/// Creates a directory whose new files have this stripe unit and stripe count.
async fn striped(mount: &Mount, unit: u64, count: usize) -> Node {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("dir{}", NEXT.fetch_add(1, Relaxed));
    let (dir, _) = mount.mkdir(&mount.root(), name.as_bytes(), 0o755).await.unwrap();
    mount.setxattr(&dir, b"weir.stripe_unit", unit.to_string().as_bytes(), XattrMode::Either).await.unwrap();
    mount.setxattr(&dir, b"weir.stripe_count", count.to_string().as_bytes(), XattrMode::Either).await.unwrap();
    dir
}

/// Returns test data: each byte depends on its position and on `seed`, so that a test recognizes which write a byte
/// belongs to.
fn fill(seed: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8).collect::<Vec<_>>().into()
}

async fn read_all(file: &File) -> Vec<u8> {
    let got = file.read_at(0, file.size() as usize + 100).await.unwrap();
    assert!(got.eof);
    got.to_vec()
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: usize,
        len: usize,
    },
    Read {
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
    Allocate {
        offset: usize,
        len: usize,
    },
    Fsync,
    /// Close the file and open it again. With `swap`, open the file on the other of the two mounts. One mount uses the
    /// direct path, the other uses the mgr path.
    Reopen {
        swap: bool,
    },
    NextData {
        offset: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || prop_oneof![3 => 0usize..3000, 1 => 0usize..40_000];
    let len = || prop_oneof![3 => 1usize..700, 1 => 1usize..20_000];
    let step = prop_oneof![
        6 => (at(), len()).prop_map(|(offset, len)| Step::Write { offset, len }),
        4 => (at(), len()).prop_map(|(offset, len)| Step::Read { offset, len }),
        2 => at().prop_map(|size| Step::Cut { size }),
        1 => (at(), len()).prop_map(|(offset, len)| Step::Punch { offset, len }),
        1 => (at(), len()).prop_map(|(offset, len)| Step::Allocate { offset, len }),
        1 => Just(Step::Fsync),
        2 => any::<bool>().prop_map(|swap| Step::Reopen { swap }),
        1 => at().prop_map(|offset| Step::NextData { offset }),
    ];
    prop::collection::vec(step, 1..25)
}

/// An open file and its expected contents.
struct Checked {
    file: Option<File>,
    model: Vec<u8>,
    writes: u64,
}

impl Checked {
    async fn apply(&mut self, step: &Step, mounts: &mut [Mount; 2]) -> Result<(), TestCaseError> {
        let file = self.file.as_ref().unwrap();
        match *step {
            Step::Write { offset, len } => {
                self.writes += 1;
                let data = fill(self.writes, len);
                file.write_at(offset as u64, data.clone()).await.unwrap();
                self.model.resize(self.model.len().max(offset + len), 0);
                self.model[offset..offset + len].copy_from_slice(&data);
            }
            Step::Read { offset, len } => {
                let got = file.read_at(offset as u64, len).await.unwrap();
                let end = self.model.len().min(offset + len);
                prop_assert_eq!(got.to_vec(), &self.model[offset.min(end)..end]);
                prop_assert_eq!(got.eof, offset + len >= self.model.len());
            }
            Step::Cut { size } => {
                file.set_len(size as u64).await.unwrap();
                self.model.resize(size, 0);
            }
            Step::Punch { offset, len } => {
                file.punch(ByteRange { offset: offset as u64, len: len as u64 }).await.unwrap();
                let end = self.model.len().min(offset + len);
                self.model[offset.min(end)..end].fill(0);
            }
            Step::Allocate { offset, len } => {
                file.allocate(ByteRange { offset: offset as u64, len: len as u64 }).await.unwrap();
                self.model.resize(self.model.len().max(offset + len), 0);
            }
            Step::Fsync => file.fsync().await.unwrap(),
            Step::Reopen { swap } => {
                let node = file.node();
                self.file.take().unwrap().close().await.unwrap();
                if swap {
                    mounts.swap(0, 1);
                }
                prop_assert_eq!(mounts[0].getattr(&node).await.unwrap().size, self.model.len() as u64);
                self.file = Some(mounts[0].open(&node, OpenFlags::READ_WRITE).await.unwrap());
            }
            Step::NextData { offset } => {
                let found = file.next_data(offset as u64).await.unwrap();
                let first = self.model.iter().skip(offset).position(|b| *b != 0).map(|at| at + offset);
                let start = found.map_or(self.model.len(), |run| run.offset as usize);
                prop_assert!(start >= offset.min(self.model.len()));
                prop_assert!(first.is_none_or(|first| start <= first), "data at {first:?}, found {found:?}");
                if let Some(run) = found {
                    prop_assert!(run.len > 0 && run.end() <= self.model.len() as u64);
                }
            }
        }
        prop_assert_eq!(self.file.as_ref().unwrap().size(), self.model.len() as u64);
        Ok(())
    }
}

#[test]
fn any_sequence_of_operations_matches_the_flat_model() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (cluster, direct, proxied) = runtime.block_on(async {
        let cluster = Cluster::start(8).await;
        let direct = cluster.mount(options()).await;
        let proxied = cluster.mount(Options { direct: false, ..options() }).await;
        (cluster, direct, proxied)
    });
    let unit = prop_oneof![Just(64u64), Just(64), Just(128), Just(192), Just(4096), Just(1 << 20)];
    let mut runner = TestRunner::new(ProptestConfig { cases: 96, ..ProptestConfig::default() });
    let outcome = runner.run(&(unit, 1usize..=8, any::<bool>(), steps()), |(unit, count, swap, steps)| {
        runtime.block_on(async {
            let mut mounts = [direct.clone(), proxied.clone()];
            if swap {
                mounts.swap(0, 1);
            }
            let dir = striped(&mounts[0], unit, count).await;
            let file = mounts[0].create(&dir, b"f", CreateOptions::default()).await.unwrap();
            let mut checked = Checked { file: Some(file), model: Vec::new(), writes: 0 };
            for step in &steps {
                checked.apply(step, &mut mounts).await?;
            }
            let file = checked.file.take().unwrap();
            prop_assert_eq!(&read_all(&file).await, &checked.model);
            let node = file.node();
            file.close().await.unwrap();
            // One mount reads on the direct path and one on the mgr path. Both must return the expected bytes.
            for mount in &mounts {
                let file = mount.open(&node, OpenFlags::READ).await.unwrap();
                prop_assert_eq!(&read_all(&file).await, &checked.model);
                file.close().await.unwrap();
            }
            Ok(())
        })
    });
    drop((direct, proxied));
    drop(cluster);
    outcome.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_costs_two_compounds_and_one_write() {
    let cluster = Cluster::start(4).await;
    let mount = cluster.mount(options()).await;
    let root = mount.root();
    // Create some files before the test counts requests. The first creates need additional requests for the addresses
    // of the iods and the connections to them.
    for name in ["first", "second", "third", "fourth"] {
        let file = mount.create(&root, name.as_bytes(), CreateOptions::default()).await.unwrap();
        file.write_at(0, Bytes::from_static(b"x")).await.unwrap();
        file.close().await.unwrap();
    }
    let before = mount.counters();
    let file = mount.create(&root, b"tmp", CreateOptions { exclusive: true, ..Default::default() }).await.unwrap();
    file.write_at(0, fill(1, 5000)).await.unwrap();
    let changes = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    let attrs = file.finish(changes, Some((&root, b"final"))).await.unwrap();
    let after = mount.counters();
    let count = |name: &str| after.rpc(name) - before.rpc(name);
    assert_eq!((count("COMPOUND"), count("WRITE"), count("COMMIT")), (2, 1, 0), "{after:?}");
    assert_eq!((attrs.size, attrs.mode), (5000, 0o600));
    assert_eq!((after.written_via_mgr, after.read_via_mgr), (0, 0));
    let (node, attrs) = mount.lookup(&root, b"final").await.unwrap();
    assert_eq!(attrs.size, 5000);
    let file = mount.open(&node, OpenFlags::READ).await.unwrap();
    assert_eq!(read_all(&file).await, fill(1, 5000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_writes_are_included_in_every_reported_size() {
    let cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let root = mount.root();
    let file = mount.create(&root, b"f", CreateOptions::default()).await.unwrap();
    for len in [3, 5000, 700_000] {
        file.write_at(0, fill(1, len)).await.unwrap();
        let len = len as u64;
        assert_eq!(mount.lookup(&root, b"f").await.unwrap().1.size, len);
        let page = mount.readdir(&root).next_page().await.unwrap().unwrap();
        assert!(page.iter().all(|entry| entry.attrs.size == len) && !page.is_empty());
        let other = format!("also with {len}").into_bytes();
        assert_eq!(mount.link(&file.node(), &root, &other).await.unwrap().size, len);
    }
    // Another client truncates the file while this client has the file open.
    file.fsync().await.unwrap();
    let others = cluster.mount(options()).await;
    let (node, _) = others.lookup(&others.root(), b"f").await.unwrap();
    others.setattr(&node, &SetAttrs { size: Some(10), ..SetAttrs::default() }).await.unwrap();
    assert_eq!(mount.lookup(&root, b"f").await.unwrap().1.size, 10);
    assert_eq!(read_all(&file).await.len(), 10);
}

/// The client sends a few short writes to scattered offsets on the mgr path, with one request for each write. The
/// client sends many such writes on the direct path, as list I/O.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_scattered_short_writes_are_sent_as_list_io() {
    let cluster = Cluster::start(4).await;
    let policy = client::Settings {
        write_threshold: Some(client::options::Rule::Fixed(64 << 10)),
        ..client::Settings::default()
    };
    let mount = cluster.mount(Options { policy, ..options() }).await;
    let dir = striped(&mount, 65536, 4).await;
    for (name, count, requests, through) in [("few", 16u64, 16, 16 * 4096), ("many", 256, 4, 0)] {
        let file = mount.create(&dir, name.as_bytes(), CreateOptions::default()).await.unwrap();
        let before = mount.counters();
        // Write at offsets that are neither sequential nor adjacent.
        for i in (0..count).map(|i| i * 7 % count) {
            file.write_at(i * 3 * 4096, fill(i, 4096)).await.unwrap();
        }
        file.fsync().await.unwrap();
        let after = mount.counters();
        assert_eq!(
            after.rpc("WRITE") - before.rpc("WRITE") + (after.written_via_mgr - before.written_via_mgr) / 4096,
            requests
        );
        assert_eq!(after.written_via_mgr - before.written_via_mgr, through);
        let whole = read_all(&file).await;
        assert!((0..count).all(|i| whole[i as usize * 3 * 4096..][..4096] == fill(i, 4096)));
        file.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_written_in_parallel_share_a_small_window() {
    let cluster = Cluster::start(3).await;
    let mount = cluster.mount(Options { window: 2 << 20, ..options() }).await;
    let dir = striped(&mount, 65536, 0).await;
    let tasks = (0..12u64).map(|i| {
        let (mount, dir) = (mount.clone(), dir.clone());
        tokio::spawn(async move {
            let file = mount.create(&dir, format!("f{i}").as_bytes(), CreateOptions::default()).await.unwrap();
            for part in 0..6u64 {
                file.write_at(part * 700_000, fill(i * 100 + part, 700_000)).await.unwrap();
            }
            let node = file.node();
            file.close().await.unwrap();
            let file = mount.open(&node, OpenFlags::READ).await.unwrap();
            for part in 0..6u64 {
                let got = file.read_at(part * 700_000, 700_000).await.unwrap().to_vec();
                assert!(got == fill(i * 100 + part, 700_000), "file {i} part {part}");
            }
            file.close().await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let counters = mount.counters();
    assert_eq!((counters.written_via_mgr, counters.read_via_mgr), (0, 0), "{counters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placement_reports_where_bytes_are_stored() {
    let cluster = Cluster::start(4).await;
    let mount = cluster.mount(options()).await;
    let dir = striped(&mount, 4096, 3).await;
    let file = mount.create(&dir, b"f", CreateOptions::default()).await.unwrap();
    file.write_at(0, fill(1, 4096 * 4 + 10)).await.unwrap();
    let placement = file.placement().await.unwrap();
    let sizes: Vec<u64> = placement.objects.iter().map(|o| o.size).collect();
    assert_eq!(sizes, [8192, 4106, 4096]);
    assert_eq!(placement.file_size, 4096 * 4 + 10);
    assert!(placement.objects.iter().all(|o| !o.addresses.is_empty() && o.allocated > 0));
    let pieces: Vec<usize> = placement.pieces(ByteRange { offset: 0, len: 20_000 }).map(|p| p.index).collect();
    assert_eq!(pieces, [0, 1, 2, 0, 1]);
    file.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_by_another_client_applies_after_earlier_writes() {
    let cluster = Cluster::start(3).await;
    let (writer, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let dir = striped(&writer, 4096, 3).await;
    for proxied in [false, true] {
        let other = if proxied { cluster.mount(Options { direct: false, ..options() }).await } else { other.clone() };
        let file = writer.create(&dir, format!("f{proxied}").as_bytes(), CreateOptions::default()).await.unwrap();
        let data = fill(1, 3 << 20);
        // When the mgr recalls the writer's layout because of the other client's truncate, the writer has committed
        // some bytes, is sending some, and has not yet sent others.
        file.write_at(0, data.slice(..1 << 20)).await.unwrap();
        file.fsync().await.unwrap();
        file.write_at(1 << 20, data.slice(1 << 20..)).await.unwrap();
        other.setattr(&file.node(), &SetAttrs { size: Some(100), ..SetAttrs::default() }).await.unwrap();
        assert_eq!(file.read_at(0, 4 << 20).await.unwrap().to_vec(), data[..100], "{:?}", writer.counters());
        file.write_at(200, Bytes::from_static(b"tail")).await.unwrap();
        let node = file.node();
        file.close().await.unwrap();
        let mut model = data[..100].to_vec();
        model.resize(200, 0);
        model.extend(b"tail");
        let file = other.open(&node, OpenFlags::READ).await.unwrap();
        assert_eq!(read_all(&file).await, model);
        file.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_restrict_other_users_and_layouts_grant_what_the_open_allows() {
    let cluster = Cluster::start(2).await;
    let root = cluster.mount(options()).await;
    let cred = types::Cred { uid: 1000, gid: 1000, groups: vec![1001] };
    let user = cluster.mount(Options { cred, ..options() }).await;
    for (name, mode, may_read, may_write) in [
        ("secret", 0o600, false, false),
        ("letterbox", 0o622, false, true),
        ("notice", 0o644, true, false),
        ("wall", 0o666, true, true),
        ("not even for others", 0o660, false, false),
    ] {
        let how = CreateOptions { mode, ..Default::default() };
        let file = root.create(&root.root(), name.as_bytes(), how).await.unwrap();
        file.write_at(0, fill(1, 1000)).await.unwrap();
        let node = file.node();
        file.close().await.unwrap();
        // Every user may list extended attributes. Only users with read permission may read their values.
        root.setxattr(&node, b"a", b"b", XattrMode::Either).await.unwrap();
        assert_eq!(user.listxattr(&node).await.unwrap(), ["a"]);
        assert_eq!(user.getxattr(&node, b"a").await.is_ok(), may_read, "{name}");
        let denied = |opened: client::Result<File>| opened.is_err_and(|e| e.is(types::Status::Access));
        let both = user.open(&node, OpenFlags::READ_WRITE).await;
        assert!(if may_read && may_write { both.is_ok() } else { denied(both) }, "{name}");
        if !may_read {
            assert!(denied(user.open(&node, OpenFlags::READ).await), "{name}");
        }
        if !may_write {
            assert!(denied(user.open(&node, OpenFlags::WRITE).await), "{name}");
            let cut = SetAttrs { size: Some(0), ..SetAttrs::default() };
            assert!(user.setattr(&node, &cut).await.unwrap_err().is(types::Status::Access), "{name}");
            continue;
        }
        let writer = user.open(&node, OpenFlags::WRITE).await.unwrap();
        writer.write_at(10, fill(2, 10)).await.unwrap();
        writer.fsync().await.unwrap();
        if may_read {
            let reader = user.open(&node, OpenFlags::READ).await.unwrap();
            assert!(reader.read_at(10, 10).await.unwrap().to_vec() == fill(2, 10));
            reader.close().await.unwrap();
        }
        writer.close().await.unwrap();
    }
    // The permission bits of a file also restrict its owner. Only the open that created the file is exempt.
    let dir = root.mkdir(&root.root(), b"free", 0o777).await.unwrap().0;
    let own = user.create(&dir, b"sealed", CreateOptions { mode: 0, ..Default::default() }).await.unwrap();
    own.write_at(0, fill(3, 100)).await.unwrap();
    let node = own.node();
    own.close().await.unwrap();
    for flags in [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::READ_WRITE] {
        assert!(user.open(&node, flags).await.is_err_and(|e| e.is(types::Status::Access)), "{flags:?}");
        root.open(&node, flags).await.unwrap().close().await.unwrap();
    }
    let counters = user.counters();
    assert_eq!((counters.written_via_mgr, counters.read_via_mgr, counters.reconnects), (0, 0, 0), "{counters:?}");
}

/// One program appends to a log while another program reads the log. The mgr permits READ only under an open for
/// reading, so the reader's open must not share the stateid of the write-only open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_can_be_opened_for_reading_while_a_writer_has_it_write_only() {
    let cluster = Cluster::start(2).await;
    for (threshold, len) in [("max", 100), ("max", 300_000), ("0", 300_000)] {
        let policy = format!("write_threshold={threshold},read_threshold={threshold}");
        let policy = client::Settings::parse(Origin::Mount, &policy).unwrap();
        let mount = cluster.mount(Options { policy, ..options() }).await;
        let name = format!("log {threshold} {len}");
        let mut model = fill(7, len).to_vec();
        let made = mount.create(&mount.root(), name.as_bytes(), CreateOptions::default()).await.unwrap();
        made.write_at(0, model.clone().into()).await.unwrap();
        let node = made.node();
        made.close().await.unwrap();
        for locks in [false, true] {
            let writer = mount.open(&node, OpenFlags::WRITE).await.unwrap();
            if locks {
                assert!(writer.try_lock(1, ByteRange { offset: 0, len: 10 }, LockKind::Write).await.unwrap());
            }
            let reader = mount.open(&node, OpenFlags::READ).await.unwrap();
            assert_eq!(read_all(&reader).await, model, "{name}");
            writer.write_at(model.len() as u64, fill(8, 50)).await.unwrap();
            model.extend_from_slice(&fill(8, 50));
            assert_eq!(read_all(&reader).await, model, "{name}");
            reader.close().await.unwrap();
            // The mgr permits a SEEK to data under a write-only open.
            assert_eq!(writer.next_data(0).await.unwrap().unwrap().offset, 0);
            writer.close().await.unwrap();
        }
    }
}

/// Two clients truncate one file at the same time. There is no deadlock, although the mgr executes each truncate only
/// after the other client has returned its layout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_truncate_one_file_concurrently() {
    let cluster = Cluster::start(2).await;
    let (one, other) = (cluster.mount(options()).await, cluster.mount(options()).await);
    let made = one.create(&one.root(), b"f", CreateOptions::default()).await.unwrap();
    let again = other.open(&made.node(), OpenFlags::READ_WRITE).await.unwrap();
    for round in 0..20 {
        made.write_at(0, fill(round, 3000)).await.unwrap();
        again.write_at(5000, fill(round, 3000)).await.unwrap();
        let (first, second) = tokio::join!(made.set_len(1000), again.set_len(2000));
        first.unwrap();
        second.unwrap();
        assert!([1000, 2000].contains(&made.refresh().await.unwrap().size));
    }
    again.close().await.unwrap();
    made.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_sends_bytes_to_the_iods_and_only_fsync_commits_them() {
    let cluster = Cluster::start(2).await;
    let mount = cluster.mount(options()).await;
    let file = mount.create(&mount.root(), b"f", CreateOptions::default()).await.unwrap();
    for n in 0..10 {
        file.write_at(n * 100, fill(n, 100)).await.unwrap();
        file.push().await.unwrap();
    }
    file.push().await.unwrap();
    let counters = mount.counters();
    assert_eq!((counters.rpc("WRITE"), counters.rpc("COMMIT"), counters.written_direct), (10, 0, 1000));
    file.fsync().await.unwrap();
    assert_eq!(mount.counters().rpc("COMMIT"), 1);
    file.close().await.unwrap();
}
