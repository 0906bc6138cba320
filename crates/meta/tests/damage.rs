//! Tests of stores with damaged records: requests that read a damaged record fail, and all other requests succeed.

#[path = "common/block.rs"]
mod block;
#[path = "common/disk.rs"]
mod disk;

use block::block;
use disk::Disk;
use meta::engine::{Batch, Engine, Expect, Outcome, Unreadable, Walk, Write};
use meta::schema::{self, Record};
use meta::{CreateMode, Embedded, Fault, Format, Namespace, StoreError, merge};
use proptest::prelude::*;
use std::sync::Arc;
use types::{Cred, FileId, Fsid, SetAttrs, Status, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };
const ROOT: FileId = FileId::ROOT;

fn on(disk: &Disk) -> Result<Embedded, StoreError> {
    Embedded::on(disk.clone(), disk.log(64 << 10), [9; 16], merge, || None)
}

fn namespace(disk: &Disk) -> (Arc<Embedded>, Namespace<Arc<Embedded>>) {
    let store = Arc::new(on(disk).expect("store"));
    let format =
        Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: [3; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
    (store.clone(), block(Namespace::format(store, format)).expect("format"))
}

fn create(fs: &Namespace<Arc<Embedded>>, name: &[u8]) -> FileId {
    let how = CreateMode::Guarded(SetAttrs { mode: Some(0o644), ..SetAttrs::default() });
    block(fs.create(&Cred::root(), NOW, ROOT, name, &how, None)).expect("create").file.attrs.id
}

/// Returns the disk of a closed store after flipping one bit in every copy of `record` in the database file.
fn damaged(disk: &Disk, record: &[u8]) -> Disk {
    let [mut store, log] = disk.contents();
    let mut at = 0;
    let mut found = 0;
    while let Some(next) = store[at..].windows(record.len()).position(|window| window == record) {
        store[at + next + record.len() / 2] ^= 0x10;
        (at, found) = (at + next + record.len(), found + 1);
    }
    assert!(found > 0, "the record is in the file");
    Disk::of([store, log])
}

#[test]
fn only_requests_that_read_a_damaged_record_fail() {
    let disk = Disk::default();
    let (store, fs) = namespace(&disk);
    let (good, bad) = (create(&fs, b"good"), create(&fs, b"bad"));
    block(fs.set_size(&Cred::root(), NOW, bad, 0x1234_5678_9abc, None)).expect("size");
    let key = schema::tail_key(bad);
    let record = store.view().expect("view").get(&key).expect("get").expect("a record");
    drop((store, fs));

    let disk = damaged(&disk, &record);
    let store = Arc::new(on(&disk).expect("store"));
    let fs = Namespace::open(store.clone()).expect("open");
    let root = Cred::root();
    assert!(fs.getattr(good).is_ok());
    assert_eq!(fs.getattr(bad), Err(Status::Corrupt));
    assert_eq!(fs.lookup(&root, ROOT, b"bad"), Err(Status::Corrupt));
    assert!(fs.lookup(&root, ROOT, b"good").is_ok());
    // Operations that read the damaged record fail, and so do operations that merge a delta into the damaged record.
    let set = SetAttrs { size: Some(1), ..SetAttrs::default() };
    assert_eq!(block(fs.setattr(&root, NOW, bad, &set, false)).map(drop), Err(Status::Corrupt));
    assert_eq!(block(fs.set_size(&root, NOW, bad, 1, None)).map(drop), Err(Status::Corrupt));
    assert!(block(fs.setattr(&root, NOW, good, &set, false)).is_ok());
    create(&fs, b"another");

    let view = store.view().expect("view");
    assert_eq!(view.get(&key), Err(Unreadable::Corrupt(key.clone())));
    let (from, to) = (schema::core_key(FileId(0)), schema::past_all(&schema::core_key(FileId(0))));
    let scan = view.scan(&from[..]..&to[..], usize::MAX, &mut |_, _| Walk::On);
    assert_eq!(scan, Err(Unreadable::Corrupt(key.clone())));
    let (mut seen, mut without) = (0, Vec::new());
    let survey = view.survey(&from[..]..&to[..], usize::MAX, &mut |key, value| {
        seen += 1;
        without.extend(value.is_none().then(|| key.to_vec()));
        Walk::On
    });
    assert_eq!((survey, seen, &without[..]), (Ok(None), 8, &[key.clone()][..]));
    assert_eq!(meta::check(&*view), Ok(vec![Fault::Record { key: key.clone() }]));
    drop(view);
    let expects = vec![Expect::Reads(key.clone(), record.clone())];
    let outcome = store.submit(Batch { expects, ..Batch::default() }).wait();
    assert!(matches!(outcome, Outcome::Corrupt(k) if k == key));
    let outcome = store.submit(Batch { expects: vec![Expect::Absent(key.clone())], ..Batch::default() }).wait();
    assert!(matches!(outcome, Outcome::Corrupt(k) if k == key));
    let expects = vec![Expect::NoneIn(key.clone(), [&key[..], &[0]].concat())];
    let outcome = store.submit(Batch { expects, ..Batch::default() }).wait();
    assert!(matches!(outcome, Outcome::Conflict(0)), "something is there");
    assert!(store.status().counters.corrupt > 0);
    assert_eq!(store.status().broken, None);

    // A batch that overwrites the damaged record without reading the record succeeds, and so repairs the record.
    let writes = vec![(key, Write::Put(record))];
    assert!(matches!(store.submit(Batch { writes, ..Batch::default() }).wait(), Outcome::Committed { .. }));
    assert_eq!(fs.getattr(bad).map(|attrs| attrs.size), Ok(0x1234_5678_9abc));
    assert_eq!(fs.check(), Ok(Vec::new()));
}

#[test]
fn registry_records_are_checksummed_too() {
    let disk = Disk::default();
    let (store, fs) = namespace(&disk);
    let value = bytes::Bytes::from_static(b"the value of a registry record");
    block(fs.registry_put(NOW, b"name", Some(&value))).expect("put");
    drop((store, fs));
    let fs = Namespace::open(on(&damaged(&disk, &value)).expect("store")).expect("open");
    assert_eq!(fs.registry(b"name"), Err(Status::Corrupt));
    assert_eq!(fs.check(), Ok(vec![Fault::Record { key: schema::registry_key(b"name") }]));
}

#[test]
fn open_reports_a_damaged_anchor_or_format_record() {
    let disk = Disk::default();
    let (store, fs) = namespace(&disk);
    let format = store.view().expect("view").get(schema::FORMAT).expect("get").expect("format");
    assert!(schema::FormatRecord::from_value(format.clone()).is_ok());
    drop((store, fs));
    let error = Namespace::open(on(&damaged(&disk, &format)).expect("store")).expect_err("damaged");
    assert!(matches!(error, meta::OpenError::Damaged), "{error}");
    let error = on(&damaged(&disk, &[9; 16])).expect_err("damaged");
    assert!(error.to_string().contains("the record of its batch log does not match its checksum"), "{error}");
}

fn cases() -> u32 {
    if std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full") { 1000 } else { 40 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// Flips bits in database pages that hold records. Each read must return the right value or an error. The test
    /// damages no pages of redb's free-space bookkeeping, because such damage may end the process when the store is
    /// opened.
    #[test]
    fn damaged_pages_never_yield_wrong_values(flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 1..4)) {
        let disk = Disk::default();
        let (store, fs) = namespace(&disk);
        let files: Vec<_> = (0..40).map(|n| (format!("{n}"), n)).collect();
        let ids: Vec<_> = files.iter().map(|(name, _)| create(&fs, name.as_bytes())).collect();
        let wanted: Vec<_> = ids.iter().map(|id| fs.getattr(*id).expect("attrs")).collect();
        drop((store, fs));
        let [mut bytes, log] = disk.contents();
        let keys: Vec<_> = ids.iter().map(|id| schema::core_key(*id)).collect();
        let has_records = |page: &&usize| {
            bytes[**page..**page + 4096].windows(10).any(|window| window[0] == b'i' && keys.iter().any(|key| key == window))
        };
        let starts: Vec<usize> = (0..bytes.len() / 4096).map(|page| page * 4096).collect();
        let pages: Vec<usize> = starts.iter().filter(has_records).copied().collect();
        for (at, bit) in flips {
            let at = at.index(pages.len() * 4096);
            bytes[pages[at / 4096] + at % 4096] ^= 1 << bit;
        }
        let Ok(store) = on(&Disk::of([bytes, log])) else { return Ok(()) };
        let Ok(fs) = Namespace::open(store) else { return Ok(()) };
        for ((name, _), attrs) in files.iter().zip(wanted) {
            if let Ok(found) = fs.lookup(&Cred::root(), ROOT, name.as_bytes()) {
                prop_assert_eq!(found, attrs);
            }
        }
        let _ = fs.check();
    }
}
