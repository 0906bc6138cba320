//! Tests of the embedded store in exceptional states: missing, damaged, in use, with the log of another store, on a
//! full disk, after a disk error, and after a power cut.

#[path = "common/block.rs"]
mod block;
#[path = "common/disk.rs"]
mod disk;

use block::block;
use disk::Disk;
use meta::engine::{Batch, Engine, Expect, Outcome, Write};
use meta::{
    CreateMode, Embedded, Ending, Format, Layout, Namespace, OpenError, SetXattr, Step, StorageBackend, StoreError,
    merge,
};
use proptest::prelude::*;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;
use types::{Cred, FileId, Fsid, SetAttrs, Status, Timestamp, limits};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };

fn format() -> Format {
    Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: [3; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 }
}

fn new_file() -> CreateMode {
    CreateMode::Guarded(SetAttrs { mode: Some(0o644), ..SetAttrs::default() })
}

fn on(disk: &Disk) -> Result<Embedded, StoreError> {
    Embedded::on(disk.clone(), disk.log(1 << 20), [9; 16], merge, || None)
}

#[test]
fn unusable_stores_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("meta");
    assert!(matches!(Embedded::open(&path, merge), Err(StoreError::Missing(p)) if p == path));
    std::fs::write(&path, "this is a letter and not a store".repeat(1000)).expect("write");
    assert!(matches!(Embedded::open(&path, merge), Err(StoreError::Damaged { .. })));
    assert!(matches!(Embedded::create(&path, [9; 16], merge), Err(StoreError::Exists(p)) if p == path));
    assert!(matches!(Embedded::create(&dir.path().join("no/meta"), [9; 16], merge), Err(StoreError::Unusable { .. })));

    let path = dir.path().join("good");
    let store = Embedded::create(&path, [9; 16], merge).expect("store");
    let second = Embedded::open(&path, merge).expect_err("in use");
    assert!(second.to_string().contains("another mgr is using the metadata store"), "{second}");
    assert!(second.to_string().contains("good"), "{second}");
    assert!(matches!(Namespace::open(store), Err(OpenError::NotFormatted)));
    let fs = block(Namespace::format(Embedded::open(&path, merge).expect("store"), format())).expect("format");
    assert_eq!(fs.fsid(), Fsid([7; 16]));
    drop(fs);
    let again = block(Namespace::format(Embedded::open(&path, merge).expect("store"), format()));
    assert!(matches!(again, Err(OpenError::Formatted)));
}

#[test]
fn a_store_with_a_missing_or_foreign_log_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let make = |name: &str, id: u8| {
        let path = dir.path().join(name);
        let store = Embedded::create(&path, [id; 16], merge).expect("store");
        drop(block(Namespace::format(store, format())).expect("format"));
        path
    };
    let (one, two) = (make("one.redb", 1), make("two.redb", 2));
    let log = |path: &std::path::Path| path.with_extension("log");
    let refused = |path: &std::path::Path| Embedded::open(path, merge).map(drop).expect_err("refused").to_string();
    let good = std::fs::read(log(&one)).expect("log");
    std::fs::copy(log(&two), log(&one)).expect("copy");
    assert!(
        refused(&one).contains("it belongs to another metadata store; put the log of this store back"),
        "{}",
        refused(&one)
    );
    std::fs::write(log(&one), &good[..good.len() - 1]).expect("write");
    assert!(refused(&one).contains("it is truncated"), "{}", refused(&one));
    std::fs::write(log(&one), vec![0; good.len()]).expect("write");
    assert!(refused(&one).contains("it is not a batch log of weir"), "{}", refused(&one));
    std::fs::remove_file(log(&one)).expect("remove");
    assert!(refused(&one).contains("one.log of the metadata store") && refused(&one).contains("is missing"));
    std::fs::write(log(&one), good).expect("write");
    assert!(Namespace::open(Embedded::open(&one, merge).expect("store")).is_ok());
    // The test removes the database file but not the log file. The remaining log file does not prevent the creation of
    // a new store.
    std::fs::remove_file(&two).expect("remove");
    make("two.redb", 3);
}

#[test]
fn old_and_unfinished_stores_are_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("store");
    drop(redb::Database::create(&path).expect("database"));
    let error = Embedded::open(&path, merge).expect_err("unfinished");
    assert!(matches!(&error, StoreError::Unfinished(p) if *p == path), "{error}");
    let database = redb::Database::create(&path).expect("database");
    let transaction = database.begin_write().expect("transaction");
    let table: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("weir");
    transaction.open_table(table).expect("table").insert(&b"f"[..], &b"record"[..]).expect("insert");
    transaction.commit().expect("commit");
    drop(database);
    let error = Embedded::open(&path, merge).expect_err("old");
    assert!(matches!(&error, StoreError::Old(p) if *p == path), "{error}");
}

#[test]
fn durable_batches_of_one_commit_group_share_one_log_flush() {
    let disk = Disk::default();
    let (store, mut stepper) =
        Embedded::stepped(disk.clone(), disk.log(1 << 20), [9; 16], merge, || None).expect("store");
    let before = disk.syncs();
    let put = |n: u64, durable| {
        let writes = vec![(n.to_be_bytes().to_vec(), Write::Put(vec![7; 100].into()))];
        store.submit(Batch { writes, durable, ..Batch::default() })
    };
    let second = Duration::from_secs(1);
    for n in 0..20 {
        let group = [put(3 * n, true), put(3 * n + 1, false), put(3 * n + 2, true)];
        stepper.step(second);
        assert!(group.into_iter().all(|pending| matches!(pending.wait(), Outcome::Committed { .. })));
    }
    assert_eq!(disk.syncs(), (before.0, before.1 + 20), "one sync for each commit group, none of the store");
    // Batches that are not durable need no flush. The first `settle` after these two batches makes both batches durable
    // with one flush. The second `settle` needs no flush.
    let flushes = [put(100, false), put(101, false)].map(|pending| {
        stepper.step(second);
        assert!(matches!(pending.wait(), Outcome::Committed { .. }));
        disk.syncs().1 - before.1
    });
    assert_eq!(flushes, [20, 20]);
    for _ in 0..2 {
        let settled = store.settle();
        stepper.step(second);
        assert!(matches!(settled.wait(), Outcome::Committed { .. }));
        assert_eq!(disk.syncs().1 - before.1, 21);
    }
    let counters = store.status().counters;
    assert_eq!((counters.flushes, counters.checkpoints, counters.batches), (21, 0, 64));
    // A checkpoint is due one second after the first batch. After this checkpoint, no checkpoint is due.
    assert_eq!(stepper.due(), Some(2 * second));
    assert_eq!(stepper.step(2 * second - Duration::from_nanos(1)), Step::Idle);
    assert_eq!(disk.syncs().0, before.0);
    assert_eq!(stepper.step(2 * second), Step::Checkpoint);
    let after = disk.syncs();
    assert!(after.0 > before.0);
    assert_eq!((stepper.due(), stepper.step(9 * second), disk.syncs()), (None, Step::Idle, after));
    assert_eq!(store.status().counters.checkpoints, 1);
    // The database has all changes, so closing the store needs no I/O.
    drop(store);
    assert_eq!((stepper.step(9 * second), disk.syncs()), (Step::Closed, after));
}

#[test]
fn replay_never_undoes_data_that_redb_flushed() {
    let disk = Disk::default();
    let open =
        |disk: &Disk| Embedded::stepped(disk.clone(), disk.log(1 << 20), [9; 16], merge, || None).expect("store");
    let (store, mut stepper) = open(&disk);
    for (value, keys, durable) in [(&b"old"[..], &[b"a"][..], true), (b"new", &[b"a", b"b"], false)] {
        let writes = keys.iter().map(|key| (key.to_vec(), Write::Put(value.into()))).collect();
        let pending = store.submit(Batch { writes, durable, ..Batch::default() });
        stepper.step(Duration::ZERO);
        assert!(matches!(pending.wait(), Outcome::Committed { .. }));
    }
    // The test drops the stepper (the writer of the store) without a checkpoint. redb flushes its data when the
    // database is closed, and the power cut then loses the unflushed end of the log.
    drop((store, stepper));
    let (store, _stepper) = open(&disk.after_power_cut(|_| 0));
    let view = store.view().expect("view");
    let found = [b"a", b"b"].map(|key| view.get(key).expect("get"));
    assert!(found == [Some("new".into()), Some("new".into())] || found == [Some("old".into()), None], "{found:?}");
}

#[test]
fn a_log_that_fills_early_grows() {
    let disk = Disk::default();
    let (store, mut stepper) =
        Embedded::stepped(disk.clone(), disk.log(1 << 30), [9; 16], merge, || None).expect("store");
    let value = bytes::Bytes::from(vec![7; 60 << 10]);
    let mut put = |n: u64| {
        let put = |part: u8| ([&n.to_be_bytes()[..], &[part]].concat(), Write::Put(value.clone()));
        let writes = (0..16).map(put).collect();
        let pending = store.submit(Batch { writes, durable: true, ..Batch::default() });
        assert_eq!(stepper.step(Duration::ZERO), Step::CommitGroup(1));
        assert!(matches!(pending.wait(), Outcome::Committed { .. }));
        let [_, log] = disk.contents();
        log.len() as u64 - 4096
    };
    let sizes: Vec<u64> = (0..24).map(&mut put).collect();
    assert_eq!((sizes[0], sizes[23]), (limits::META_LOG_BYTES, 4 * limits::META_LOG_BYTES));
    assert!(store.status().counters.checkpoints <= 3);
}

#[test]
fn a_store_of_another_version_is_refused() {
    let disk = Disk::default();
    drop(block(Namespace::format(on(&disk).expect("store"), format())).expect("format"));
    let put = |value: Vec<u8>| {
        let store = on(&disk).expect("store");
        let writes = vec![(meta::schema::FORMAT.to_vec(), Write::Put(value.into()))];
        assert!(matches!(
            store.submit(Batch { writes, durable: true, ..Batch::default() }).wait(),
            Outcome::Committed { .. }
        ));
        drop(store);
        Namespace::open(on(&disk).expect("store")).map(drop)
    };
    let newer = [&3u32.to_be_bytes()[..], b"weirmeta and what a newer version has"].concat();
    let refused = put(newer).expect_err("refused");
    assert!(matches!(refused, OpenError::WrongVersion { found: 3 }));
    assert!(refused.to_string().contains("format version 3, this program reads version 2"), "{refused}");
    assert!(matches!(put(b"something else".to_vec()), Err(OpenError::Foreign)));
    assert!(matches!(put([&2u32.to_be_bytes()[..], b"weirmeta"].concat()), Err(OpenError::Damaged)));
}

#[test]
fn a_full_disk_refuses_creates_but_allows_removals() {
    let free = Arc::new(AtomicU64::new(limits::META_RESERVE_BYTES));
    let told = free.clone();
    let disk = Disk::default();
    let told = move || Some(told.load(Ordering::Relaxed));
    let store = Embedded::on(disk.clone(), disk.log(64 << 10), [9; 16], merge, told).expect("store");
    let fs = block(Namespace::format(store, format())).expect("format");
    let root = Cred::root();
    let create = |name: &[u8]| block(fs.create(&root, NOW, FileId::ROOT, name, &new_file(), None)).map(|_| ());
    assert_eq!(create(b"before"), Ok(()));
    free.store(limits::META_RESERVE_BYTES - 1, Ordering::Relaxed);
    assert_eq!(create(b"while"), Err(Status::NoSpc));
    assert_eq!(fs.lookup(&root, FileId::ROOT, b"before").map(|attrs| attrs.nlink), Ok(1));
    assert_eq!(block(fs.settle()), Ok(()));
    let removed = block(fs.remove(&root, NOW, FileId::ROOT, b"before")).expect("remove");
    assert_eq!(block(fs.reap(NOW, removed.file.attrs.id)), Ok(None));
    free.store(0, Ordering::Relaxed);
    assert_eq!(block(fs.remove(&root, NOW, FileId::ROOT, b"before")).map(drop), Err(Status::NoEnt));
    free.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(create(b"after"), Ok(()));
    assert_eq!(fs.status().broken, None);
}

#[test]
fn removing_a_closed_file_deletes_it_in_the_same_batch() {
    let disk = Disk::default();
    let fs = block(Namespace::format(on(&disk).expect("store"), format())).expect("format");
    let (root, layout) = (Cred::root(), Layout { kind: 1, body: vec![1; 8].into() });
    let create = |name: &[u8], layout| {
        block(fs.create(&root, NOW, FileId::ROOT, name, &new_file(), layout)).expect("create").file.attrs.id
    };
    let remove = |name: &[u8], ends: bool| {
        let removed = block(fs.remove_ending(&root, NOW, FileId::ROOT, name, |_| ends)).expect("remove");
        (removed.end, removed.file.orphan, removed.file.attrs.nlink)
    };
    let (striped, bare, open) = (create(b"striped", Some(&layout)), create(b"bare", None), create(b"open", None));
    block(fs.setxattr(&root, NOW, bare, b"x", b"1", SetXattr::Either)).expect("setxattr");
    block(fs.link(&root, NOW, bare, FileId::ROOT, b"linked")).expect("link");
    assert_eq!(remove(b"linked", true), (None, false, 1), "it has another name");
    let before = fs.status().counters.batches;
    assert_eq!(remove(b"striped", true), (Some(Ending::Doomed), false, 0));
    assert_eq!(remove(b"bare", true), (Some(Ending::Whole), false, 0));
    assert_eq!(remove(b"open", false), (None, true, 0));
    assert_eq!(fs.status().counters.batches - before, 3);
    assert_eq!(fs.orphans(FileId(0), 10), Ok(vec![open]));
    assert_eq!(fs.doomed(FileId(0), 10).map(|all| all.iter().map(|one| one.id).collect()), Ok(vec![striped]));
    assert_eq!(fs.intents(None, 10).map(|all| all.iter().map(|noted| noted.file).collect()), Ok(vec![open]));
    assert_eq!((fs.getattr(striped), fs.getattr(bare)), (Err(Status::Stale), Err(Status::Stale)));
    assert_eq!(fs.files(), Ok(2), "the root and what is open");
    assert_eq!(fs.check(), Ok(Vec::new()));
}

/// Creates symbolic links with long targets until the store refuses one for lack of space. Returns the number in the
/// name of the refused link.
fn fill(fs: &Namespace<Embedded>, from: usize) -> usize {
    let target = vec![b't'; 3000];
    for n in from.. {
        let made = block(fs.symlink(&Cred::root(), NOW, FileId::ROOT, format!("{n}").as_bytes(), &target, &mode()));
        match made {
            Ok(_) => {}
            Err(Status::NoSpc) => return n,
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!("a disk is full some day")
}

fn mode() -> SetAttrs {
    SetAttrs { mode: Some(0o644), ..SetAttrs::default() }
}

#[test]
fn a_filling_disk_keeps_its_reserve_for_removals() {
    let disk = Disk::default();
    disk.limit(limits::META_RESERVE_BYTES + (20 << 20));
    let open = || {
        let told = disk.clone();
        Embedded::on(disk.clone(), disk.log(1 << 20), [9; 16], merge, move || Some(told.free())).expect("store")
    };
    let fs = block(Namespace::format(open(), format())).expect("format");
    let root = Cred::root();
    let made = fill(&fs, 0);
    assert!(made > 1000, "{made} files in 20 MiB");
    // At least half of the space that the store reserves for removals must still be free.
    assert!(disk.free() > limits::META_RESERVE_BYTES / 2, "{} bytes left", disk.free());
    assert_eq!(fs.status().broken, None);
    assert!(fs.lookup(&root, FileId::ROOT, b"7").is_ok());
    assert_eq!(fs.readdir(&root, FileId::ROOT, 0, 10).map(|page| page.entries.len()), Ok(10));
    // After the store is closed and opened again, the store still refuses creates for lack of space.
    drop(fs);
    let fs = Namespace::open(open()).expect("open");
    let name = format!("{made}");
    let refused = block(fs.create(&root, NOW, FileId::ROOT, name.as_bytes(), &new_file(), None));
    assert_eq!(refused.map(drop), Err(Status::NoSpc));
    for n in 0..made / 2 {
        assert!(block(fs.remove(&root, NOW, FileId::ROOT, format!("{n}").as_bytes())).is_ok());
    }
    assert_eq!(fs.status().broken, None);
    // The database file does not shrink, so removals free no space on the disk. When the disk becomes larger, the store
    // accepts creates again.
    disk.limit(limits::META_RESERVE_BYTES + (40 << 20));
    assert!(fill(&fs, made) > made);
    assert_eq!(fs.check(), Ok(Vec::new()));
}

#[test]
fn a_completely_full_disk_loses_nothing_and_needs_no_repair() {
    let disk = Disk::default();
    disk.limit(1 << 40);
    let open = || {
        let told = disk.clone();
        // In this test, the query for free space always reports free space, even when the disk is full. So the store
        // does not refuse batches before a write fails.
        Embedded::on(disk.clone(), disk.log(1 << 20), [9; 16], merge, move || Some(told.free().max(1 << 40)))
    };
    let fs = block(Namespace::format(open().expect("store"), format())).expect("format");
    let create = |fs: &Namespace<Embedded>, n: usize| {
        let name = format!("{n}");
        block(fs.create(&Cred::root(), NOW, FileId::ROOT, name.as_bytes(), &new_file(), None))
    };
    (0..50).for_each(|n| drop(create(&fs, n).expect("create")));
    disk.limit(0);
    let promised = (50..).find(|n| create(&fs, *n).is_err()).expect("it fails in the end");
    assert_eq!(create(&fs, promised).map(drop), Err(Status::Io));
    let failed = block(fs.failed());
    assert!(!failed.to_string().is_empty());
    drop(fs);
    // The open fails if the disk has too little space for it, and succeeds otherwise. The store must lose no data in
    // either case.
    match open() {
        Err(error) => assert!(matches!(error, StoreError::Full(_)), "{error}"),
        Ok(store) => drop(store),
    }
    disk.limit(1 << 40);
    let fs = Namespace::open(open().expect("store")).expect("open");
    for n in 0..promised {
        assert!(fs.lookup(&Cred::root(), FileId::ROOT, format!("{n}").as_bytes()).is_ok(), "file {n} of {promised}");
    }
    assert_eq!(fs.check(), Ok(Vec::new()));
}

#[test]
fn a_disk_error_stops_the_store_for_good_and_loses_nothing() {
    let disk = Disk::default();
    let fs = block(Namespace::format(on(&disk).expect("store"), format())).expect("format");
    let root = Cred::root();
    let create = |name: &[u8]| block(fs.create(&root, NOW, FileId::ROOT, name, &new_file(), None)).map(|_| ());
    assert_eq!(create(b"kept"), Ok(()));
    disk.break_after(0);
    assert_eq!(create(b"lost"), Err(Status::Io));
    disk.break_after(usize::MAX);
    assert_eq!(create(b"later"), Err(Status::Io));
    assert_eq!(fs.getattr(FileId::ROOT), Err(Status::Io));
    assert!(fs.status().broken.is_some_and(|broken| broken.to_string().contains("the disk is broken")));
    drop(fs);
    let fs = Namespace::open(on(&disk.after_power_cut(|_| 0)).expect("store")).expect("open");
    assert!(fs.lookup(&root, FileId::ROOT, b"kept").is_ok());
    assert_eq!(fs.lookup(&root, FileId::ROOT, b"later"), Err(Status::NoEnt));
}

#[test]
fn unstable_size_changes_are_durable_after_settle() {
    let disk = Disk::default();
    let fs = block(Namespace::format(on(&disk).expect("store"), format())).expect("format");
    let root = Cred::root();
    let file = block(fs.create(&root, NOW, FileId::ROOT, b"f", &new_file(), None)).expect("create").file.attrs.id;
    let flushes = fs.status().counters.flushes;
    for end in 1..=50 {
        let noted = block(fs.record_write(&root, NOW, file, end)).expect("note");
        assert_eq!((noted.before.size, noted.after.size), (end - 1, end));
        assert_eq!(fs.getattr(file), Ok(noted.after));
    }
    assert_eq!(fs.status().counters.flushes, flushes);
    assert_eq!(block(fs.settle()), Ok(()));
    assert_eq!(fs.status().counters.flushes, flushes + 1);
    let cut = Namespace::open(on(&disk.after_power_cut(|_| 0)).expect("store")).expect("open");
    assert_eq!(cut.getattr(file).map(|attrs| attrs.size), Ok(50));
}

#[test]
fn checkpoints_run_without_requests_when_callers_lead() {
    let disk = Disk::default();
    let fs = block(Namespace::format(on(&disk).expect("store").led_by_callers(), format())).expect("format");
    let (root, target) = (Cred::root(), vec![b't'; 3000]);
    let link = |n: usize| {
        let made = block(fs.symlink(&root, NOW, FileId::ROOT, format!("{n}").as_bytes(), &target, &mode()));
        assert!(made.is_ok(), "{made:?}");
    };
    // The first create also allocates a block of inode numbers, so run this create before the counters are read.
    link(0);
    let before = fs.status().counters;
    (1..11).for_each(link);
    let after = fs.status().counters;
    assert_eq!((after.flushes - before.flushes, after.batches - before.batches), (10, 10));
    // Even if no more batches arrive, the writer's thread makes a checkpoint when the checkpoint is due.
    while fs.status().counters.checkpoints == before.checkpoints {
        std::thread::yield_now();
    }
    // The next symbolic links exceed the memory limit of the memtable, so the memtable moves into the database
    // several times.
    (11..2000).for_each(link);
    drop(fs);
    let fs = Namespace::open(on(&disk).expect("store")).expect("open");
    assert_eq!(fs.getattr(FileId::ROOT).map(|root| root.size), Ok(2000));
    assert_eq!(fs.check(), Ok(Vec::new()));
}

/// A storage backend that records which threads flush the database file.
#[derive(Clone, Debug, Default)]
struct Watched(Disk, Arc<Mutex<HashSet<ThreadId>>>);

impl StorageBackend for Watched {
    fn len(&self) -> io::Result<u64> {
        StorageBackend::len(&self.0)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        StorageBackend::set_len(&self.0, len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.1.lock().expect("threads").insert(std::thread::current().id());
        self.0.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

#[test]
fn no_calling_thread_checkpoints_a_full_log() {
    let watched = Watched::default();
    let log = watched.0.log(64 << 10);
    let store = Embedded::on(watched.clone(), log, [9; 16], merge, || None).expect("store");
    let fs = block(Namespace::format(store.led_by_callers(), format())).expect("format");
    watched.1.lock().expect("threads").clear();
    let (root, target) = (Cred::root(), vec![b't'; 1000]);
    let before = fs.status().counters;
    for n in 0..500 {
        let made = block(fs.symlink(&root, NOW, FileId::ROOT, format!("{n}").as_bytes(), &target, &mode()));
        assert!(made.is_ok(), "{made:?}");
    }
    assert!(fs.status().counters.checkpoints > before.checkpoints, "the log is far too short");
    let threads = watched.1.lock().expect("threads").clone();
    assert!(!threads.is_empty() && !threads.contains(&std::thread::current().id()));
}

#[test]
fn concurrent_creates_share_a_flush() {
    let disk = Disk::default();
    let fs = block(Namespace::format(on(&disk).expect("store"), format())).expect("format");
    let root = Cred::root();
    let how = new_file();
    let names: Vec<String> = (0..500).map(|n| format!("file-{n}")).collect();
    block(fs.create(&root, NOW, FileId::ROOT, b"first", &how, None)).expect("create");
    let before = fs.status().counters;
    disk.hold_syncs();
    // The sync of the first create's flush is blocked, so all other creates wait in the queue.
    let creates = names.iter().map(|name| fs.create(&root, NOW, FileId::ROOT, name.as_bytes(), &how, None));
    let mut all = Box::pin(futures_util::future::join_all(creates));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(all.as_mut().poll(&mut context).is_pending());
    disk.wait_for_sync();
    disk.release_syncs();
    let made = block(all);
    assert!(made.iter().all(Result::is_ok));
    let after = fs.status().counters;
    assert_eq!(after.batches - before.batches, 500);
    assert_eq!(after.conflicts, before.conflicts);
    // The first commit group contains the creates that were queued when this commit group began, and the second commit
    // group contains all other creates.
    assert!(after.flushes - before.flushes <= 2, "{} flushes", after.flushes - before.flushes);
    // Each create must report the change attribute of the directory immediately before and after its own change.
    let mut changes: Vec<_> = made.into_iter().flatten().map(|made| (made.dir.before, made.dir.after)).collect();
    changes.sort();
    assert!(changes.windows(2).all(|pair| pair[0].1 == pair[1].0));
    let root_dir = fs.getattr(FileId::ROOT).expect("root");
    assert_eq!((root_dir.size, Some(root_dir.change)), (501, changes.last().map(|change| change.1)));
}

#[test]
fn batches_over_a_limit_are_refused() {
    let store = on(&Disk::default()).expect("store");
    let put = |key: usize, value: usize| Batch {
        writes: vec![(vec![1; key], Write::Put(vec![0; value].into()))],
        ..Batch::default()
    };
    assert!(matches!(store.submit(put(limits::KEY_MAX, limits::VALUE_MAX)).wait(), Outcome::Committed { .. }));
    for batch in [
        put(limits::KEY_MAX + 1, 0),
        put(1, limits::VALUE_MAX + 1),
        Batch { writes: vec![(vec![1], Write::Delete); limits::BATCH_WRITES_MAX + 1], ..Batch::default() },
        Batch { expects: vec![Expect::Absent(vec![1]); limits::BATCH_EXPECTS_MAX + 1], ..Batch::default() },
        Batch { writes: vec![(vec![1], Write::Put(vec![0; 60_000].into())); 20], ..Batch::default() },
    ] {
        assert!(matches!(store.submit(batch).wait(), Outcome::TooLarge));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Cuts the power at a random write or sync, and keeps a random part of the unsynced data. All acknowledged creates
    /// must survive.
    #[test]
    fn a_power_cut_keeps_all_acknowledged_creates(at in 0..400usize, seed in any::<u64>()) {
        let disk = Disk::default();
        let fs = block(Namespace::format(on(&disk).expect("store"), format())).expect("format");
        let root = Cred::root();
        disk.break_after(at);
        let mut names = Vec::new();
        for n in 0..60u32 {
            let name = format!("{n}");
            let created = block(fs.create(&root, NOW, FileId::ROOT, name.as_bytes(), &new_file(), None));
            let Ok(created) = created else { break };
            names.push((name, created.file.attrs));
        }
        let mut state = seed;
        let cut = disk.after_power_cut(|len| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match state >> 62 {
                0 => 0,
                1 => (state >> 32) as usize % (len + 1),
                _ => len,
            }
        });
        let cut = Namespace::open(on(&cut).expect("store")).expect("open");
        for (name, attrs) in &names {
            prop_assert_eq!(cut.lookup(&root, FileId::ROOT, name.as_bytes()), Ok(*attrs));
        }
        // Of the creates that were not acknowledged, only the create in progress at the power cut may have happened,
        // and then completely.
        let dir = cut.getattr(FileId::ROOT).expect("root");
        let there = cut.readdir(&root, FileId::ROOT, 0, 1000).expect("names").entries.len() as u64;
        prop_assert!(there - names.len() as u64 <= 1);
        prop_assert_eq!((dir.size, cut.files()), (there, Ok(there + 1)));
        // The store does not allocate the inode numbers of existing files again.
        let new = block(cut.create(&root, NOW, FileId::ROOT, b"new", &new_file(), None)).expect("create");
        prop_assert!(names.iter().all(|(_, attrs)| attrs.id < new.file.attrs.id));
    }
}
