//! Tests of names with equal hashes in a directory. The tests write entries with such names to the store directly,
//! because only the secret key makes it possible to find names with equal hashes.

#[path = "common/block.rs"]
mod block;
#[path = "common/disk.rs"]
mod disk;

use block::block;
use bytes::Bytes;
use disk::Disk;
use meta::engine::{Batch, Broken, Engine, Outcome, Pending, StoreStatus, View, Write};
use meta::schema::{self, CookieKey, Dentry, Record, bucket};
use meta::{CreateMode, Embedded, Format, Namespace, merge};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use types::{Cred, FileId, FileKind, Fsid, SetAttrs, Status, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };
const KEY: [u8; 16] = [2; 16];
const ROOT: FileId = FileId::ROOT;

struct World {
    disk: Disk,
    store: Arc<Embedded>,
    fs: Namespace<Arc<Embedded>>,
    other: FileId,
}

impl World {
    fn new() -> Self {
        let disk = Disk::default();
        let store = Arc::new(Embedded::on(disk.clone(), disk.log(64 << 10), [9; 16], merge, || None).expect("store"));
        let format =
            Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: KEY, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        let fs = block(Namespace::format(store.clone(), format)).expect("format");
        let how = CreateMode::Guarded(SetAttrs::default());
        let made = block(fs.create(&Cred::root(), NOW, ROOT, b"other", &how, None)).expect("create");
        World { disk, store, fs, other: made.file.attrs.id }
    }

    fn cookie(index: u64) -> u64 {
        bucket(&CookieKey(KEY), b"a").start + index
    }

    /// Writes a directory entry with the name `name` at the index `index` of the hash bucket of the name `a`. If `name`
    /// is `None`, deletes the entry at this index.
    fn plant(&self, index: u64, name: Option<String>) {
        let entry = |name: String| Dentry { child: self.other, kind: FileKind::Regular, name: name.into() }.to_value();
        let write = name.map_or(Write::Delete, |name| Write::Put(entry(name)));
        let writes = vec![(schema::dentry_key(ROOT, Self::cookie(index)), write)];
        assert!(matches!(self.store.submit(Batch { writes, ..Batch::default() }).wait(), Outcome::Committed { .. }));
    }

    async fn create(&self) -> Result<(), Status> {
        let how = CreateMode::Guarded(SetAttrs::default());
        self.fs.create(&Cred::root(), NOW, ROOT, b"a", &how, None).await.map(drop)
    }

    fn cookie_of_a(&self) -> Option<u64> {
        let names = self.fs.readdir(&Cred::root(), ROOT, 0, 1000).expect("names").entries;
        let mut cookies = names.iter().filter(|entry| entry.name == "a").map(|entry| entry.cookie);
        let cookie = cookies.next();
        assert_eq!(cookies.next(), None, "two names `a`");
        cookie
    }
}

#[test]
fn names_with_equal_hashes_coexist() {
    let world = World::new();
    let root = Cred::root();
    world.plant(0, Some("x".into()));
    world.plant(1, Some("y".into()));
    assert_eq!(world.fs.lookup(&root, ROOT, b"a"), Err(Status::NoEnt));
    assert_eq!(block(world.create()), Ok(()));
    assert_eq!(world.cookie_of_a(), Some(World::cookie(2)));
    // The cookie of `a` stays the same when another entry of the hash bucket is removed.
    world.plant(0, None);
    assert_eq!(world.cookie_of_a(), Some(World::cookie(2)));
    assert_eq!(block(world.create()), Err(Status::Exist));
    assert!(world.fs.lookup(&root, ROOT, b"a").is_ok());
    assert!(block(world.fs.remove(&root, NOW, ROOT, b"a")).is_ok());
    assert_eq!(world.fs.lookup(&root, ROOT, b"a"), Err(Status::NoEnt));
    // A create uses the first free slot of the name's hash bucket.
    assert_eq!(block(world.create()), Ok(()));
    assert_eq!(world.cookie_of_a(), Some(World::cookie(0)));
}

#[test]
fn creates_in_a_full_hash_bucket_fail_with_nospc() {
    let world = World::new();
    (0..256).for_each(|index| world.plant(index, Some(format!("x{index}"))));
    assert_eq!(block(world.create()), Err(Status::NoSpc));
    world.plant(200, None);
    assert_eq!(block(world.create()), Ok(()));
    assert_eq!(world.cookie_of_a(), Some(World::cookie(200)));
}

#[test]
fn concurrent_creates_of_one_name_succeed_once() {
    for planted in 0..8u64 {
        let world = World::new();
        for index in (0..3).filter(|index| planted >> index & 1 == 1) {
            world.plant(index, Some(format!("x{index}")));
        }
        world.disk.hold_syncs();
        let mut context = Context::from_waker(Waker::noop());
        let value = Bytes::from_static(b"keeps the writer busy");
        let mut busy = Box::pin(world.fs.registry_put(NOW, b"busy", Some(&value)));
        assert!(busy.as_mut().poll(&mut context).is_pending());
        world.disk.wait_for_sync();
        // The store's writer waits for a sync, so each of the three creates reads a view without the entries of the
        // other two creates.
        let mut creates: Vec<_> = (0..3).map(|_| Box::pin(world.create())).collect();
        assert!(creates.iter_mut().all(|create| create.as_mut().poll(&mut context).is_pending()));
        world.disk.release_syncs();
        assert_eq!(block(busy), Ok(()));
        let made: Vec<_> = creates.into_iter().map(block).collect();
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{planted:b}: {made:?}");
        assert_eq!(made.iter().filter(|made| **made == Err(Status::Exist)).count(), 2);
        assert!(world.cookie_of_a().is_some());
    }
}

/// A store that runs the closure `before` once, just before it receives the first batch that has preconditions.
struct Late {
    store: Arc<Embedded>,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Engine for Late {
    fn view(&self) -> Result<Box<dyn View + '_>, Broken> {
        self.store.view()
    }
    fn submit(&self, batch: Batch) -> Pending {
        if !batch.expects.is_empty()
            && let Some(before) = self.before.lock().expect("hook").take()
        {
            before();
        }
        self.store.submit(batch)
    }
    fn status(&self) -> StoreStatus {
        self.store.status()
    }
}

#[test]
fn a_name_created_between_plan_and_commit_is_seen() {
    let world = Arc::new(World::new());
    world.plant(0, Some("x".into()));
    let other = world.clone();
    // Between the plan and the commit of the create under test, the closure deletes the entry at index 0 of the hash
    // bucket, and creates `a` at index 0. The index that the create under test has chosen stays free.
    let before = move || {
        other.plant(0, None);
        assert_eq!(block(other.create()), Ok(()));
        assert_eq!(other.cookie_of_a(), Some(World::cookie(0)));
    };
    let late = Late { store: world.store.clone(), before: Mutex::new(Some(Box::new(before))) };
    let fs = Namespace::open(late).expect("open");
    let how = CreateMode::Guarded(SetAttrs::default());
    let created = block(fs.create(&Cred::root(), NOW, ROOT, b"a", &how, None)).map(drop);
    assert_eq!(created, Err(Status::Exist));
    assert_eq!(world.cookie_of_a(), Some(World::cookie(0)));
}
