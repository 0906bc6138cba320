//! Tests of the shards of indexes on simulated disks: failed operations, damage, and bounded memory.

mod crash;

use std::sync::Arc;

use log_index::Source;
use rustix::io::Errno;
use types::Fsid;
use types::limits::FILE_SIZE_MAX;

use super::*;
use crate::disks::{Memory, Operation};
use crate::store::{Features, HEAD_LEN};
use wire::native::GENERATION_GONE;

const FSID: Fsid = Fsid([1; 16]);
const ONE: Generation = Generation(1);
const FILE: FileId = FileId(0x105);
const WHOLE: ByteRange = ByteRange { offset: 0, len: FILE_SIZE_MAX };
/// Least number of bytes between two checkpoints in these tests.
const CHECKPOINT_LEAST: u64 = 300;

fn disk(block_checksums: bool) -> Memory {
    let disk = Memory::new("m", 1 << 30);
    Store::format_with(&disk, FSID, Features { block_checksums }).unwrap();
    disk
}

fn open(disk: &Memory) -> Store {
    open_with(disk, usize::MAX)
}

fn open_with(disk: &Memory, memory: usize) -> Store {
    let mut store = Store::open_on(Arc::new(disk.clone())).unwrap();
    store.indexes = IndexTable::new(memory, CHECKPOINT_LEAST);
    store
}

fn run(offset: u64, len: u64, log: u32, position: u64) -> Run {
    let source = if log == 0 { Source::Base } else { Source::Log { log: LogNumber(log), position } };
    Run::single(ByteRange { offset, len }, source).unwrap()
}

fn register(store: &Store, file: FileId, log: u32, sequence: u64, durable: u64, runs: &[Run]) -> Result<usize, Status> {
    let registration = Registration { log: LogNumber(log), sequence, durable, runs: runs.to_vec() };
    store.register(file, ONE, registration).map_err(|failure| failure.status)
}

/// Returns the log and the position of each piece that a lookup of the whole file returns, sorted by file offset.
fn pieces(store: &Store, file: FileId, only_durable: bool) -> Result<Vec<(u64, u64, Source)>, Status> {
    let found = store.lookup(file, ONE, WHOLE, only_durable).map_err(|failure| failure.status)?;
    assert_eq!(found.covered, WHOLE.len);
    let runs = log_index::decode(&found.runs, LOOKUP_RUNS_MAX).unwrap();
    let pieces = runs.iter().flat_map(|run| run.extents_in(WHOLE).collect::<Vec<_>>());
    let mut pieces: Vec<_> = pieces.map(|piece| (piece.file.offset, piece.file.len, piece.source)).collect();
    pieces.sort_by_key(|piece| piece.0);
    Ok(pieces)
}

fn at(log: u32, position: u64) -> Source {
    Source::Log { log: LogNumber(log), position }
}

fn path(file: FileId) -> String {
    crate::store::Shards::path(ObjectId::index(file))
}

#[test]
fn a_lookup_and_a_pending_registration_create_no_object() {
    let disk = disk(false);
    let store = open(&disk);
    assert_eq!(pieces(&store, FILE, false), Ok(vec![]));
    assert_eq!(register(&store, FILE, 1, 1, 0, &[run(10, 5, 1, 0)]), Ok(1));
    assert_eq!(pieces(&store, FILE, false), Ok(vec![(10, 5, at(1, 0))]));
    assert_eq!(pieces(&store, FILE, true), Ok(vec![]));
    assert_eq!(disk.files(), ["FORMAT"]);
    assert_eq!(register(&store, FILE, 1, 2, 2, &[]), Ok(0));
    assert_eq!(pieces(&store, FILE, true), Ok(vec![(10, 5, at(1, 0))]));
    assert_eq!(disk.files(), ["FORMAT".to_owned(), path(FILE)]);
}

#[test]
fn a_failed_append_changes_nothing_and_its_bytes_are_overwritten() {
    for sums in [false, true] {
        let disk = disk(sums);
        let store = open(&disk);
        register(&store, FILE, 1, 1, 1, &[run(0, 5, 1, 0)]).unwrap();
        disk.inject(|operation, _| (operation == Operation::Write).then(|| Errno::NOSPC.into()));
        let many: Vec<Run> = (0..20).map(|i| run(100 + 10 * i, 5, 2, 7 * i)).collect();
        assert_eq!(register(&store, FILE, 2, 1, 1, &many), Err(Status::NoSpc));
        assert_eq!(store.open_log(FILE, ONE).unwrap_err().status, Status::NoSpc);
        assert_eq!(pieces(&store, FILE, true), Ok(vec![(0, 5, at(1, 0))]));
        disk.heal();
        assert_eq!(register(&store, FILE, 1, 2, 2, &[run(2, 1, 1, 5)]), Ok(20), "the other writer's runs are pending");
        assert_eq!(register(&store, FILE, 2, 1, 1, &many), Ok(0));
        let expected = pieces(&store, FILE, true).unwrap();
        assert_eq!(expected.len(), 23);
        let number = store.open_log(FILE, ONE).unwrap();
        drop(store);
        disk.kill();
        let store = open(&disk);
        assert_eq!(pieces(&store, FILE, true), Ok(expected));
        assert!(store.open_log(FILE, ONE).unwrap() > number);
    }
}

#[test]
fn a_failed_sync_is_never_followed_by_a_durable_registration() {
    let disk = disk(false);
    let store = open(&disk);
    register(&store, FILE, 1, 1, 1, &[run(0, 5, 1, 0)]).unwrap();
    disk.inject(|operation, _| (operation == Operation::Sync).then(|| Errno::IO.into()));
    assert_eq!(register(&store, FILE, 1, 2, 2, &[run(5, 5, 1, 9)]), Err(Status::Io));
    disk.heal();
    // The shard in memory has the runs, so there is nothing to append. The commit must still fail.
    assert_eq!(register(&store, FILE, 1, 2, 2, &[run(5, 5, 1, 9)]), Err(Status::Io));
    drop(store);
    disk.power_cut(&mut |_| 0);
    let store = open(&disk);
    assert_eq!(pieces(&store, FILE, true), Ok(vec![(0, 5, at(1, 0))]));
    assert_eq!(register(&store, FILE, 1, 2, 2, &[run(5, 5, 1, 9)]), Ok(0));
}

#[test]
fn damage_in_front_of_durable_records_is_reported_and_a_torn_tail_is_not() {
    let disk = disk(false);
    let store = open(&disk);
    let mut ends = Vec::new();
    for i in 0..3 {
        register(&store, FILE, 1, i + 1, i + 1, &[run(10 * i, 5, 1, 20 * i)]).unwrap();
        ends.push(store.object(ObjectId::index(FILE)).size(&store, ONE).unwrap().0);
    }
    drop(store);
    disk.kill();
    for byte in 4096..ends[2] {
        let damaged = disk.copy();
        assert!(damaged.spoil(&path(FILE), HEAD_LEN + byte, 1));
        damaged.kill();
        let store = open(&damaged);
        let found = store.lookup(FILE, ONE, WHOLE, false);
        if byte < ends[1] {
            let failure = found.unwrap_err();
            let detail = failure.detail.unwrap();
            let begin = if byte < ends[0] { 4096 } else { ends[0] };
            assert_eq!(failure.status, Status::Corrupt);
            assert!(detail.contains(&format!("file 261 on this iod is damaged at byte {begin};")), "{detail}");
            assert_eq!(register(&store, FILE, 1, 9, 9, &[]), Err(Status::Corrupt));
            assert_eq!(store.open_log(FILE, ONE).unwrap_err().status, Status::Corrupt);
        } else {
            let first_two = vec![(0, 5, at(1, 0)), (10, 5, at(1, 20))];
            assert_eq!(pieces(&store, FILE, false).as_ref(), Ok(&first_two));
            register(&store, FILE, 2, 1, 1, &[run(90, 1, 2, 0)]).unwrap();
            drop(store);
            damaged.kill();
            let expected = [first_two, vec![(90, 1, at(2, 0))]].concat();
            assert_eq!(pieces(&open(&damaged), FILE, true), Ok(expected));
        }
        // The shards of other files are not damaged, and after its removal this shard is not either.
        let store = open(&{
            damaged.kill();
            damaged
        });
        assert_eq!(register(&store, FileId(2), 1, 1, 1, &[run(0, 5, 1, 0)]), Ok(0));
        store.remove_logs(FILE, ONE).unwrap();
        assert_eq!(pieces(&store, FILE, false), Ok(vec![]));
    }
}

/// Registers a run, and writes its record without a sync. Returns the end of the records.
fn register_unsynced(store: &Store, log: u32, sequence: u64, run: Run) -> u64 {
    let object = store.object(ObjectId::index(FILE));
    let target = Target { store, object: &object, file: FILE, generation: ONE };
    let registration = Registration { log: LogNumber(log), sequence, durable: sequence, runs: vec![run] };
    let written = store.with_shard(target, |loaded| {
        loaded.register(target, registration)?;
        Ok(loaded.log.end())
    });
    written.unwrap()
}

#[test]
fn a_lost_unsynced_record_in_front_of_another_is_no_damage_and_the_other_does_not_come_back() {
    let disk = disk(false);
    let store = open(&disk);
    register(&store, FILE, 1, 1, 1, &[run(0, 5, 1, 0)]).unwrap();
    let lost = register_unsynced(&store, 1, 2, run(10, 5, 1, 50));
    register_unsynced(&store, 2, 1, run(20, 5, 2, 0));
    drop(store);
    assert!(disk.spoil(&path(FILE), HEAD_LEN + lost - 1, 1));
    disk.kill();
    let store = open(&disk);
    let mut expected = vec![(0, 5, at(1, 0))];
    assert_eq!(pieces(&store, FILE, true).as_ref(), Ok(&expected));
    // This record is as long as the lost one, so the old record would directly follow it.
    register(&store, FILE, 1, 2, 2, &[run(11, 5, 1, 50)]).unwrap();
    expected.push((11, 5, at(1, 50)));
    drop(store);
    disk.kill();
    let store = open(&disk);
    assert_eq!(pieces(&store, FILE, true), Ok(expected));
}

#[test]
fn damage_of_block_checksums_is_reported_as_damage_of_the_index() {
    let disk = disk(true);
    let store = open(&disk);
    register(&store, FILE, 1, 1, 1, &[run(0, 5, 1, 0)]).unwrap();
    drop(store);
    disk.kill();
    disk.spoil(&path(FILE), HEAD_LEN + 4096, 1);
    let store = open(&disk);
    let failure = store.lookup(FILE, ONE, WHOLE, false).unwrap_err();
    assert_eq!(failure.status, Status::Corrupt);
    assert!(failure.detail.unwrap().starts_with("the index of file 261 on this iod is damaged at byte"));
}

#[test]
fn checkpoints_bound_the_disk_space_and_keep_the_state() {
    for sums in [false, true] {
        let disk = disk(sums);
        let store = open(&disk);
        for i in 1..2000 {
            register(&store, FILE, 1 + (i % 3) as u32, i, i, &[run(i % 7 * 10, 8, 1 + (i % 3) as u32, 100 * i)])
                .unwrap();
        }
        assert!(store.counters().get("index.checkpoints") > 20);
        let (size, allocated) = store.object(ObjectId::index(FILE)).size(&store, ONE).unwrap();
        assert!(size > 40_000 && allocated < 24_000, "{size} bytes, {allocated} allocated");
        let expected = pieces(&store, FILE, true).unwrap();
        assert_eq!(expected.len(), 7);
        drop(store);
        disk.kill();
        let store = open(&disk);
        assert_eq!(pieces(&store, FILE, true), Ok(expected));
        assert_eq!(register(&store, FILE, 1, 1998, 1998, &[run(0, 100, 1, 0)]), Ok(0));
        assert_eq!(pieces(&store, FILE, true).unwrap().len(), 7, "a repeated registration has no effect");
    }
}

#[test]
fn a_checkpoint_does_not_make_pending_sequence_numbers_durable() {
    let disk = disk(false);
    let store = open(&disk);
    let lost = [run(1000, 5, 2, 0)];
    assert_eq!(register(&store, FILE, 2, 7, 0, &lost), Ok(1));
    for i in 1..100 {
        register(&store, FILE, 1, i, i, &[run(0, 8, 1, 10 * i)]).unwrap();
    }
    assert!(store.counters().get("index.checkpoints") > 2);
    assert_eq!(pieces(&store, FILE, false).unwrap().len(), 2, "a checkpoint keeps pending runs");
    drop(store);
    disk.kill();
    let store = open(&disk);
    assert_eq!(pieces(&store, FILE, false).unwrap().len(), 1);
    assert_eq!(register(&store, FILE, 2, 7, 7, &lost), Ok(0));
    assert_eq!(pieces(&store, FILE, true).unwrap().len(), 2);
}

#[test]
fn memory_is_bounded_and_pending_registrations_stay() {
    let disk = disk(false);
    let store = open_with(&disk, 20_000);
    for file in (1..200).map(FileId) {
        let durable = u64::from(file.0 % 50 != 0);
        register(&store, file, 1, 1, durable, &[run(0, file.0, 1, 0)]).unwrap();
    }
    assert!(store.indexes.len() < 60, "{} shards", store.indexes.len());
    assert!(store.counters().get("index.dropped") > 100);
    for file in (1..200).map(FileId) {
        assert_eq!(pieces(&store, file, false), Ok(vec![(0, file.0, at(1, 0))]));
    }
}

#[test]
fn a_writer_that_syncs_is_not_refused_because_of_its_own_pending_runs() {
    let disk = disk(false);
    let store = open(&disk);
    let runs = |sequence: u64| -> Vec<Run> {
        (0..4096).map(|i| run(sequence << 20 | i << 4, 8, 1, sequence << 20 | i << 5)).collect()
    };
    for sequence in 1..=16 {
        assert_eq!(register(&store, FILE, 1, sequence, 0, &runs(sequence)), Ok(4096 * sequence as usize));
    }
    assert_eq!(register(&store, FILE, 1, 17, 0, &runs(17)), Err(Status::Delay));
    assert_eq!(register(&store, FILE, 1, 17, 17, &runs(17)), Ok(0));
    let mut range = WHOLE;
    let mut found = 0;
    while found < 17 * 4096 {
        let lookup = store.lookup(FILE, ONE, range, true).unwrap();
        assert!(lookup.covered > 0 && lookup.runs.len() <= RUNS_BYTES_MAX);
        found += log_index::decode(&lookup.runs, LOOKUP_RUNS_MAX).unwrap().len();
        range = ByteRange { offset: range.offset + lookup.covered, len: range.len - lookup.covered };
    }
    assert_eq!(found, 17 * 4096);
}

#[test]
fn tombstones_of_an_index_refuse_its_data_logs() {
    let disk = disk(false);
    let store = open(&disk);
    let write = |object: ObjectId| {
        let extent = wire::native::WriteExtent { offset: 0, len: 1, crc32c: 0 };
        let written = store.object(object).write(&store, ONE, (&[extent], 0), [b"x", &[]]);
        written.map_err(|failure| failure.status)
    };
    let (log, base, other) = (ObjectId::log(FILE, 1), ObjectId::stream_0(FILE), ObjectId::log(FileId(0x106), 1));
    for object in [log, ObjectId::log(FILE, 2), base, other] {
        write(object).unwrap();
    }
    register(&store, FILE, 1, 1, 1, &[run(0, 1, 1, 0)]).unwrap();
    store.remove_logs(FILE, ONE).unwrap();
    assert_eq!(store.objects_of(FILE).unwrap(), [base]);
    // Without a tombstone, a writer may begin again.
    write(log).unwrap();
    assert_eq!(register(&store, FILE, 1, 1, 1, &[run(0, 1, 1, 0)]), Ok(0));
    for _ in 0..2 {
        store.remove_logs(FILE, GENERATION_GONE).unwrap();
        assert_eq!(store.objects_of(FILE).unwrap(), [base]);
        assert_eq!((write(log), write(ObjectId::log(FILE, 3))), (Err(Status::Fenced), Err(Status::Fenced)));
        assert_eq!(register(&store, FILE, 1, 2, 0, &[run(0, 1, 1, 0)]), Err(Status::Fenced));
        assert_eq!(pieces(&store, FILE, false), Err(Status::Fenced));
        assert_eq!(store.open_log(FILE, ONE).unwrap_err().status, Status::Fenced);
    }
    assert_eq!((write(base), write(other)), (Ok(1), Ok(1)));
}
