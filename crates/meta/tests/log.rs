//! Tests of the batch log without a store: the encoding of the log, and the replay of torn, stale, reordered and
//! damaged records.

#[path = "common/disk.rs"]
mod disk;
#[path = "../../../fuzz/fuzz_targets/meta_log.rs"]
mod meta_log;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

use bytes::Bytes;
use disk::Disk;
use meta::log::{Anchor, BLOCK, Changes, Log, LogError};
use proptest::prelude::*;

const STORE: [u8; 16] = *b"identity of this";

fn is_full_scale() -> bool {
    std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

fn changes(list: &[(&str, Option<&[u8]>)]) -> Changes {
    let change = |(key, value): &(&str, Option<&[u8]>)| (key.as_bytes().to_vec(), value.map(Bytes::copy_from_slice));
    list.iter().map(change).collect()
}

/// Returns the changes of the record with the sequence number `n`, with a filler value of `len` bytes.
fn numbered(n: u64, len: usize) -> Changes {
    let filler = vec![n as u8; len];
    changes(&[("number", Some(&n.to_be_bytes())), ("filler", Some(&filler)), ("gone", None)])
}

fn format(disk: &Disk, room: u64) -> Log {
    Log::format(Box::new(disk.log(room)), STORE).expect("log")
}

fn append(log: &mut Log, changes: &Changes) {
    assert!(log.prepare(changes));
    log.append().expect("append");
}

/// Replays the log from the anchor (the position after which a replay begins) and returns the changes of every record.
fn replay(disk: &Disk, anchor: Anchor) -> Result<Vec<Changes>, LogError> {
    let mut log = Log::open(Box::new(disk.log(u64::MAX)), anchor)?;
    let mut found = Vec::new();
    while let Some(changes) = log.read_on()? {
        found.push(changes);
    }
    Ok(found)
}

/// Returns a disk whose log file has these bytes.
fn disk_of(log: &[u8]) -> Disk {
    Disk::of([Vec::new(), log.to_vec()])
}

fn bytes_of(disk: &Disk) -> Vec<u8> {
    let [_, log] = disk.contents();
    log
}

#[test]
fn log_bytes_match_the_format_description() {
    let disk = Disk::default();
    let mut log = format(&disk, 2 * BLOCK + 1000);
    let anchor = log.anchor();
    append(&mut log, &changes(&[("a", Some(b"one")), ("bc", None)]));
    append(&mut log, &changes(&[]));
    let bytes = bytes_of(&disk);
    assert_eq!(bytes.len() as u64, 3 * BLOCK);
    let (head, ring) = bytes.split_at(BLOCK as usize);
    let crc = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    let head_wanted = [&b"WEIRLOG\0\0\0\0\x01"[..], &STORE].concat();
    assert_eq!(head[..28], head_wanted);
    assert_eq!(head[28..32], crc(&head_wanted).to_be_bytes());
    assert!(head[32..].iter().all(|b| *b == 0));

    let tail = [
        &[0, 0, 0, 64 + 18][..],
        &STORE,
        &1u64.to_be_bytes(),
        &1u64.to_be_bytes(),
        &0u64.to_be_bytes(),
        &0u32.to_be_bytes(),
        &2u32.to_be_bytes(),
        &[0, 1, 0, 0, 0, 3],
        b"aone",
        &[0, 2, 0xff, 0xff, 0xff, 0xff],
        b"bc",
    ]
    .concat();
    let first = [&b"WEIRLOGR"[..], &crc(&tail).to_be_bytes(), &tail].concat();
    assert_eq!(ring[..first.len()], first);
    assert!(ring[first.len()..BLOCK as usize].iter().all(|b| *b == 0));
    // The second record contains the checksum of the first record.
    assert_eq!(ring[BLOCK as usize + 56..][..4], crc(&tail).to_be_bytes());

    let wanted =
        [&1u32.to_be_bytes()[..], &STORE, &1u64.to_be_bytes(), &[0; 8], &[0; 4], &[0; 8], &(2 * BLOCK).to_be_bytes()];
    assert_eq!(anchor.to_bytes(), wanted.concat());
    assert_eq!(Anchor::from_bytes(&anchor.to_bytes()), Ok(anchor));
    let last = log.anchor();
    assert_eq!((last.index, last.position, last.run), (2, 0, 1));
    let found = replay(&disk, anchor).expect("replay");
    assert_eq!(found, [changes(&[("a", Some(b"one")), ("bc", None)]), changes(&[])]);
    for cut in 0..wanted.concat().len() {
        assert!(Anchor::from_bytes(&anchor.to_bytes()[..cut]).is_err());
    }
    for (position, size) in [(1, 2 * BLOCK), (2 * BLOCK, 2 * BLOCK), (0, 100), (BLOCK, 0), (0, u64::MAX - 4095)] {
        assert!(Anchor::from_bytes(&Anchor { position, size, ..anchor }.to_bytes()).is_err());
    }
}

#[test]
fn an_invalid_log_or_one_of_another_store_is_refused() {
    let disk = Disk::default();
    let anchor = format(&disk, 4 * BLOCK).anchor();
    let foreign = Anchor { store: [1; 16], ..anchor };
    assert!(matches!(replay(&disk, foreign), Err(LogError::Foreign)));
    let bytes = bytes_of(&disk);
    for byte in 0..32 {
        let mut bytes = bytes.clone();
        bytes[byte] ^= 1;
        assert!(matches!(replay(&disk_of(&bytes), anchor), Err(LogError::NoLog)), "byte {byte}");
    }
    for len in [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK - 1] {
        let cut = replay(&disk_of(&bytes[..len as usize]), anchor);
        assert!(matches!(cut, Err(LogError::Short { found, wanted }) if (found, wanted) == (len, 5 * BLOCK)));
    }
    let mut newer = bytes[..28].to_vec();
    newer[11] = 2;
    newer.extend((crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &newer) as u32).to_be_bytes());
    let newer = [&newer, &bytes[32..]].concat();
    assert!(matches!(replay(&disk_of(&newer), anchor), Err(LogError::WrongVersion(2))));
}

/// Returns a disk, an anchor (the position after which a replay begins), and the changes of the later records. The log
/// on the disk has records of one to three blocks in a ring of eight blocks. The anchor is after the fourth record, and
/// the later records wrap around the end of the ring.
fn laps() -> (Disk, Anchor, Vec<Changes>) {
    let disk = Disk::default();
    let mut log = format(&disk, 8 * BLOCK);
    for n in 0..4 {
        append(&mut log, &numbered(n, 4000 * (n as usize % 3)));
        log.flush().expect("flush");
        log.applied();
    }
    let anchor = log.anchor();
    assert!(anchor.position > 0);
    let records: Vec<Changes> = (4..8).map(|n| numbered(n, 4000 * (n as usize % 3))).collect();
    for record in &records {
        append(&mut log, record);
        log.flush().expect("flush");
    }
    (disk, anchor, records)
}

/// Returns, for each record after the anchor (replay position), its offset in the ring and its length without padding.
fn extents(anchor: Anchor, records: &[Changes]) -> Vec<(u64, u64)> {
    let mut at = anchor.position;
    let extent = |record: &Changes| {
        let change = |(key, value): (&Vec<u8>, &Option<Bytes>)| 6 + key.len() + value.as_ref().map_or(0, Bytes::len);
        let (from, len) = (at, 64 + record.iter().map(change).sum::<usize>() as u64);
        at = (at + len.next_multiple_of(BLOCK)) % anchor.size;
        (from, len)
    };
    records.iter().map(extent).collect()
}

#[test]
fn a_tail_torn_at_any_byte_ends_the_replay_or_is_damage() {
    let (disk, anchor, records) = laps();
    assert_eq!(replay(&disk, anchor).expect("replay"), records);
    let whole = bytes_of(&disk);
    // `before` is the previous content of the torn blocks: zeros, other bytes, or records of another pass over the
    // ring.
    let mut log = Log::open(Box::new(disk.log(u64::MAX)), anchor).expect("open");
    log.applied();
    (20..24).for_each(|n| append(&mut log, &numbered(n, 4000 * (n as usize % 3))));
    let other = bytes_of(&disk);
    for before in [vec![0; whole.len()], vec![0xa5; whole.len()], other] {
        for (n, (from, len)) in extents(anchor, &records).into_iter().enumerate() {
            let mut bytes = whole.clone();
            let mut changed = false;
            for cut in (0..len).rev() {
                let byte = (BLOCK + (from + cut) % anchor.size) as usize;
                bytes[byte] = before[byte];
                changed |= bytes[byte] != whole[byte];
                match replay(&disk_of(&bytes), anchor) {
                    Ok(found) if changed => assert_eq!((n, &found[..]), (records.len() - 1, &records[..n])),
                    Ok(found) => assert_eq!(found, records),
                    // A complete record after the torn record proves that the torn record had been flushed, so the
                    // replay reports damage.
                    Err(LogError::Damaged { record }) => assert_eq!(record, anchor.index + 1 + n as u64),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

#[test]
fn replay_accepts_no_record_with_a_flipped_bit() {
    let (disk, anchor, records) = laps();
    let whole = bytes_of(&disk);
    for (n, (from, len)) in extents(anchor, &records).into_iter().enumerate() {
        for bit in 0..8 * len.next_multiple_of(BLOCK) {
            // In full test runs, flip every bit of the record, otherwise every ninth bit. In the padding, flip every
            // 64th bit.
            let stride = if is_full_scale() { 1 } else { 9 };
            if bit % (if bit / 8 < len { stride } else { 64 }) != 0 {
                continue;
            }
            let mut bytes = whole.clone();
            bytes[(BLOCK + (from + bit / 8) % anchor.size) as usize] ^= 1 << (bit % 8);
            match replay(&disk_of(&bytes), anchor) {
                Ok(found) if bit / 8 < len => assert_eq!((n, &found[..]), (records.len() - 1, &records[..n])),
                Ok(found) => assert_eq!(found, records),
                Err(LogError::Damaged { record }) => assert_eq!(record, anchor.index + 1 + n as u64),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn records_of_an_earlier_run_are_not_replayed() {
    let disk = Disk::default();
    let mut log = format(&disk, 8 * BLOCK);
    let anchor = log.anchor();
    for n in 0..4 {
        append(&mut log, &numbered(n, 0));
    }
    let left = bytes_of(&disk);
    // The crash loses the first record after the anchor (replay position), but the later records survive. The next run
    // of the log begins with a record that is identical to the lost record, at the position of the lost record.
    let mut bytes = left.clone();
    bytes[BLOCK as usize..2 * BLOCK as usize].fill(0);
    let disk = disk_of(&bytes);
    let mut log = Log::open(Box::new(disk.log(8 * BLOCK)), anchor).expect("open");
    assert_eq!(log.read_on().expect("nothing"), None);
    log.begin();
    let second = log.anchor();
    assert_eq!(second, Anchor { run: 2, ..anchor });
    log.applied();
    append(&mut log, &numbered(0, 0));
    assert_eq!(replay(&disk, second).expect("replay"), [numbered(0, 0)]);
    // A replay from the anchor (replay position) of the old run does not accept the record of the new run.
    assert_eq!(replay(&disk, anchor).expect("replay"), Vec::<Changes>::new());
}

#[test]
fn a_record_that_does_not_fit_is_not_written() {
    let disk = Disk::default();
    let mut log = format(&disk, 2 * BLOCK);
    assert!(!log.prepare(&numbered(0, 2 * BLOCK as usize)));
    append(&mut log, &numbered(0, 0));
    assert!(!log.prepare(&numbered(1, BLOCK as usize)));
    append(&mut log, &numbered(1, 0));
    assert!(!log.prepare(&numbered(2, 0)));
    log.applied();
    assert!(log.prepare(&numbered(2, 0)));
    // The ring doubles from two to four blocks, so it then has space for four records.
    let anchor = log.anchor();
    let mut log = Log::open(Box::new(disk.log(4 * BLOCK)), anchor).expect("open");
    assert!(log.grow().expect("grow"));
    let anchor = log.anchor();
    assert_eq!(anchor.size, 4 * BLOCK);
    (2..6).for_each(|n| append(&mut log, &numbered(n, 0)));
    assert_eq!(replay(&disk, anchor).expect("replay").len(), 4);
    assert!(!log.grow().expect("no more room"));
    let none = format(&Disk::default(), BLOCK - 1).anchor();
    assert_eq!(none.size, 0);
    let mut none = Log::open(Box::new(disk.log(0)), Anchor { store: STORE, ..none }).expect("open");
    assert!(!none.prepare(&changes(&[])) && !none.grow().expect("nothing to double"));
    assert_eq!(none.read_on().expect("nothing"), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Appends random records to rings of random size, with flushes and checkpoints in between. After a power cut
    /// that keeps a random part of the unflushed sectors, the replay must find all flushed records.
    #[test]
    fn a_power_cut_keeps_all_flushed_records(
        blocks in 1..12u64,
        steps in prop::collection::vec((0..3 * BLOCK as usize, 0..6u8), 1..60),
        seed in any::<u64>(),
    ) {
        let disk = Disk::default();
        let mut log = format(&disk, blocks * BLOCK);
        let (mut anchor, mut behind, mut flushed) = (log.anchor(), Vec::new(), 0);
        for (n, (len, then)) in steps.into_iter().enumerate() {
            let record = numbered(n as u64, len);
            if log.prepare(&record) {
                log.append().expect("append");
                behind.push(record);
            }
            if then > 2 {
                log.flush().expect("flush");
                flushed = behind.len();
            }
            if then == 5 {
                log.applied();
                (anchor, flushed) = (log.anchor(), 0);
                behind.clear();
            }
        }
        let mut state = seed;
        let cut = disk.after_power_cut(|len| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match state >> 61 {
                0..4 => 0,
                4 => (state >> 32) as usize % (len + 1),
                _ => len,
            }
        });
        let found = replay(&cut, anchor).expect("no damage");
        prop_assert!(found.len() >= flushed && found.len() <= behind.len());
        prop_assert_eq!(&found[..], &behind[..found.len()]);
    }

    #[test]
    fn any_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..9000)) {
        meta_log::run(&data);
    }
}

#[test]
fn damaged_logs_never_panic() {
    let (disk, anchor, _) = laps();
    let ring = &bytes_of(&disk)[BLOCK as usize..];
    let whole = [&anchor.to_bytes(), ring].concat();
    meta_log::run(&whole);
    for seed in 0..if is_full_scale() { 20_000 } else { 500 } {
        meta_log::run(&mutate::mutate(&whole, seed));
    }
}
