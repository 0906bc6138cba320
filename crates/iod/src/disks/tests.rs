//! Tests of the rules that every [`Disk`] implementation must follow, and of the data that the simulated disk loses at
//! a power cut or a failed sync.

use std::io;

use super::*;

fn disks(test: impl Fn(&dyn Disk)) {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path().join("d"));
    local.prepare().unwrap();
    test(&local);
    test(&Memory::new("m", 64 << 20));
}

fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
    result.map(drop).unwrap_err().kind()
}

#[test]
fn names_follow_create_rename_and_remove() {
    disks(|disk| {
        assert!(disk.is_folder("") && disk.list("").unwrap().is_empty());
        assert_eq!(kind(disk.open("a")), io::ErrorKind::NotFound);
        assert_eq!(kind(disk.create_new("x/a")), io::ErrorKind::NotFound);
        assert_eq!(kind(disk.list("x")), io::ErrorKind::NotFound);
        assert_eq!(kind(disk.remove("a")), io::ErrorKind::NotFound);
        disk.make_folder("x/y").unwrap();
        disk.make_folder("x/y").unwrap();
        let file = disk.create_new("x/y/a").unwrap();
        write_all(&*file, b"one", b"two", 0).unwrap();
        assert_eq!(kind(disk.create_new("x/y/a")), io::ErrorKind::AlreadyExists);
        disk.create_new("x/y/b").unwrap();
        disk.rename("x/y/a", "x/y/b").unwrap();
        assert_eq!(disk.list("x/y").unwrap(), ["b"]);
        assert_eq!(disk.list("").unwrap(), ["x"]);
        assert!(!disk.is_folder("x/y/b") && disk.is_folder("x/y"));
        let mut bytes = [0; 9];
        assert_eq!(read_full(&*disk.open("x/y/b").unwrap(), &mut bytes, 0).unwrap(), 6);
        assert_eq!(&bytes[..6], b"onetwo");
        disk.remove("x/y/b").unwrap();
        assert_eq!(read_full(&*file, &mut bytes, 3).unwrap(), 3, "an open file stays readable after its removal");
        for folder in ["", "x", "x/y"] {
            disk.sync_folder(folder).unwrap();
        }
        assert_eq!(kind(disk.sync_folder("y")), io::ErrorKind::NotFound);
    });
}

#[test]
fn a_file_can_be_locked_once_until_it_is_closed() {
    disks(|disk| {
        let first = disk.create_new("f").unwrap();
        assert!(first.lock().unwrap());
        assert!(!disk.open("f").unwrap().lock().unwrap());
        drop(first);
        let second = disk.open("f").unwrap();
        assert!(second.lock().unwrap());
        let shared_with_a_fork = second.as_file().map(|file| file.try_clone().unwrap());
        drop(second);
        assert!(disk.open("f").unwrap().lock().unwrap());
        drop(shared_with_a_fork);
    });
}

#[test]
fn written_bytes_and_holes_read_back() {
    disks(|disk| {
        let file = disk.create_new("f").unwrap();
        write_all(&*file, &[1; 5000], &[2; 5000], 100_000).unwrap();
        assert_eq!(file.measure().unwrap().len, 110_000);
        assert_eq!(file.next_data(0).unwrap(), Some(98_304));
        assert_eq!(file.next_data(100_001).unwrap(), Some(100_001));
        assert_eq!(file.next_hole(0).unwrap(), Some(0));
        assert_eq!(file.next_hole(100_000).unwrap(), Some(110_000));
        assert_eq!((file.next_hole(110_000).unwrap(), file.next_data(110_000).unwrap()), (None, None));
        file.punch(0, 106_496).unwrap();
        assert_eq!(file.next_data(0).unwrap(), Some(106_496));
        file.set_len(107_000).unwrap();
        file.set_len(109_000).unwrap();
        let mut bytes = vec![9; 3000];
        assert_eq!(read_full(&*file, &mut bytes, 106_400).unwrap(), 2600);
        assert!(bytes[..96].iter().all(|b| *b == 0) && bytes[96..600].iter().all(|b| *b == 2));
        assert!(bytes[600..2600].iter().all(|b| *b == 0) && bytes[2600..].iter().all(|b| *b == 9));
        assert!(file.measure().unwrap().allocated <= 8192 + 4096);
        file.sync().unwrap();
    });
}

#[test]
fn writes_take_space_and_punches_free_it() {
    disks(|disk| {
        let file = disk.create_new("f").unwrap();
        write_all(&*file, &[1; 5000], &[], 0).unwrap();
        file.reserve(40_960, 40_960).unwrap();
        assert_eq!(file.measure().unwrap().len, 81_920);
        let allocated = || file.measure().unwrap().allocated;
        let taken = allocated();
        assert!(taken >= 40_960 + 8192);
        assert!(file.is_stored(40_960, 40_960).unwrap() && file.is_stored(0, 5000).unwrap());
        assert!(!file.is_stored(40_000, 5000).unwrap() && !file.is_stored(80_000, 5000).unwrap());
        let mut bytes = vec![9; 40_960];
        assert_eq!(read_full(&*file, &mut bytes, 40_960).unwrap(), 40_960);
        assert!(bytes.iter().all(|b| *b == 0));
        write_all(&*file, &[2; 10_000], &[], 45_000).unwrap();
        file.sync().unwrap();
        assert_eq!(allocated(), taken);
        file.punch(49_152, 8192).unwrap();
        assert!(!file.is_stored(49_152, 1).unwrap() && file.is_stored(57_344, 24_576).unwrap());
        file.set_len(49_152).unwrap();
        file.set_len(81_920).unwrap();
        assert!(!file.is_stored(57_344, 1).unwrap());
        assert!(allocated() < taken - 24_576);
    });
}

#[test]
fn reserved_ranges_can_be_written_on_a_full_disk_and_after_a_power_cut() {
    let disk = Memory::new("m", 64 << 10);
    let file = disk.create_new("f").unwrap();
    file.reserve(0, 40 << 10).unwrap();
    file.sync().unwrap();
    disk.sync_folder("").unwrap();
    let other = disk.create_new("g").unwrap();
    let full = |result: io::Result<()>| assert_eq!(kind(result), io::ErrorKind::StorageFull);
    full(other.reserve(0, 40 << 10));
    disk.sync_folder("").unwrap();
    write_all(&*file, &[1; 8192], &[], 0).unwrap();
    disk.power_cut(&mut |_| 0);
    let (file, other) = (disk.open("f").unwrap(), disk.open("g").unwrap());
    write_all(&*other, &vec![1; 24 << 10], &[], 0).unwrap();
    full(write_all(&*other, &[1; 1], &[], 24 << 10));
    write_all(&*file, &vec![3; 40 << 10], &[], 0).unwrap();
}

/// After a power cut, unsynced changes may be lost or survive; synced data survive.
#[test]
fn synced_bytes_survive_a_power_cut() {
    for keep in [0, u64::MAX] {
        let disk = Memory::new("m", 64 << 20);
        disk.make_folder("x").unwrap();
        let file = disk.create_new("x/f").unwrap();
        write_all(&*file, &[1; 10_000], &[], 0).unwrap();
        file.sync().unwrap();
        disk.sync_folder("x").unwrap();
        disk.sync_folder("").unwrap();
        write_all(&*file, &[2; 10_000], &[], 5000).unwrap();
        disk.create_new("x/g").unwrap();
        disk.power_cut(&mut |bound| keep.min(bound - 1));
        assert_eq!(kind(file.sync()), kind(Err::<(), _>(rustix::io::Errno::IO.into())));
        let file = disk.open("x/f").unwrap();
        let mut bytes = [0; 20_000];
        let len = read_full(&*file, &mut bytes, 0).unwrap();
        assert_eq!((len, bytes[9999]), if keep == 0 { (10_000, 1) } else { (15_000, 2) });
        assert_eq!(disk.open("x/g").is_ok(), keep != 0);
    }
}

#[test]
fn bytes_lost_by_a_failed_sync_stay_lost() {
    let disk = Memory::new("m", 64 << 20);
    let file = disk.create_new("f").unwrap();
    disk.sync_folder("").unwrap();
    write_all(&*file, b"lost", &[], 0).unwrap();
    disk.inject(|operation, _| (operation == Operation::Sync).then(|| rustix::io::Errno::IO.into()));
    file.sync().unwrap_err();
    disk.heal();
    file.sync().unwrap();
    let copy = disk.copy();
    copy.power_cut(&mut |_| 0);
    assert_eq!(copy.open("f").unwrap().measure().unwrap().len, 0);
    // The failed sync left the page clean. A second write makes the page dirty again, so that the next sync writes it.
    write_all(&*file, b"LO", &[], 0).unwrap();
    write_all(&*file, b"T", &[], 3).unwrap();
    file.sync().unwrap();
    disk.power_cut(&mut |_| 0);
    let mut bytes = [0; 9];
    let file = disk.open("f").unwrap();
    assert_eq!(read_full(&*file, &mut bytes, 0).unwrap(), 4);
    assert_eq!(&bytes[..4], b"LOsT");
}

#[test]
fn a_file_system_that_cannot_write_names_fails_until_it_is_mounted_again() {
    let disk = Memory::new("m", 64 << 20);
    disk.create_new("f").unwrap();
    disk.sync_folder("").unwrap();
    disk.create_new("g").unwrap();
    disk.inject(|operation, _| (operation == Operation::SyncFolder).then(|| rustix::io::Errno::IO.into()));
    disk.sync_folder("").unwrap_err();
    disk.heal();
    assert!(disk.is_dead() && disk.sync_folder("").is_err() && disk.open("f").is_err());
    disk.power_cut(&mut |_| 0);
    assert!(disk.open("f").is_ok() && disk.open("g").is_err());
}

#[test]
fn a_disk_fails_after_a_set_number_of_changes_until_a_power_cut() {
    let disk = Memory::new("m", 64 << 20);
    let file = disk.create_new("f").unwrap();
    disk.die_after(2);
    write_all(&*file, b"a", &[], 0).unwrap();
    file.sync().unwrap();
    assert!(!disk.is_dead());
    write_all(&*file, b"b", &[], 0).unwrap_err();
    assert!(disk.is_dead() && file.read_at(&mut [0], 0).is_err() && disk.open("f").is_err());
    assert_eq!(disk.changes(), 3);
    disk.power_cut(&mut |bound| bound - 1);
    let mut byte = [0];
    assert_eq!(disk.open("f").unwrap().read_at(&mut byte, 0).unwrap(), 1);
    assert_eq!(&byte, b"a");
}

#[test]
fn a_full_disk_accepts_writes_after_a_removal() {
    let disk = Memory::new("m", 10 * 4096);
    let file = disk.create_new("f").unwrap();
    assert_eq!(file.write_at(&[1; 50_000], &[], 0).unwrap(), 40_960);
    assert_eq!(kind(file.write_at(b"x", &[], 40_960)), io::ErrorKind::StorageFull);
    file.write_at(b"x", &[], 0).unwrap();
    assert_eq!(disk.capacity().unwrap(), (40_960, 0));
    disk.remove("f").unwrap();
    assert_eq!(disk.capacity().unwrap().1, 0, "an open file keeps its space");
    drop(file);
    assert_eq!(disk.capacity().unwrap().1, 40_960);
}

#[test]
fn files_in_a_lost_folder_are_lost() {
    let disk = Memory::new("m", 1 << 20);
    disk.make_folder("a/b").unwrap();
    drop(disk.create_new("a/b/f").unwrap());
    disk.sync_folder("a/b").unwrap();
    disk.sync_folder("a").unwrap();
    disk.power_cut(&mut |_| 0);
    assert!(disk.files().is_empty() && !disk.is_folder("a"));
}
