//! The embedded store: what it does when it is missing, foreign, in use, full, broken or cut from its power.

#[path = "common/block.rs"]
mod block;
#[path = "common/disk.rs"]
mod disk;

use block::block;
use disk::Disk;
use meta::engine::{Batch, Engine, Expect, Outcome, Write};
use meta::{Embedded, Format, How, Namespace, OpenError, StoreError, merge};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{Cred, FileId, Fsid, SetAttrs, Status, Timestamp, limits};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };

fn format() -> Format {
    Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: [3; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 }
}

fn new_file() -> How {
    How::Guarded(SetAttrs { mode: Some(0o644), ..SetAttrs::default() })
}

fn on(disk: &Disk) -> Result<Embedded, StoreError> {
    Embedded::on(disk.clone(), merge, || None)
}

#[test]
fn a_store_that_cannot_be_used_says_why() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("meta");
    assert!(matches!(Embedded::open(&path, merge), Err(StoreError::Missing(p)) if p == path));
    std::fs::write(&path, "this is a letter and not a store".repeat(1000)).expect("write");
    assert!(matches!(Embedded::open(&path, merge), Err(StoreError::Damaged { .. })));
    assert!(matches!(Embedded::create(&path, merge), Err(StoreError::Exists(p)) if p == path));
    assert!(matches!(Embedded::create(&dir.path().join("no/meta"), merge), Err(StoreError::Unusable { .. })));

    let path = dir.path().join("good");
    let store = Embedded::create(&path, merge).expect("store");
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
    let newer = [&2u32.to_be_bytes()[..], b"weirmeta and what a newer version has"].concat();
    let refused = put(newer).expect_err("refused");
    assert!(matches!(refused, OpenError::WrongVersion { found: 2 }));
    assert!(refused.to_string().contains("format version 2, this program speaks 1"), "{refused}");
    assert!(matches!(put(b"something else".to_vec()), Err(OpenError::Foreign)));
    assert!(matches!(put([&1u32.to_be_bytes()[..], b"weirmeta"].concat()), Err(OpenError::Damaged)));
}

#[test]
fn a_full_disk_refuses_new_files_but_lets_old_ones_go() {
    let free = Arc::new(AtomicU64::new(limits::META_RESERVE_BYTES));
    let told = free.clone();
    let store = Embedded::on(Disk::default(), merge, move || Some(told.load(Ordering::Relaxed))).expect("store");
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
    assert_eq!(fs.standing().broken, None);
}

#[test]
fn a_broken_disk_breaks_the_store_for_good_and_loses_nothing() {
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
    assert!(fs.standing().broken.is_some_and(|broken| broken.to_string().contains("the disk is broken")));
    drop(fs);
    let fs = Namespace::open(on(&disk.after_power_cut(|_| 0)).expect("store")).expect("open");
    assert!(fs.lookup(&root, FileId::ROOT, b"kept").is_ok());
    assert_eq!(fs.lookup(&root, FileId::ROOT, b"later"), Err(Status::NoEnt));
}

#[test]
fn unstable_notes_survive_once_settled() {
    let disk = Disk::default();
    let fs = block(Namespace::format(on(&disk).expect("store"), format())).expect("format");
    let root = Cred::root();
    let file = block(fs.create(&root, NOW, FileId::ROOT, b"f", &new_file(), None)).expect("create").file.attrs.id;
    let flushes = fs.standing().counters.flushes;
    for end in 1..=50 {
        let noted = block(fs.note_write(&root, NOW, file, end)).expect("note");
        assert_eq!((noted.before.size, noted.after.size), (end - 1, end));
        assert_eq!(fs.getattr(file), Ok(noted.after));
    }
    assert_eq!(fs.standing().counters.flushes, flushes);
    assert_eq!(block(fs.settle()), Ok(()));
    assert_eq!(fs.standing().counters.flushes, flushes + 1);
    let cut = Namespace::open(on(&disk.after_power_cut(|_| 0)).expect("store")).expect("open");
    assert_eq!(cut.getattr(file).map(|attrs| attrs.size), Ok(50));
}

#[test]
fn concurrent_creates_share_a_flush() {
    let disk = Disk::default();
    let fs = block(Namespace::format(on(&disk).expect("store"), format())).expect("format");
    let root = Cred::root();
    let how = new_file();
    let names: Vec<String> = (0..500).map(|n| format!("file-{n}")).collect();
    block(fs.create(&root, NOW, FileId::ROOT, b"first", &how, None)).expect("create");
    let before = fs.standing().counters;
    disk.hold_syncs();
    // Everything is queued while the first flush waits.
    let creates = names.iter().map(|name| fs.create(&root, NOW, FileId::ROOT, name.as_bytes(), &how, None));
    let mut all = Box::pin(futures_util::future::join_all(creates));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(all.as_mut().poll(&mut context).is_pending());
    disk.wait_for_sync();
    disk.release_syncs();
    let made = block(all);
    assert!(made.iter().all(Result::is_ok));
    let after = fs.standing().counters;
    assert_eq!(after.batches - before.batches, 500);
    assert_eq!(after.conflicts, before.conflicts);
    // The first window took what there was when it began, the second one the rest.
    assert!(after.flushes - before.flushes <= 2, "{} flushes", after.flushes - before.flushes);
    // Every create saw its own change of the directory, atomically.
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

    /// The power goes at any write or sync; of what was not synced, any part of any write may be on the disk.
    #[test]
    fn a_power_cut_loses_nothing_that_was_promised(at in 0..400usize, seed in any::<u64>()) {
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
        // At most the one that was under way is there besides, and whole.
        let dir = cut.getattr(FileId::ROOT).expect("root");
        let there = cut.readdir(&root, FileId::ROOT, 0, 1000).expect("names").entries.len() as u64;
        prop_assert!(there - names.len() as u64 <= 1);
        prop_assert_eq!((dir.size, cut.files()), (there, Ok(there + 1)));
        // Numbers are not used again.
        let new = block(cut.create(&root, NOW, FileId::ROOT, b"new", &new_file(), None)).expect("create");
        prop_assert!(names.iter().all(|(_, attrs)| attrs.id < new.file.attrs.id));
    }
}
