//! Tests of metadata dumps: the encoding, the detection of damage, and a restore into an empty store.

#[path = "common/block.rs"]
mod block;
#[path = "../../../fuzz/fuzz_targets/meta_dump.rs"]
mod meta_dump;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

use block::block;
use meta::dump::{BadDump, Decoder, DumpHead, Encoder, HEAD, restore};
use meta::engine::{Engine, Walk};
use meta::{CreateMode, DumpPart, Embedded, Format, Memory, Namespace};
use types::{Cred, FileId, Fsid, SetAttrs, Status, StoreId, Timestamp};

const NOW: Timestamp = Timestamp { secs: 5, nanos: 0 };

fn head() -> DumpHead {
    DumpHead { fsid: Fsid([1; 16]), store: StoreId([2; 16]), created: 3 }
}

/// Returns an encoded dump of these records.
fn dump(records: &[(&[u8], &[u8])]) -> Vec<u8> {
    let (mut encoder, mut bytes) = Encoder::new(&head());
    for (key, value) in records {
        bytes.extend(encoder.add(key, value).into_iter().flat_map(|(bytes, _)| bytes));
    }
    bytes.extend(encoder.end().0);
    bytes
}

type Record = (Vec<u8>, bytes::Bytes);

fn read(bytes: &[u8]) -> Result<Vec<Record>, BadDump> {
    let mut dump = Decoder::new(bytes)?;
    let mut records = Vec::new();
    while let Some(block) = dump.next_block()? {
        records.extend(block);
    }
    Ok(records)
}

#[test]
fn dump_bytes_match_the_format() {
    let bytes = dump(&[(b"a", b"xy")]);
    let mut want = b"WEIRDUMP".to_vec();
    want.extend([0, 0, 0, 1]);
    want.extend([[1; 16], [2; 16]].concat());
    want.extend([0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(bytes[..HEAD - 4], want);
    want = vec![0, 0, 0, 1, 0, 0, 0, 9, 0, 1, 0, 0, 0, 2, b'a', b'x', b'y'];
    assert_eq!(bytes[HEAD..HEAD + 17], want);
    want = vec![0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(bytes[HEAD + 21..HEAD + 37], want);
    assert_eq!(bytes.len(), HEAD + 41);
    assert_eq!(read(&bytes).unwrap(), [(b"a".to_vec(), bytes::Bytes::from_static(b"xy"))]);
    assert_eq!(Decoder::new(&bytes[..]).unwrap().head(), &head());
    assert_eq!(read(&dump(&[])).unwrap(), []);
}

#[test]
fn any_flipped_bit_or_truncation_is_detected() {
    let bytes = dump(&[(b"a", b"xy"), (b"b", b"")]);
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bad).is_err(), "bit {bit}");
    }
    (0..bytes.len()).for_each(|len| assert!(read(&bytes[..len]).is_err(), "{len} bytes"));
    assert!(matches!(read(&[&bytes[..], b"x"].concat()), Err(BadDump::Damaged(2, _))));
    assert!(matches!(read(&bytes[..HEAD + 10]), Err(BadDump::CutOff(0))));
    for records in [[(&b"b"[..], &b""[..]), (b"a", b"")], [(b"a", b""), (b"a", b"")]] {
        assert!(matches!(read(&dump(&records)), Err(BadDump::Damaged(..))), "{records:?}");
    }
    for seed in 0..5000 {
        meta_dump::run(&mutate::mutate(&bytes, seed));
    }
}

#[test]
fn missing_and_swapped_blocks_are_detected() {
    let value = vec![7; 60_000];
    let keys: Vec<[u8; 1]> = (0..30).map(|n| [n]).collect();
    let (mut encoder, first) = Encoder::new(&head());
    let mut blocks: Vec<Vec<u8>> =
        keys.iter().filter_map(|key| encoder.add(key, &value)).map(|(bytes, _)| bytes).collect();
    blocks.push(encoder.end().0);
    assert!(blocks.len() > 4);
    let whole = |blocks: &[Vec<u8>]| [first.clone(), blocks.concat()].concat();
    assert_eq!(read(&whole(&blocks)).unwrap().len(), 30);
    meta_dump::run(&whole(&blocks));
    for at in 0..blocks.len() {
        let mut fewer = blocks.clone();
        fewer.remove(at);
        assert!(read(&whole(&fewer)).is_err());
    }
    blocks.swap(1, 2);
    assert!(matches!(read(&whole(&blocks)), Err(BadDump::Checksum(_))));
}

/// Creates an empty file system in the store `engine`.
async fn formatted<E: Engine>(engine: E) -> Namespace<E> {
    let (fsid, cookie_key) = (Fsid([1; 16]), [5; 16]);
    let format = Format { fsid, now: NOW, cookie_key, root_mode: 0o755, root_uid: 0, root_gid: 0 };
    Namespace::format(engine, format).await.expect("formatted")
}

async fn make(fs: &Namespace<impl Engine>, name: &str) -> Result<FileId, Status> {
    let how = CreateMode::Guarded(SetAttrs::default());
    let made = fs.create(&Cred::root(), NOW, FileId::ROOT, name.as_bytes(), &how, None).await?;
    Ok(made.file.attrs.id)
}

/// Takes a dump of `fs`, and calls `begun` once the snapshot for the dump exists.
fn take_dump(fs: &Namespace<impl Engine>, mut begun: impl FnMut()) -> Vec<u8> {
    let mut bytes = Vec::new();
    fs.dump_into(StoreId([2; 16]), 3, &mut |part| {
        match part {
            DumpPart::Begun => begun(),
            DumpPart::Bytes { bytes: more, .. } => bytes.extend(more),
        }
        Walk::On
    })
    .expect("a dump");
    bytes
}

#[test]
fn a_dump_is_a_snapshot_and_restores_the_same_store() {
    let dir = tempfile::tempdir().unwrap();
    let engine = |name: &str| Embedded::create(&dir.path().join(name), [9; 16], meta::merge).expect("a store");
    let run = async {
        let fs = formatted(engine("a.redb")).await;
        assert_eq!(fs.identity(), StoreId([9; 16]));
        for n in 0..3000 {
            make(&fs, &format!("file {n}")).await.expect("made");
        }
        let bytes = take_dump(&fs, || {
            let late = make(&fs, "late");
            // Run the create on a different thread, because this thread is taking the dump.
            std::thread::scope(|scope| scope.spawn(|| block(late)).join()).expect("no panic").expect("made");
        });
        meta_dump::run(&bytes);

        let copy = engine("b.redb");
        let records = restore(&copy, Decoder::new(&bytes[..]).unwrap()).await.expect("restored");
        assert!(records > 9000, "{records}");
        let copy = Namespace::open(copy).expect("a namespace");
        assert_eq!(copy.check().expect("readable"), []);
        assert_eq!(copy.files(), Ok(3001));
        let find = |fs: &Namespace<Embedded>, name: &str| {
            fs.lookup(&Cred::root(), FileId::ROOT, name.as_bytes()).map(|found| found.id)
        };
        assert_eq!(find(&copy, "late"), Err(Status::NoEnt));
        assert_eq!(find(&copy, "file 7"), find(&fs, "file 7"));
        let again = take_dump(&copy, || ());
        assert!(again == bytes, "a dump of the copy is the same");
    };
    block(run);
}

#[test]
fn inode_numbers_can_be_withheld_and_skipped_durably() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.redb");
    let run = async {
        let fs = formatted(Embedded::create(&path, [9; 16], meta::merge).unwrap()).await;
        let first = make(&fs, "a").await.unwrap();
        fs.hold_numbers(true);
        assert_eq!(make(&fs, "b").await, Err(Status::Delay));
        fs.hold_numbers(false);
        fs.skip_numbers(NOW, FileId(1_000_000)).await.unwrap();
        fs.skip_numbers(NOW, FileId(5)).await.unwrap();
        assert_eq!((first, make(&fs, "b").await), (FileId(2), Ok(FileId(1_000_000))));
        assert_eq!(fs.check().unwrap(), []);
        drop(fs);
        let fs = Namespace::open(Embedded::open(&path, meta::merge).unwrap()).unwrap();
        assert!(make(&fs, "c").await.unwrap() > FileId(1_000_000));
    };
    block(run);
}

#[test]
fn a_dump_ends_when_its_receiver_stops_it() {
    let fs = block(formatted(Memory::new(meta::merge)));
    let mut parts = 0;
    let outcome = fs.dump_into(StoreId([2; 16]), 3, &mut |_| {
        parts += 1;
        Walk::Stop
    });
    assert_eq!((outcome, parts), (Err(meta::DumpError::Unwanted), 1));
}
