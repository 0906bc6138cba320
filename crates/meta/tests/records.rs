//! Tests of the keys and records of the metadata store: their encoding as `docs/FORMATS.md` describes it, and the
//! decoding of damaged records.

#[path = "../../../fuzz/fuzz_targets/meta_records.rs"]
mod meta_records;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

use bytes::Bytes;
use meta::schema::{self, *};
use meta::{Doomed, Layout, Unused};
use proptest::prelude::*;
use types::{FileId, FileKind, Fsid, Generation, Status, Timestamp};

const T: Timestamp = Timestamp { secs: -2, nanos: 3 };
const T_BYTES: &str = "fffffffffffffffe 00000003";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let value = |b: u8| (b as char).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

fn layout() -> Layout {
    Layout { kind: 0x8000_5745, body: Bytes::from_static(b"lay") }
}

fn core(body: Body) -> Core {
    let xattrs = XattrTally { count: 1, bytes: 2, changes: 3 };
    Core { mode: 0o4755, uid: 1000, gid: 100, names: 2, btime: T, xattrs, body }
}

fn tail() -> Tail {
    Tail { change: 7, size: 4096, written: 4095, whole: 0, subdirs: 2, holes: false, atime: T, mtime: T, ctime: T }
}

/// Returns every kind of record with its expected encoding.
fn golden() -> Vec<(Bytes, Vec<u8>)> {
    let head = format!("00000001 000009ed 000003e8 00000064 00000002 {T_BYTES} 00000001 00000002 0000000000000003");
    let regular = |layout, verifier| Body::Regular { generation: Generation(5), layout, verifier };
    let doomed = Doomed { id: FileId(9), generation: Generation(5), layout: layout() };
    let unused = Unused { file: FileId(9), generation: Generation(5), layout: layout() };
    let cookies = CookieKey([0xcc; 16]);
    let dentry = Dentry { child: FileId(9), kind: FileKind::Fifo, name: Bytes::from_static(b"name!") };
    let delta = TailDelta {
        size: SizeDelta::Set(10, T),
        holes: Holes::Before(9),
        whole: Some(Whole { from: 8, end: 10 }),
        subdirs: -1,
        atime: None,
        mtime: Some(T),
        ctime: Some(T),
    };
    let lay = "80005745 00000003 6c617900";
    let cases = [
        (core(regular(None, None)).to_value(), format!("{head} 00000001 00000005 00000000 00000000")),
        (
            core(regular(Some(layout()), Some([0xab; 8]))).to_value(),
            format!("{head} 00000001 00000005 00000001 {lay} 00000001 abababababababab"),
        ),
        (core(Body::Directory { parent: FileId(1) }).to_value(), format!("{head} 00000002 0000000000000001")),
        (core(Body::Block(8, 1)).to_value(), format!("{head} 00000003 00000008 00000001")),
        (core(Body::Char(8, 1)).to_value(), format!("{head} 00000004 00000008 00000001")),
        (
            core(Body::Symlink { target: Bytes::from_static(b"../t") }).to_value(),
            format!("{head} 00000005 00000004 2e2e2f74"),
        ),
        (core(Body::Socket).to_value(), format!("{head} 00000006")),
        (core(Body::Fifo).to_value(), format!("{head} 00000007")),
        (
            tail().to_value(),
            format!(
                "00000001 0000000000000007 0000000000001000 0000000000000fff 00000002 {T_BYTES} {T_BYTES} {T_BYTES}"
            ),
        ),
        (
            Tail { whole: 256, ..tail() }.to_value(),
            format!(
                "00000001 0000000000000007 0000000000001000 0000000000000fff 00000002 {T_BYTES} {T_BYTES} {T_BYTES} 0000000000000100"
            ),
        ),
        (dentry.to_value(), "00000001 0000000000000009 00000007 00000005 6e616d6521000000".into()),
        (Counts { files: 3 }.to_value(), "00000001 0000000000000003".into()),
        (NextId(4098).to_value(), "00000001 0000000000001002".into()),
        (Intent::Written.to_value(), "00000001 00000000".into()),
        (Intent::Truncate(258).to_value(), "00000001 00000001 0000000000000102".into()),
        (Intent::Fence(Generation(3)).to_value(), "00000001 00000002 00000003".into()),
        (doomed.to_value(), format!("00000001 0000000000000009 00000005 {lay}")),
        (unused.to_value(), format!("00000001 0000000000000009 00000005 {lay}")),
        (
            FormatRecord { fsid: Fsid([0xfe; 16]), created: T, cookies }.to_value(),
            format!("00000002 776569726d657461 {} {T_BYTES} {}", "fe".repeat(16), "cc".repeat(16)),
        ),
        (
            Delta::Tail(delta).to_bytes(),
            format!(
                "00000001 00000001 000000000000000a {T_BYTES} 00000001 0000000000000009 00000001 0000000000000008 000000000000000a ffffffff 00000000 00000001 {T_BYTES} 00000001 {T_BYTES}"
            ),
        ),
        (Delta::Files(-1).to_bytes(), "00000002 ffffffffffffffff".into()),
        (Delta::Ids(4096).to_bytes(), "00000003 0000000000001000".into()),
    ];
    cases.into_iter().map(|(value, text)| (value, hex(&text))).collect()
}

#[test]
fn record_bytes_match_the_format_description() {
    for (n, (value, bytes)) in golden().into_iter().enumerate() {
        assert_eq!(value, bytes, "record {n}");
        meta_records::run(&[&[0][..], &bytes].concat());
    }
}

#[test]
fn key_bytes_match_the_format_description() {
    let id = FileId(0x0102_0304_0506_0708);
    let keys = [
        (schema::FORMAT.to_vec(), "66"),
        (schema::NEXT_ID.to_vec(), "6e"),
        (schema::COUNTS.to_vec(), "73"),
        (schema::core_key(id), "69 0102030405060708 00"),
        (schema::tail_key(id), "69 0102030405060708 01"),
        (schema::dentry_key(id, 0x0a0b), "64 0102030405060708 0000000000000a0b"),
        (schema::xattr_key(id, b"n"), "78 0102030405060708 6e"),
        (schema::orphan_key(id), "6f 0102030405060708"),
        (schema::doomed_key(id), "67 0102030405060708"),
        (schema::unused_key(id), "75 0102030405060708"),
        (schema::intent_key(id, 2), "77 0102030405060708 02"),
        (schema::registry_key(b"iod1"), "72 696f6431"),
    ];
    for (key, text) in keys {
        assert_eq!(key, hex(text));
    }
    assert_eq!(schema::cookie_of(&schema::dentry_key(id, 77)), Ok(77));
    assert_eq!(schema::id_of(&schema::orphan_key(id)), Ok(id));
    assert_eq!(schema::intent_of(&schema::intent_key(id, 1)), Ok((id, 1)));
    assert_eq!(schema::xattr_name(&schema::xattr_key(id, b"n")), b"n");
    // All keys of a file are below the end key of the file, and all keys of the next file are above this end key.
    for id in [id, FileId(u64::MAX)] {
        assert!(schema::xattr_key(id, &[0xff; 250]) < schema::xattrs_end(id));
        assert!(schema::intent_key(id, u8::MAX) < schema::intents_end(id));
        assert!(schema::dentry_key(id, (1 << 63) - 1) < schema::dentries_end(id));
    }
    assert!(schema::xattrs_end(id) <= schema::xattr_key(FileId(id.0 + 1), b""));
    assert!(schema::dentries_end(id) < schema::dentry_key(FileId(id.0 + 1), 0));
    assert!(schema::xattrs_end(FileId(u64::MAX)) > schema::xattr_key(FileId(u64::MAX), &[0xff; 250]));
}

#[test]
fn cookies_are_the_upper_bits_of_siphash() {
    let key = CookieKey([1; 16]);
    assert_eq!(format!("{key:?}"), "[secret]");
    let first = bucket(&key, b"name");
    assert_eq!((first.start % 256, first.end - first.start), (0, 256));
    assert_ne!(first, bucket(&CookieKey([2; 16]), b"name"));
    // The expected value is the upper 55 bits of a SipHash-2-4 value that an independent implementation computed.
    assert_eq!(first.start, 0x7ce8_89e3_df0c_4e00);
}

#[test]
fn the_holes_bit_of_tail_records_marks_files_with_holes() {
    let old = tail().to_value();
    let with = Tail { holes: true, ..tail() }.to_value();
    assert_eq!((old.len(), &old[28..32], &with[28..32]), (with.len(), &[0, 0, 0, 2][..], &[0x80, 0, 0, 2][..]));
    assert_eq!(Tail::read(old), Ok(tail()));
    assert_eq!(Tail::read(with), Ok(Tail { holes: true, ..tail() }));
    // The stored number of subdirectories is at most 31 bits long, so the number does not overlap the holes flag.
    let many = Tail { subdirs: u32::MAX, ..tail() }.to_value();
    assert_eq!(Tail::read(many), Ok(Tail { subdirs: (1 << 31) - 1, ..tail() }));
    // The attribute `holes` is true only for regular files.
    let directory = core(Body::Directory { parent: FileId::ROOT });
    let regular = core(Body::Regular { generation: Generation(1), layout: None, verifier: None });
    let holes = |core: Core, holes| core.attrs(FileId(9), &Tail { holes, ..tail() }).holes;
    assert_eq!([holes(regular.clone(), true), holes(regular, false), holes(directory, true)], [true, false, false]);
}

/// Runs every short history of writes, truncates and deallocations, and tracks the written blocks. If a whole block is
/// missing, the record must say that the file has holes. For a file that was written sequentially, the record must say
/// that the file has no holes.
#[test]
fn a_missing_block_always_marks_the_file_as_having_holes() {
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Write(u64, u64),
        Cut(u64),
        Punch,
    }
    const K4: u64 = 4096;
    let mut steps = vec![Step::Punch];
    for end in [0, 1, K4, K4 + 1, 3 * K4] {
        steps.push(Step::Cut(end));
    }
    for (from, end) in
        [(0, K4), (0, 100), (100, K4), (K4, 2 * K4), (K4 + 1, 2 * K4), (2 * K4, 3 * K4), (2 * K4 + 9, 9 * K4)]
    {
        steps.push(Step::Write(from, end));
    }
    let tail_of = |value: Bytes| Tail::from_value(value).expect("a tail");
    let mut histories = 0;
    for number in 0..steps.len().pow(4) {
        let mut value = Tail::new(T, 0).to_value();
        // `there` has the numbers of the file's blocks that contain written data; `size` is the file size.
        let (mut there, mut size) = (std::collections::BTreeSet::new(), 0);
        let mut in_order = true;
        let mut rest = number;
        for _ in 0..4 {
            let step = steps[rest % steps.len()];
            rest /= steps.len();
            let change = match step {
                Step::Write(from, end) => {
                    in_order &= from <= size;
                    there.extend(from / K4..end.div_ceil(K4));
                    size = size.max(end);
                    TailDelta { size: SizeDelta::Grow(end), holes: Holes::Before(from), ..TailDelta::default() }
                }
                Step::Cut(end) => {
                    in_order = end == 0 || (in_order && end <= size);
                    there.retain(|block| *block < end.div_ceil(K4));
                    // A partial last block counts as written.
                    there.extend((end % K4 > 0).then_some(end / K4));
                    size = end;
                    TailDelta { size: SizeDelta::Set(end, T), ..TailDelta::default() }
                }
                Step::Punch => {
                    in_order = false;
                    there.clear();
                    TailDelta { holes: Holes::Made, ..TailDelta::default() }
                }
            };
            value = merge(Some(&value), &Delta::Tail(change).to_bytes()).expect("within bounds");
            let tail = tail_of(value.clone());
            assert_eq!(tail.size, size);
            let whole_holes = (0..size / K4).any(|block| !there.contains(&block));
            assert!(!whole_holes || tail.holes, "{step:?} of {number} leaves a hole that nobody knows of");
            assert!(!in_order || !tail.holes, "{step:?} of {number} leaves none");
        }
        histories += 1;
    }
    assert_eq!(histories, 13usize.pow(4));
}

#[test]
fn merges_refuse_results_out_of_bounds() {
    let merged = |old: Bytes, delta: Delta| merge(Some(&old), &delta.to_bytes());
    let size = |size| Delta::Tail(TailDelta { size, ..TailDelta::default() });
    let after = |delta| merged(tail().to_value(), delta).map(|value| Tail::from_value(value).expect("a tail"));
    assert_eq!(after(size(SizeDelta::Keep)), Some(Tail { change: 8, ..tail() }));
    assert_eq!(after(size(SizeDelta::Grow(10))), Some(Tail { change: 8, ..tail() }));
    assert_eq!(after(size(SizeDelta::Grow(5000))), Some(Tail { change: 8, size: 5000, ..tail() }));
    let directory = Tail { written: 0, ..tail() }.to_value();
    let emptied =
        merged(directory, size(SizeDelta::Entries(-4096))).map(|value| Tail::from_value(value).expect("a tail"));
    assert_eq!(emptied, Some(Tail { change: 8, size: 0, written: 0, ..tail() }));
    assert_eq!(after(size(SizeDelta::Entries(-4097))), None);
    assert_eq!(after(size(SizeDelta::Set(4096, Timestamp::default()))), Some(Tail { change: 8, ..tail() }));
    assert_eq!(after(size(SizeDelta::Wrote(4096))), Some(Tail { change: 8, written: 4096, ..tail() }));
    assert_eq!(after(size(SizeDelta::Wrote(5000))), Some(Tail { change: 8, size: 5000, written: 5000, ..tail() }));
    assert_eq!(after(size(SizeDelta::Wrote(5))), Some(Tail { change: 8, ..tail() }));
    let whole = |from, end| Delta::Tail(TailDelta { whole: Some(Whole { from, end }), ..TailDelta::default() });
    assert_eq!(after(whole(1, 4096)), Some(tail()), "what is before is not known");
    assert_eq!(after(whole(0, 9000)), Some(Tail { whole: 4096, ..tail() }), "no further than the file, and no change");
    let known = Tail { whole: 100, ..tail() }.to_value();
    let then = |delta| merged(known.clone(), delta).map(|value| Tail::from_value(value).expect("a tail").whole);
    assert_eq!([then(whole(100, 200)), then(whole(101, 200)), then(whole(0, 50))], [Some(200), Some(100), Some(100)]);
    assert_eq!([then(size(SizeDelta::Set(9, T))), then(size(SizeDelta::Set(9000, T)))], [Some(9), Some(100)]);
    let directory = Tail { subdirs: 3, ..tail() };
    assert_eq!(
        after(Delta::Tail(TailDelta { subdirs: 1, ..TailDelta::default() })),
        Some(Tail { change: 8, ..directory })
    );
    let cut = Tail { change: 8, size: 1, written: 1, mtime: Timestamp::default(), ..tail() };
    assert_eq!(after(size(SizeDelta::Set(1, Timestamp::default()))), Some(cut));
    assert_eq!(after(size(SizeDelta::Set(u64::MAX, T))), None);
    assert_eq!(after(Delta::Tail(TailDelta { subdirs: -3, ..TailDelta::default() })), None);
    let last = Tail { change: u64::MAX, ..tail() }.to_value();
    assert_eq!(merged(last, size(SizeDelta::Keep)), None);
    assert_eq!(merged(Counts { files: 1 }.to_value(), Delta::Files(-2)), None);
    assert_eq!(merged(NextId(u64::MAX).to_value(), Delta::Ids(1)), None);
    assert_eq!(merge(None, &Delta::Files(1).to_bytes()), None);
    assert_eq!(merged(Bytes::from_static(b"damaged"), Delta::Files(1)), None);
    assert_eq!(merge(Some(&tail().to_value()), b"damaged"), None);
}

#[test]
fn records_of_other_versions_are_corrupt() {
    for (value, _) in golden().into_iter().take(17) {
        let mut other = value.to_vec();
        other[3] = 2;
        let other = Bytes::from(other);
        assert_eq!(Core::from_value(other.clone()), Err(Status::Corrupt));
        assert_eq!(Tail::from_value(other.clone()), Err(Status::Corrupt));
        assert_eq!(Dentry::from_value(other), Err(Status::Corrupt));
    }
}

#[test]
fn damaged_records_never_panic() {
    let golden = golden();
    for (first, _) in &golden {
        for (second, _) in &golden {
            // Decode the bytes as a single record, and then as a record with a delta that is merged into this record.
            for (cut, second) in [(0, &[][..]), (first.len() as u8, second)] {
                let joined = [&[cut][..], first, second].concat();
                meta_records::run(&joined);
                for seed in 0..100 {
                    meta_records::run(&mutate::mutate(&joined, seed));
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..200)) {
        meta_records::run(&data);
    }
}
