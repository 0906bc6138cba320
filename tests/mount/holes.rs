//! Files with holes: the storage that they use, and how cp, tar and du process them.

use crate::cluster::{signal, succeed};
use crate::files::{mounted, pattern};
use crate::lab::Lab;
use crate::test_mount::{TestMount, can_mount};
use rustix::fs::{AtFlags, CWD, FallocateFlags, StatxFlags, fallocate, statx};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Storage in bytes that the objects of a file on four iods may use in addition to its data.
const BESIDES: u64 = 64 << 10;

/// Returns the storage of a file in bytes as the server reports it now, not as the kernel has cached it.
fn taken(path: &Path) -> u64 {
    statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap().stx_blocks * 512
}

/// Waits until a file uses at least `bytes` of storage and at most [`BESIDES`] more. The wait is necessary because the
/// mgr caches the replies of the iods for one second.
fn takes(path: &Path, bytes: u64) {
    let about = bytes..=bytes + BESIDES;
    while !about.contains(&taken(path)) {
        std::thread::yield_now();
    }
}

fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

#[test]
fn unwritten_ranges_take_no_storage() {
    for access in ["direct", "page"] {
        let Some((_dir, cluster, place)) = mounted(&["--access", access]) else { return };
        let longer = place.at("longer");
        create(&longer).set_len(1 << 30).unwrap();
        takes(&longer, 512);
        // Write on both paths: the short write takes the mgr path, and the long write takes the direct path.
        for (name, len) in [("few", 20_000), ("many", 262_144)] {
            let path = place.at(name);
            create(&path).write_all_at(&pattern(len, 1), 1 << 30).unwrap();
            takes(&path, len as u64);
            let found = fs::metadata(&path).unwrap();
            assert_eq!(found.len(), (1 << 30) + len as u64);
            assert!(fs::read_dir(place.at("")).unwrap().flatten().all(|entry| entry.metadata().unwrap().blocks() > 0));
        }
        assert!(cluster.proxied_bytes() >= 20_000 && cluster.proxied_bytes() < 262_144);

        // Write the whole file, punch a hole into it, and write to the hole again.
        let path = place.at("whole");
        let whole = pattern(4 * MIB as usize, 2);
        fs::write(&path, &whole).unwrap();
        assert!(taken(&path) >= 4 * MIB);
        assert_eq!(taken(&path), 4 * MIB, "the mgr sends no query to the iods");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, MIB, 2 * MIB).unwrap();
        drop(file);
        takes(&path, 2 * MIB);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&whole[MIB as usize..3 * MIB as usize], MIB).unwrap();
        drop(file);
        takes(&path, 4 * MIB);
        assert!(fs::read(&path).unwrap() == whole);
        place.unmount();
    }
}

#[test]
fn cp_and_tar_keep_holes() {
    let Some((dir, _cluster, place)) = mounted(&[]) else { return };
    let local = dir.path().join("local");
    let file = create(&local);
    file.write_all_at(&pattern(100_000, 3), 0).unwrap();
    file.write_all_at(&pattern(100_000, 4), 32 * MIB).unwrap();
    file.set_len(64 * MIB).unwrap();
    drop(file);
    let content = fs::read(&local).unwrap();
    let cp = |options: &[&str], from: &Path, to: &Path| succeed(Command::new("cp").args(options).arg(from).arg(to));
    let sparse = place.at("sparse");
    cp(&["--sparse=always"], &local, &sparse);
    takes(&sparse, 200_000);
    let du = String::from_utf8(succeed(Command::new("du").args(["-k"]).arg(&sparse))).unwrap();
    let kib: u64 = du.split_whitespace().next().unwrap().parse().unwrap();
    assert!((195..300).contains(&kib), "{du}");
    // cp must find the holes of the file by itself, as in a local file.
    let (back, within) = (dir.path().join("back"), place.at("within"));
    cp(&["--sparse=auto", "--reflink=never"], &sparse, &back);
    assert!(fs::metadata(&back).unwrap().blocks() * 512 < MIB);
    assert!(fs::read(&back).unwrap() == content);
    cp(&["--sparse=auto", "--reflink=never"], &sparse, &within);
    takes(&within, 200_000);
    let archive = dir.path().join("archive");
    succeed(Command::new("tar").arg("-cSf").arg(&archive).arg("-C").arg(place.at("")).arg("sparse"));
    assert!(fs::metadata(&archive).unwrap().len() < MIB);
    let full = place.at("full");
    cp(&["--sparse=never"], &sparse, &full);
    takes(&full, 64 * MIB);
    for path in [sparse, within, full] {
        assert!(fs::read(&path).unwrap() == content, "{path:?}");
    }
    place.unmount();
}

#[test]
fn programs_that_look_for_holes_see_unsynced_bytes() {
    let Some((dir, _cluster, place)) = mounted(&[]) else { return };
    let path = place.at("open");
    let file = create(&path);
    file.set_len(16 * MIB).unwrap();
    file.write_all_at(b"here", 8 * MIB).unwrap();
    // tar treats a file without storage as empty. So the mount must report storage even if it still gathers the bytes
    // of the file.
    assert!(taken(&path) > 0);
    let archive = dir.path().join("archive");
    succeed(Command::new("tar").arg("-cSf").arg(&archive).arg("-C").arg(place.at("")).arg("open"));
    let out = Command::new("tar").arg("-xOf").arg(&archive).output().unwrap().stdout;
    assert!(out.len() == 16 * MIB as usize && out[8 * MIB as usize..][..4] == *b"here");
    drop(file);
    place.unmount();
}

#[test]
fn stat_and_readdir_do_not_wait_for_a_stopped_iod() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(dir.path(), 2);
    let place = TestMount::at_url(&lab.url, &dir.path().join("mnt"), &[]);
    let at = place.at("dir");
    fs::create_dir(&at).unwrap();
    for n in 0..40 {
        let file = create(&at.join(format!("f{n}")));
        file.set_len(1 << 30).unwrap();
        file.write_all_at(&pattern(100_000, n), 100 * MIB).unwrap();
    }
    takes(&at.join("f0"), 100_000);
    signal(lab.iods[1].child(), Signal::STOP);
    for n in 0..40 {
        let found = statx(CWD, at.join(format!("f{n}")), AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
        assert_eq!(found.stx_size, 1 << 30);
    }
    let names = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(names.filter(|len| *len == 1 << 30).count(), 40);
    // The iod was stopped during all calls of this test, so none of these calls can have waited for a reply of the iod.
    signal(lab.iods[1].child(), Signal::CONT);
    for n in 0..40 {
        takes(&at.join(format!("f{n}")), 100_000);
    }
    place.unmount();
}
