//! Tests of block checksums: interleavings of requests and syncs that one thread alone cannot reach, and long random
//! histories.

use super::*;
use crate::disks::{Disk, Memory};

const NONCE: u64 = 9;

/// An object file and its checksum file on a simulated disk.
struct TestObject {
    disk: Memory,
    data: Box<dyn DiskFile>,
    sums: BlockChecksums,
    counters: Counters,
    size: u64,
}

impl TestObject {
    fn new() -> Self {
        let disk = Memory::new("m", 1 << 30);
        for name in ["data", "sums"] {
            disk.create_new(name).unwrap().set_len(if name == "data" { HEAD_LEN } else { 0 }).unwrap();
            disk.open(name).unwrap().sync().unwrap();
        }
        disk.sync_folder("").unwrap();
        Self::open(disk)
    }

    fn open(disk: Memory) -> Self {
        let data = disk.open("data").unwrap();
        let sums = BlockChecksums::open(disk.open("sums").unwrap(), NONCE, true).unwrap();
        let size = data.measure().unwrap().len - HEAD_LEN;
        TestObject { disk, data, sums, counters: Counters::default(), size }
    }

    fn power_cut(self, keep: u64) -> Self {
        self.disk.power_cut(&mut |bound| keep.min(bound - 1));
        Self::open(self.disk)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let put = || write_all(&*self.data, bytes, &[], HEAD_LEN + offset);
        self.sums.write(&*self.data, offset, [bytes, &[]], &self.counters, put)?;
        self.size = self.size.max(offset + bytes.len() as u64);
        Ok(())
    }

    fn begin(&self) {
        self.sums.begin_seal(&*self.data, || self.size).unwrap();
        self.data.sync().unwrap();
    }

    fn commit(&self) {
        self.begin();
        self.sums.finish_seal(&self.counters).unwrap();
    }

    fn read(&self) -> Result<Vec<u8>, Failure> {
        let mut all = vec![0; self.size as usize];
        self.sums.read(&*self.data, 0, &mut all).map_err(|e| e.failure(&self.counters))?;
        Ok(all)
    }

    fn spoil(&self, offset: u64) {
        assert!(self.disk.spoil("data", HEAD_LEN + offset, 1));
    }
}

fn status<T>(result: Result<T, Failure>) -> Option<Status> {
    result.err().map(|f| f.status)
}

#[test]
fn a_change_during_the_sync_keeps_its_block_open() {
    let mut trial = TestObject::new();
    trial.write(0, &[1; 20_000]).unwrap();
    trial.begin();
    trial.write(4096, &[2; 4096]).unwrap();
    trial.write(9000, &[3; 10]).unwrap();
    trial.sums.finish_seal(&trial.counters).unwrap();
    trial.read().unwrap();
    for keep in [0, u64::MAX] {
        trial = trial.power_cut(keep);
        trial.read().unwrap();
    }
}

#[test]
fn a_truncate_during_a_sync_leaves_no_checksums_beyond_the_end() {
    for size in [0, 100, 4096, 5000, 19_999] {
        let mut trial = TestObject::new();
        trial.write(0, &[1; 300_000]).unwrap();
        trial.commit();
        trial.write(10_000, &[2; 10_000]).unwrap();
        trial.begin();
        trial.sums.cut(&*trial.data, size, &trial.counters).unwrap();
        trial.data.set_len(HEAD_LEN + size).unwrap();
        trial.data.sync().unwrap();
        trial.size = size;
        trial.sums.finish_seal(&trial.counters).unwrap();
        trial.disk.power_cut(&mut |_| 0);
        let trial = TestObject::open(trial.disk);
        assert!(trial.sums.end().unwrap().unwrap() <= size, "cut to {size}");
        trial.read().unwrap();
    }
}

#[test]
fn a_truncate_removes_checksums_durably_before_it_removes_bytes() {
    for size in [0, REGION, REGION + 1, 2 * REGION] {
        let mut trial = TestObject::new();
        trial.write(0, &vec![1; 3 * REGION as usize]).unwrap();
        trial.commit();
        trial.sums.cut(&*trial.data, size, &trial.counters).unwrap();
        trial.data.set_len(HEAD_LEN + size).unwrap();
        trial.data.sync().unwrap();
        let trial = trial.power_cut(0);
        assert!(trial.sums.end().unwrap().unwrap() <= size, "cut to {size}");
        trial.read().unwrap();
    }
}

#[test]
fn a_damaged_block_never_gets_a_matching_checksum() {
    // The write at offset 3000 appends to the damaged block, and the write at offset 100 overwrites a part of the
    // damaged block.
    for (offset, len) in [(3000, 50), (100, 50)] {
        let mut trial = TestObject::new();
        trial.write(0, &[1; 3000]).unwrap();
        trial.commit();
        trial.spoil(700);
        let written = trial.write(offset, &vec![2; len]);
        assert_eq!(status(written), (offset < 3000).then_some(Status::Corrupt));
        trial.commit();
        assert_eq!(status(trial.read()), Some(Status::Corrupt), "{offset}");
        // A write of the whole block repairs the block.
        trial.write(0, &[3; 3100]).unwrap();
        trial.commit();
        trial.read().unwrap();
    }
}

#[test]
fn a_hole_in_place_of_written_bytes_is_damage() {
    let mut trial = TestObject::new();
    trial.write(0, &[1; 8192]).unwrap();
    trial.write(3 * REGION, &[1]).unwrap();
    trial.commit();
    let hole = |trial: &TestObject, from, to| {
        let checked = trial.sums.check_hole(&*trial.data, from, to);
        checked.map_err(|e| e.failure(&trial.counters).status)
    };
    assert_eq!(hole(&trial, 8192, 3 * REGION), Ok(()));
    trial.disk.open("data").unwrap().punch(HEAD_LEN, 4096).unwrap();
    assert_eq!(hole(&trial, 0, 4096), Err(Status::Corrupt));
    assert_eq!(trial.counters.get("sums.mismatched"), 1);
}

#[test]
fn blocks_of_a_damaged_checksum_record_are_refused_and_can_be_written_after_a_truncate() {
    let mut trial = TestObject::new();
    trial.write(0, &[1; 10]).unwrap();
    trial.write(REGION, &[1; 10]).unwrap();
    trial.commit();
    assert!(trial.disk.spoil("sums", 200, 8));
    assert_eq!(status(trial.read()), Some(Status::Corrupt));
    assert_eq!(status(trial.write(5, &[2])), Some(Status::Corrupt));
    trial.write(REGION, &[2; 10]).unwrap();
    trial.sums.cut(&*trial.data, 0, &trial.counters).unwrap();
    trial.data.set_len(HEAD_LEN).unwrap();
    trial.size = 0;
    trial.write(0, &[5; 10]).unwrap();
    trial.commit();
    assert_eq!(trial.read().unwrap(), [5; 10]);
}

#[test]
fn a_full_disk_leaves_blocks_to_be_sealed_later() {
    let mut trial = TestObject::new();
    trial.write(0, &[1; 8192]).unwrap();
    trial.begin();
    let (total, free) = trial.disk.capacity().unwrap();
    trial.disk.set_capacity(total - free);
    let error = trial.sums.finish_seal(&trial.counters).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(!trial.sums.failed());
    trial.disk.set_capacity(total);
    trial.commit();
    trial.spoil(5000);
    assert_eq!(status(trial.read()), Some(Status::Corrupt));
}

#[test]
fn blocks_without_a_checksum_after_a_crash_can_get_one() {
    let mut trial = TestObject::new();
    trial.write(0, &[1; 20_000]).unwrap();
    trial.begin();
    let mut trial = trial.power_cut(0);
    assert_eq!(trial.sums.adopt(0, trial.size).unwrap(), 5);
    assert_eq!(trial.sums.adopt(0, trial.size).unwrap(), 0, "the checksums are being added already");
    trial.commit();
    assert_eq!(trial.sums.end().unwrap(), Some(20_000));
    trial.write(4096, &[2; 10]).unwrap();
    assert_eq!(trial.sums.adopt(0, trial.size).unwrap(), 0, "the block is being changed");
    trial.spoil(0);
    assert_eq!(status(trial.read()), Some(Status::Corrupt));
}

#[test]
fn overwriting_uncommitted_bytes_needs_no_sync() {
    let mut trial = TestObject::new();
    for _ in 0..5 {
        trial.write(0, &[1; 8192]).unwrap();
    }
    assert_eq!(trial.counters.get("syncs.sums"), 0);
    trial.commit();
    for _ in 0..5 {
        trial.write(0, &[2; 4096]).unwrap();
        trial.write(8192, &[2; 4096]).unwrap();
    }
    assert_eq!(trial.counters.get("syncs.sums"), 2, "one sync to add the checksum, one to remove it");
}
