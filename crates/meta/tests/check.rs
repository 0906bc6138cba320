//! Tests of `weir fsck` on the metadata store. Each test plants one kind of fault, verifies that the check finds the
//! fault, and repairs the fault.

#[path = "common/block.rs"]
mod block;

use block::block;
use bytes::Bytes;
use meta::engine::{Batch, Engine, Outcome, Walk, Write};
use meta::schema::{self, Body, Core, Counts, Dentry, FileIntent, Intent, NextId, Record, Tail, XattrTally, bucket};
use meta::schema::{CookieKey, FormatRecord};
use meta::{CheckMemory, CreateMode, Doomed, Event, Fault, Format, Layout, Memory, Mended, Namespace, merge};
use std::sync::Arc;
use types::{Cred, FileId, FileKind, Fsid, Generation, SetAttrs, Status, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };
const KEY: CookieKey = CookieKey([2; 16]);
const ROOT: FileId = FileId::ROOT;

/// A store with a small tree: directories `/a/b/c`, a file `f` with two names, a file `g` with extended attributes, a
/// symbolic link, and an orphan.
struct World {
    store: Arc<Memory>,
    fs: Namespace<Arc<Memory>>,
    a: FileId,
    b: FileId,
    c: FileId,
    f: FileId,
    g: FileId,
    orphan: FileId,
}

fn mode() -> SetAttrs {
    SetAttrs { mode: Some(0o755), ..SetAttrs::default() }
}

impl World {
    fn new() -> Self {
        let store = Arc::new(Memory::new(merge));
        let format =
            Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: KEY.0, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        let fs = block(Namespace::format(store.clone(), format)).expect("format");
        let root = Cred::root();
        let dir = |parent, name: &[u8]| block(fs.mkdir(&root, NOW, parent, name, &mode())).expect("mkdir").attrs.id;
        let a = dir(ROOT, b"a");
        let b = dir(a, b"b");
        let c = dir(b, b"c");
        let layout = Layout { kind: 9, body: Bytes::from_static(b"there") };
        let file = |name: &[u8]| {
            let how = CreateMode::Guarded(mode());
            block(fs.create(&root, NOW, a, name, &how, Some(&layout))).expect("create").file.attrs.id
        };
        let (f, g, orphan) = (file(b"f"), file(b"g"), file(b"o"));
        block(fs.link(&root, NOW, f, b, b"f2")).expect("link");
        for (name, value) in [(&b"x"[..], &b"1"[..]), (b"y", b"23")] {
            block(fs.setxattr(&root, NOW, g, name, value, meta::SetXattr::Either)).expect("setxattr");
        }
        block(fs.symlink(&root, NOW, a, b"s", b"target", &mode())).expect("symlink");
        block(fs.remove(&root, NOW, a, b"o")).expect("remove");
        World { store, fs, a, b, c, f, g, orphan }
    }

    fn plant(&self, writes: Vec<(Vec<u8>, Option<Bytes>)>) {
        let writes = writes.into_iter().map(|(key, value)| (key, value.map_or(Write::Delete, Write::Put))).collect();
        let outcome = self.store.submit(Batch { writes, ..Batch::default() }).wait();
        assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    }

    fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.store.view().expect("view").get(key).expect("value")
    }

    fn core(&self, id: FileId, change: impl FnOnce(&mut Core)) -> (Vec<u8>, Option<Bytes>) {
        let key = schema::core_key(id);
        let mut core = Core::from_value(self.get(&key).expect("core")).expect("core");
        change(&mut core);
        (key, Some(core.to_value()))
    }

    fn tail(&self, id: FileId, change: impl FnOnce(&mut Tail)) -> (Vec<u8>, Option<Bytes>) {
        let key = schema::tail_key(id);
        let mut tail = Tail::from_value(self.get(&key).expect("tail")).expect("tail");
        change(&mut tail);
        (key, Some(tail.to_value()))
    }

    /// Returns the key and the record of an existing directory entry.
    fn name(&self, dir: FileId, name: &[u8]) -> (Vec<u8>, Dentry) {
        let bucket = bucket(&KEY, name);
        let keys = bucket.map(|cookie| schema::dentry_key(dir, cookie));
        let mut found = keys.filter_map(|key| Some((Dentry::from_value(self.get(&key)?).expect("name"), key)));
        let (entry, key) = found.find(|(entry, _)| entry.name == name).expect("a name that is there");
        (key, entry)
    }

    fn codes(&self) -> Vec<&'static str> {
        self.fs.check().expect("check").iter().map(Fault::code).collect()
    }

    /// Repairs faults until the check finds no more faults. Returns the codes of the faults that the first check found.
    fn mend_all(&self) -> Vec<&'static str> {
        let first = self.codes();
        for _ in 0..6 {
            let faults = self.fs.check().expect("check");
            if faults.is_empty() {
                return first;
            }
            for fault in &faults {
                assert!(!fault.to_string().is_empty() && !fault.remedy().is_empty());
                let would = self.fs.would_mend(fault).expect("a look");
                let mended = block(self.fs.mend(NOW, fault)).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
                assert_eq!(mended, would, "{fault:?}");
                assert_ne!(mended, Mended::No, "{fault:?}");
                if !matches!(fault, Fault::Files { .. }) {
                    assert_eq!(block(self.fs.mend(NOW, fault)), Ok(Mended::Gone), "{fault:?} twice");
                }
            }
        }
        panic!("there is no end to faults: {:?}", self.fs.check());
    }
}

/// Plants damage in a new store, expects the check to report the fault codes `want`, and repairs the faults. Returns
/// the repaired store.
fn mended(want: &[&str], plant: impl FnOnce(&World) -> Vec<(Vec<u8>, Option<Bytes>)>) -> World {
    let world = World::new();
    assert_eq!(world.codes(), [""; 0]);
    let writes = plant(&world);
    world.plant(writes);
    let mut found = world.mend_all();
    found.sort_unstable();
    assert_eq!(found, want);
    // The repaired store works: lookups find all names, a create succeeds, and the check finds no fault.
    let root = Cred::root();
    let names = world.fs.readdir(&root, ROOT, 0, 100).expect("names").entries;
    for entry in &names {
        assert_eq!(world.fs.lookup(&root, ROOT, &entry.name).map(|attrs| attrs.id), Ok(entry.attrs.id));
    }
    block(world.fs.create(&root, NOW, ROOT, b"new", &CreateMode::Guarded(mode()), None)).expect("create");
    assert_eq!(world.codes(), [""; 0]);
    world
}

/// Plants damage that no automatic repair can fix, and expects the repair to return `Mended::No`.
fn expect_unrepaired(want: &str, plant: impl FnOnce(&World) -> Vec<(Vec<u8>, Option<Bytes>)>) {
    let world = World::new();
    let writes = plant(&world);
    world.plant(writes);
    let faults = world.fs.check().expect("check");
    let fault = faults.iter().find(|fault| fault.code() == want).unwrap_or_else(|| panic!("{want} in {faults:?}"));
    assert_eq!(world.fs.would_mend(fault), Ok(Mended::No));
    assert_eq!(block(world.fs.mend(NOW, fault)), Ok(Mended::No));
    assert!(world.codes().contains(&want));
}

fn junk() -> Option<Bytes> {
    Some(Bytes::from_static(b"junk"))
}

#[test]
fn damaged_records_are_repaired_where_possible() {
    let world = mended(&["link-count", "record-damaged"], |world| vec![(world.name(world.a, b"f").0, junk())]);
    assert_eq!(world.fs.getattr(world.f).map(|attrs| attrs.nlink), Ok(1));
    mended(&["inode-nameless", "record-damaged"], |world| vec![(world.name(world.a, b"g").0, junk())]);
    mended(&["record-damaged"], |world| vec![(schema::tail_key(world.a), junk())]);
    let world = mended(&["record-damaged"], |world| vec![(schema::tail_key(world.g), junk())]);
    assert_eq!(world.fs.intents_of(world.g), Ok(vec![Intent::Written]), "somebody has to ask the iods for its size");
    mended(&["record-damaged"], |_| vec![(schema::doomed_key(FileId(3000)), junk())]);
    mended(&["record-damaged"], |world| vec![(schema::unused_key(world.f), junk())]);
    mended(&["record-damaged"], |world| vec![(schema::orphan_key(world.orphan), junk())]);
    mended(&["record-damaged"], |world| vec![(schema::intent_key(world.f, 1), junk())]);
    mended(&["record-damaged"], |world| vec![(schema::intent_key(world.f, 1), Some(Intent::Written.to_value()))]);
    expect_unrepaired("record-damaged", |world| vec![(schema::core_key(world.f), junk())]);
    expect_unrepaired("record-damaged", |_| vec![(schema::NEXT_ID.to_vec(), junk())]);
    expect_unrepaired("record-damaged", |_| vec![(schema::COUNTS.to_vec(), junk())]);
    expect_unrepaired("record-damaged", |_| vec![(schema::FORMAT.to_vec(), junk())]);
}

#[test]
fn unknown_keys_are_reported_and_kept() {
    for key in [&b"q"[..], b"fx", b"a", b"zzz", b"d123", b"i123456789", b"o1", b"u1", b"w1", b"x1"] {
        expect_unrepaired("key-unknown", |_| vec![(key.to_vec(), junk())]);
    }
}

#[test]
fn a_missing_root_is_reported_and_not_repaired() {
    expect_unrepaired("root-missing", |_| vec![(schema::core_key(ROOT), None), (schema::tail_key(ROOT), None)]);
}

#[test]
fn inodes_with_only_one_record_are_repaired() {
    let world = mended(&["inode-half"], |world| vec![(schema::tail_key(world.b), None)]);
    assert_eq!(world.fs.getattr(world.b).map(|attrs| (attrs.size, attrs.nlink)), Ok((2, 3)));
    mended(&["inode-other-half"], |world| {
        let tail = world.get(&schema::tail_key(world.g));
        vec![(schema::tail_key(FileId(3000)), tail)]
    });
}

#[test]
fn wrong_directory_entries_are_repaired() {
    let gone = |world: &World| (world.name(world.a, b"g"), FileId(3000));
    let world = mended(&["name-dangling"], |world| {
        let ((_, entry), child) = gone(world);
        let key = schema::dentry_key(world.a, bucket(&KEY, b"no").start);
        let name = Dentry { child, name: Bytes::from_static(b"no"), ..entry }.to_value();
        vec![(key, Some(name)), world.tail(world.a, |tail| tail.size += 1)]
    });
    assert_eq!(world.fs.lookup(&Cred::root(), world.a, b"no"), Err(Status::NoEnt));
    mended(&["name-kind"], |world| {
        let (key, entry) = world.name(world.a, b"g");
        vec![(key, Some(Dentry { kind: FileKind::Fifo, ..entry }.to_value()))]
    });
    // If the file kind in a directory's entry is wrong, the parent's count of subdirectories is wrong too.
    mended(&["name-kind", "subdirectory-count"], |world| {
        let (key, entry) = world.name(world.a, b"b");
        vec![(key, Some(Dentry { kind: FileKind::Regular, ..entry }.to_value()))]
    });
    let world = mended(&["name-misplaced"], |world| {
        let (key, entry) = world.name(world.a, b"g");
        vec![(key, None), (schema::dentry_key(world.a, 300), Some(entry.to_value()))]
    });
    assert_eq!(world.fs.lookup(&Cred::root(), world.a, b"g").map(|attrs| attrs.id), Ok(world.g));
    mended(&["name-misplaced"], |world| {
        let (key, entry) = world.name(world.a, b"g");
        vec![(key.clone(), Some(Dentry { name: Bytes::from_static(b"bad/name"), ..entry }.to_value()))]
    });
    let world = mended(&["link-count", "name-twice"], |world| {
        let (key, entry) = world.name(world.a, b"g");
        let next = schema::cookie_of(&key).expect("cookie") + 1;
        let tail = world.tail(world.a, |tail| tail.size += 1);
        vec![(schema::dentry_key(world.a, next), Some(entry.to_value())), tail]
    });
    assert_eq!(world.fs.getattr(world.g).map(|attrs| attrs.nlink), Ok(1), "counted by names that were to go");
}

#[test]
fn misplaced_directories_are_repaired() {
    let world = mended(&["directory-parent"], |world| {
        vec![world.core(world.c, |core| core.body = Body::Directory { parent: world.a })]
    });
    assert_eq!(world.fs.parent(world.c), Ok(world.b));
    let second = |dir: FileId| {
        move |world: &World| {
            let (_, entry) = world.name(world.b, b"c");
            let dir = if dir == ROOT { ROOT } else { world.b };
            let key = schema::dentry_key(dir, bucket(&KEY, b"again").start);
            let name = Dentry { name: Bytes::from_static(b"again"), ..entry }.to_value();
            let tail = world.tail(dir, |tail| (tail.size, tail.subdirs) = (tail.size + 1, tail.subdirs + 1));
            vec![(key, Some(name)), tail]
        }
    };
    mended(&["directory-second-name"], second(ROOT));
    mended(&["directory-second-name"], second(FileId(0)));
    let world = mended(&["directory-circle"], |world| {
        // The planted damage moves the directory `a` below `c`, which is a descendant of `a`. This makes a loop of
        // directories.
        let (key, entry) = world.name(ROOT, b"a");
        let there = schema::dentry_key(world.c, bucket(&KEY, b"a").start);
        vec![
            (key, None),
            (there, Some(entry.to_value())),
            world.core(world.a, |core| core.body = Body::Directory { parent: world.c }),
            world.tail(ROOT, |tail| (tail.size, tail.subdirs) = (tail.size - 1, tail.subdirs - 1)),
            world.tail(world.c, |tail| (tail.size, tail.subdirs) = (1, 1)),
        ]
    });
    let lost = world.fs.lookup(&Cred::root(), ROOT, b"lost+found").expect("lost+found").id;
    assert_eq!(world.fs.parent(world.a), Ok(lost));
    let world = mended(&["directory-missing", "name-dangling"], |world| {
        let files = Counts { files: world.fs.files().expect("count") - 1 }.to_value();
        let gone = [schema::core_key(world.b), schema::tail_key(world.b)];
        gone.into_iter().map(|key| (key, None)).chain([(schema::COUNTS.to_vec(), Some(files))]).collect()
    });
    let again = world.fs.lookup(&Cred::root(), world.b, b"f2").map(|attrs| attrs.id);
    assert_eq!(again, Ok(world.f), "its names are kept");
}

#[test]
fn inodes_without_names_are_recovered() {
    let root = Cred::root();
    let world = mended(&["inode-nameless"], |world| {
        vec![(world.name(world.a, b"g").0, None), world.tail(world.a, |tail| tail.size -= 1)]
    });
    let lost = world.fs.lookup(&root, ROOT, b"lost+found").expect("lost+found").id;
    assert_eq!(world.fs.lookup(&root, lost, format!("#{}", world.g).as_bytes()).map(|attrs| attrs.id), Ok(world.g));
    mended(&["inode-nameless"], |world| {
        let tail = world.tail(world.b, |tail| (tail.size, tail.subdirs) = (tail.size - 1, tail.subdirs - 1));
        vec![(world.name(world.b, b"c").0, None), tail]
    });
    let world = mended(&["orphan-lost"], |world| vec![(schema::orphan_key(world.orphan), None)]);
    assert_eq!(world.fs.orphans(FileId(0), 10), Ok(vec![world.orphan]));
}

#[test]
fn wrong_counts_are_repaired() {
    mended(&["link-count"], |world| vec![world.core(world.f, |core| core.names = 7)]);
    mended(&["link-count"], |world| vec![world.core(world.f, |core| core.names = 1)]);
    mended(&["entry-count"], |world| vec![world.tail(world.a, |tail| tail.size += 3)]);
    mended(&["entry-count", "subdirectory-count"], |world| {
        vec![world.tail(world.c, |tail| (tail.size, tail.subdirs) = (2, 2))]
    });
    mended(&["subdirectory-count"], |world| vec![world.tail(world.a, |tail| tail.subdirs = 0)]);
    mended(&["xattr-count"], |world| vec![world.core(world.g, |core| core.xattrs = XattrTally::default())]);
    mended(&["xattr-count"], |world| vec![world.core(world.f, |core| core.xattrs.bytes = 1)]);
    mended(&["xattr-stray"], |_| vec![(schema::xattr_key(FileId(3000), b"n"), junk())]);
    mended(&["bytes-stray"], |_| vec![(schema::bytes_key(FileId(3000)), junk())]);
    mended(&["bytes-stray"], |world| vec![(schema::bytes_key(world.f), junk())]);
    mended(&["inode-count"], |_| vec![(schema::COUNTS.to_vec(), Some(Counts { files: 3 }.to_value()))]);
    let world = mended(&["number-reused"], |_| vec![(schema::NEXT_ID.to_vec(), Some(NextId(3).to_value()))]);
    assert!(world.fs.next_id().expect("number") > world.orphan);
}

#[test]
fn stray_records_of_lists_are_removed() {
    mended(&["orphan-stray"], |world| vec![(schema::orphan_key(world.f), Some(Bytes::new()))]);
    mended(&["orphan-stray"], |_| vec![(schema::orphan_key(FileId(3000)), Some(Bytes::new()))]);
    let layout = Layout { kind: 9, body: Bytes::from_static(b"there") };
    let world = mended(&["doomed-alive"], |world| {
        let doomed = Doomed { id: world.f, generation: Generation(0), layout };
        vec![(schema::doomed_key(world.f), Some(doomed.to_value()))]
    });
    assert_eq!(world.fs.doomed(FileId(0), 10), Ok(vec![]));
    mended(&["intent-stray"], |world| vec![(schema::intent_key(world.a, 0), Some(Intent::Written.to_value()))]);
    mended(&["intent-stray"], |_| vec![(schema::intent_key(FileId(3000), 1), Some(Intent::Truncate(1).to_value()))]);
}

#[test]
fn intents_are_kept_until_forgotten_and_deleted_with_their_file() {
    let world = World::new();
    let noted = |file, intent| FileIntent { file, intent };
    let fenced = block(world.fs.fence(NOW, world.f)).expect("fence");
    let set = SetAttrs { size: Some(5), ..SetAttrs::default() };
    block(world.fs.truncate(&Cred::root(), NOW, world.f, &set, true)).expect("cut");
    let all = [Intent::Written, Intent::Truncate(5), Intent::Fence(fenced)];
    assert_eq!(world.fs.intents_of(world.f), Ok(all.to_vec()));
    // `remove_intents` keeps an intent if its stored value differs from the value that the caller passes.
    block(world.fs.remove_intents(NOW, &[noted(world.f, Intent::Truncate(4)), noted(world.f, Intent::Written)], false))
        .expect("forget");
    assert_eq!(world.fs.intents_of(world.f), Ok(all[1..].to_vec()));
    let listed = world.fs.intents(None, 100).expect("notes");
    assert_eq!(listed.len(), 4, "{listed:?}");
    for pair in listed.windows(2) {
        assert_eq!(world.fs.intents(Some(pair[0]), 1), Ok(vec![pair[1]]));
    }
    assert_eq!(block(world.fs.record_intent(NOW, noted(world.a, Intent::Written))), Err(Status::WrongType));
    assert_eq!(block(world.fs.record_intent(NOW, noted(FileId(3000), Intent::Written))), Err(Status::Stale));
    block(world.fs.record_intent(NOW, noted(world.orphan, Intent::Written))).expect("note");
    block(world.fs.reap(NOW, world.orphan)).expect("reap");
    assert_eq!(world.fs.intents_of(world.orphan), Ok(vec![]));
    assert_eq!(world.codes(), [""; 0]);
}

#[test]
fn the_written_length_is_kept_until_a_truncate() {
    let world = World::new();
    let written = || Tail::from_value(world.get(&schema::tail_key(world.f)).expect("tail")).expect("tail").written;
    let root = Cred::root();
    block(world.fs.record_write(&root, NOW, world.f, 50)).expect("write");
    assert_eq!(written(), 0, "nothing is known to be on a disk");
    block(world.fs.set_size(&root, NOW, world.f, 40, None)).expect("commit");
    assert_eq!((written(), world.fs.written(world.f)), (40, Ok(40)));
    let size = |size| SetAttrs { size: Some(size), ..SetAttrs::default() };
    block(world.fs.setattr(&root, NOW, world.f, &size(100), true)).expect("grow");
    assert_eq!(written(), 40, "what was added is a hole");
    block(world.fs.setattr(&root, NOW, world.f, &size(30), true)).expect("cut");
    assert_eq!(written(), 30);
}

#[test]
fn a_check_in_small_parts_finds_the_same_and_can_be_stopped() {
    let world = World::new();
    let faults = vec![
        world.core(world.f, |core| core.names = 7),
        world.core(world.g, |core| core.names = 7),
        world.core(world.c, |core| core.body = Body::Directory { parent: world.a }),
        (schema::tail_key(world.c), None),
    ];
    world.plant(faults);
    let whole = world.fs.check().expect("check");
    for inodes in 1..8 {
        let (mut parts, mut looked) = (Vec::new(), 0);
        let memory = CheckMemory { inodes, directories: inodes };
        let checked = world.fs.check_into(memory, &mut |event| {
            match event {
                Event::Found(fault) => parts.push(fault),
                Event::Looked(n) => looked += n,
            }
            Walk::On
        });
        checked.expect("check");
        assert!(looked > 20);
        let sorted = |faults: &[Fault]| {
            let mut texts: Vec<String> = faults.iter().map(|fault| format!("{fault:?}")).collect();
            texts.sort();
            texts
        };
        assert_eq!(sorted(&parts), sorted(&whole), "{inodes} inodes at a time");
    }
    let mut found = 0;
    let ended = world.fs.check_into(CheckMemory::default(), &mut |event| match event {
        Event::Found(_) => {
            found += 1;
            Walk::Stop
        }
        Event::Looked(_) => Walk::On,
    });
    assert_eq!((ended, found), (Ok(()), 1));
}

#[test]
fn an_empty_store_is_reported_as_unformatted() {
    let store = Memory::new(merge);
    let faults = meta::check(&*store.view().expect("view")).expect("check");
    assert_eq!(faults, [Fault::Record { key: schema::FORMAT.to_vec() }]);
    assert!(FormatRecord::look(b"junk").is_none());
}
