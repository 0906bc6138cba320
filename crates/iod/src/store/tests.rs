//! Tests of the store without sockets: failed syncs, cache eviction, and full disks.

mod crash;
mod scrub;

use std::sync::atomic::AtomicUsize;

use types::{FileId, Generation};
use wire::native::{Extent, SeekWhat, WriteExtent};

use super::*;
use crate::disks::{Memory, Operation};

const FSID: Fsid = Fsid([1; 16]);
const ONE: Generation = Generation(1);

fn object_id(file: u64) -> ObjectId {
    ObjectId::stream_0(FileId(file))
}

/// A disk that counts syncs. A test can make the syncs of object files fail.
#[derive(Clone)]
struct FaultyDisk {
    memory: Memory,
    broken: Arc<AtomicBool>,
    syncs: Arc<AtomicUsize>,
}

impl FaultyDisk {
    fn new() -> Self {
        let memory = Memory::new("m", 1 << 30);
        Store::format_on(&memory, FSID).unwrap();
        let disk = FaultyDisk { memory, broken: Arc::default(), syncs: Arc::default() };
        let (broken, syncs) = (disk.broken.clone(), disk.syncs.clone());
        disk.memory.inject(move |operation, _| {
            let sync = matches!(operation, Operation::Sync | Operation::SyncFolder);
            syncs.fetch_add(usize::from(sync), Ordering::SeqCst);
            (operation == Operation::Sync && broken.load(Ordering::SeqCst)).then(|| Errno::IO.into())
        });
        disk
    }

    fn open(&self, capacity: usize) -> Store {
        Store::open_with(Arc::new(self.memory.clone()), capacity).unwrap()
    }
}

fn write(store: &Store, id: u64, offset: u64, data: &[u8]) -> Result<u64, Status> {
    let extent = WriteExtent { offset, len: data.len() as u32, crc32c: 0 };
    store.object(object_id(id)).write(store, ONE, (&[extent], 0), [data, &[]]).map_err(|f| f.status)
}

fn commit(store: &Store, id: u64) -> Result<u64, Status> {
    store.object(object_id(id)).commit(store, ONE).map_err(|f| f.status)
}

#[test]
fn a_failed_sync_is_never_followed_by_success() {
    let disk = FaultyDisk::new();
    let store = disk.open(16);
    write(&store, 1, 0, b"lost").unwrap();
    write(&store, 2, 0, b"kept").unwrap();
    commit(&store, 2).unwrap();
    disk.broken.store(true, Ordering::SeqCst);
    assert_eq!(commit(&store, 1), Err(Status::Io));
    disk.broken.store(false, Ordering::SeqCst);
    // A new `fdatasync` of the file now succeeds, because the disk works again. The store must still report the
    // earlier failure.
    assert_eq!(commit(&store, 1), Err(Status::Io));
    assert_eq!(write(&store, 1, 0, b"again"), Err(Status::Io));
    assert_eq!(store.object(object_id(1)).truncate(&store, ONE, 9).unwrap_err().status, Status::Io);
    // The store remembers the failed sync after the cache has evicted the object and closed its file.
    for id in 100..400 {
        write(&store, id, 0, b"x").unwrap();
        commit(&store, id).unwrap();
    }
    assert_eq!(commit(&store, 1), Err(Status::Io));
    commit(&store, 2).unwrap();
    // REMOVE also makes the store forget the failed sync of the object.
    store.object(object_id(1)).remove(&store, ONE).unwrap();
    write(&store, 1, 0, b"anew").unwrap();
    commit(&store, 1).unwrap();
}

#[test]
fn too_many_failures_fail_the_store() {
    let disk = FaultyDisk::new();
    let store = disk.open(16);
    disk.broken.store(true, Ordering::SeqCst);
    for id in 1..=FAILED_MAX as u64 + 1 {
        write(&store, id, 0, b"x").unwrap();
        assert_eq!(commit(&store, id), Err(Status::Io));
    }
    disk.broken.store(false, Ordering::SeqCst);
    assert_eq!(write(&store, 5000, 0, b"x"), Err(Status::Io));
}

#[test]
fn objects_are_synced_before_they_leave_the_cache() {
    let disk = FaultyDisk::new();
    let store = disk.open(16);
    for id in 1..=200 {
        write(&store, id, id, b"data").unwrap();
    }
    assert!(store.cache.len() <= 16);
    let synced = disk.syncs.load(Ordering::SeqCst);
    assert!(synced >= 200 - 16, "only {synced} syncs");
    for id in 1..=200 {
        assert_eq!(commit(&store, id), Ok(id + 4));
    }
    assert!(store.counters().get("objects.evicted") >= 200 - 16);
}

#[test]
fn a_failed_sync_of_an_evicted_object_is_remembered() {
    let disk = FaultyDisk::new();
    let store = disk.open(16);
    write(&store, 1, 0, b"lost").unwrap();
    disk.broken.store(true, Ordering::SeqCst);
    for id in 2..200 {
        write(&store, id * 16 + 1, 0, b"x").unwrap();
    }
    disk.broken.store(false, Ordering::SeqCst);
    assert_eq!(commit(&store, 1), Err(Status::Io));
}

#[test]
fn a_commit_without_earlier_writes_syncs_nothing() {
    let disk = FaultyDisk::new();
    let store = disk.open(16);
    write(&store, 1, 0, b"x").unwrap();
    commit(&store, 1).unwrap();
    let synced = disk.syncs.load(Ordering::SeqCst);
    assert_eq!(synced, 4, "the object, its folder and the two above");
    commit(&store, 1).unwrap();
    write(&store, 1, 1, b"y").unwrap();
    commit(&store, 1).unwrap();
    assert_eq!(disk.syncs.load(Ordering::SeqCst), synced + 1);
    store.object(object_id(1)).truncate(&store, ONE, 2).unwrap();
    assert_eq!(disk.syncs.load(Ordering::SeqCst), synced + 1, "the size was right");
    store.object(object_id(1)).truncate(&store, ONE, 1).unwrap();
    assert_eq!(disk.syncs.load(Ordering::SeqCst), synced + 2);
}

#[test]
fn a_folder_left_by_an_earlier_run_is_synced_once() {
    let disk = FaultyDisk::new();
    let store = disk.open(16);
    write(&store, 1, 0, b"written, then the iod was killed").unwrap();
    drop(store);
    let store = disk.open(16);
    assert_eq!(disk.syncs.load(Ordering::SeqCst), 0);
    commit(&store, 1).unwrap();
    assert_eq!(disk.syncs.load(Ordering::SeqCst), 4, "the object and its folders may not be durable");
    commit(&store, 1).unwrap();
    assert_eq!(disk.syncs.load(Ordering::SeqCst), 4);
    // Eviction does not sync an object if requests have only read its size.
    drop(store);
    let store = disk.open(16);
    for id in 1..200 {
        store.object(object_id(id)).size(&store, ONE).unwrap();
    }
    assert_eq!(disk.syncs.load(Ordering::SeqCst), 4);
}

#[test]
fn repeating_a_change_after_a_failed_sync_and_a_restart_makes_it_durable() {
    let cut = |store: &Store| store.object(object_id(1)).truncate(store, ONE, 100).map_err(|f| f.status);
    let fence =
        |store: &Store| store.object(object_id(2)).fence(store, Generation(9), Generation(9)).map_err(|f| f.status);
    // Each round cuts the power of the disk. In each round, a random choice decides which unsynced changes survive.
    for kept in 0..16 {
        let disk = FaultyDisk::new();
        let store = disk.open(16);
        for id in [1, 2] {
            write(&store, id, 0, &[1; 6000]).unwrap();
            commit(&store, id).unwrap();
        }
        disk.broken.store(true, Ordering::SeqCst);
        assert_eq!((cut(&store), fence(&store)), (Err(Status::Io), Err(Status::Io)));
        disk.broken.store(false, Ordering::SeqCst);
        drop(store);
        let store = disk.open(16);
        assert_eq!((cut(&store), fence(&store)), (Ok(100), Ok(())));
        drop(store);
        let mut turn = kept;
        disk.memory.power_cut(&mut |below| {
            turn = turn * 5 + 1;
            turn / 16 % below
        });
        let store = disk.open(16);
        assert_eq!(store.object(object_id(1)).size(&store, ONE).unwrap().0, 100);
        assert_eq!(write(&store, 2, 0, b"late"), Err(Status::Fenced));
    }
}

#[test]
fn a_late_write_does_not_create_an_object_of_a_removed_file_again() {
    let disk = FaultyDisk::new();
    let store = disk.open(16);
    write(&store, 1, 0, b"x").unwrap();
    write(&store, 2, 0, b"x").unwrap();
    store.object(object_id(1)).remove(&store, wire::native::GENERATION_GONE).unwrap();
    store.object(object_id(2)).remove(&store, ONE).unwrap();
    assert_eq!(write(&store, 1, 0, b"late"), Err(Status::Fenced));
    assert_eq!(store.object(object_id(1)).truncate(&store, ONE, 5).unwrap_err().status, Status::Fenced);
    // The store also refuses reads of the removed object. The file may have moved to other objects, so a read must not
    // take the removed object for a hole.
    let (extent, mut plan) = ([Extent { offset: 0, len: 1 }], ReadPlan::default());
    let read = store.object(object_id(1)).plan_read(&store, ONE, &extent, &mut plan).map(drop);
    assert_eq!(read.unwrap_err().status, Status::Fenced);
    assert_eq!(store.object(object_id(1)).seek(&store, ONE, 0, SeekWhat::Data).unwrap_err().status, Status::Fenced);
    store.object(object_id(1)).fence(&store, ONE, ONE).unwrap();
    store.object(object_id(1)).remove(&store, wire::native::GENERATION_GONE).unwrap();
    write(&store, 2, 0, b"made again").unwrap();
    let objects: Vec<_> = store.list(None, 10).unwrap().entries.iter().map(|e| e.object.file.0).collect();
    assert_eq!(objects, [2]);
}

#[test]
fn system_errors_map_to_statuses() {
    for (errno, status) in [
        (Errno::NOSPC, Status::NoSpc),
        (Errno::DQUOT, Status::DQuot),
        (Errno::IO, Status::Io),
        (Errno::FBIG, Status::FBig),
        (Errno::ROFS, Status::Rofs),
        (Errno::MFILE, Status::Delay),
    ] {
        let failure = failure(&errno.into(), "try");
        assert_eq!(failure.status, status);
        assert!(failure.detail.unwrap().starts_with("cannot try: "));
    }
}

fn reserve(store: &Store, id: u64, offset: u64, len: u64) -> Result<(), Status> {
    store.object(object_id(id)).reserve(store, ONE, offset, len).map_err(|f| f.status)
}

/// The disk has no more free space than the reserve. Space that RESERVE has allocated can still be written, also after
/// a restart.
#[test]
fn reserved_space_can_be_written_on_a_full_disk() {
    for features in [Features::default(), Features { block_checksums: true }] {
        let memory = Memory::new("m", 64 << 20);
        Store::format_with(&memory, FSID, features).unwrap();
        let store = Store::open_on(Arc::new(memory.clone())).unwrap();
        write(&store, 1, 0, b"head").unwrap();
        reserve(&store, 1, 8192, 8 << 20).unwrap();
        let chunk = vec![7; 1 << 20];
        let mut at = 0;
        while write(&store, 2, at, &chunk).is_ok() {
            at += chunk.len() as u64;
        }
        assert!(at > 40 << 20);
        assert_eq!(reserve(&store, 3, 0, 1 << 20), Err(Status::NoSpc));
        assert_eq!(reserve(&store, 1, 8192, 8 << 20), Ok(()), "the range is reserved already");
        write(&store, 1, 8192, &chunk).unwrap();
        commit(&store, 1).unwrap();
        drop(store);
        let store = Store::open_on(Arc::new(memory.clone())).unwrap();
        write(&store, 1, 4 << 20, &chunk).unwrap();
        commit(&store, 1).unwrap();
        assert_eq!(write(&store, 1, 9 << 20, &chunk), Err(Status::NoSpc));
    }
}

#[test]
fn a_disk_without_reservations_returns_not_supported() {
    let memory = Memory::new("m", 64 << 20);
    Store::format_on(&memory, FSID).unwrap();
    let error = Arc::new(Mutex::new(Errno::OPNOTSUPP));
    let told = error.clone();
    memory.inject(move |operation, _| (operation == Operation::Reserve).then(|| (*lock(&told)).into()));
    let store = Store::open_on(Arc::new(memory)).unwrap();
    for (errno, status) in
        [(Errno::OPNOTSUPP, Status::NotSupp), (Errno::NOSPC, Status::NoSpc), (Errno::DQUOT, Status::DQuot)]
    {
        *lock(&error) = errno;
        assert_eq!(reserve(&store, 1, 0, 4096), Err(status));
        assert_eq!(store.object(object_id(1)).size(&store, ONE).unwrap().0, 0);
    }
}
