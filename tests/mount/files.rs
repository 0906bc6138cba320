//! Files, names, attributes and bytes as one program sees them on a mount.

use crate::cluster::Cluster;
use crate::test_mount::{TestMount, can_mount};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
    renameat_with,
};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Returns `len` bytes whose values follow from their offsets and from `seed`.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i.wrapping_mul(0x9e37_79b9) ^ seed) >> 7) as u8).collect()
}

/// Returns a cluster and a mount of it. Returns `None` if this process cannot mount file systems.
pub fn mounted(options: &[&str]) -> Option<(tempfile::TempDir, Cluster, TestMount)> {
    if !can_mount() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), options);
    Some((dir, cluster, place))
}

#[test]
fn the_mount_and_other_clients_see_the_same_bytes() {
    for access in ["direct", "page"] {
        let Some((_dir, cluster, place)) = mounted(&["--access", access]) else { return };
        let whole = pattern(5_000_001, 1);
        fs::write(place.at("big"), &whole).unwrap();
        assert!(cluster.run(["cat", "/big"]) == whole, "other mounts see a closed file");
        assert_eq!(cluster.proxied_bytes(), 0, "the bytes take the direct path to the iods");
        cluster.put("/theirs", &whole[..777_777], &[]);
        assert!(fs::read(place.at("theirs")).unwrap() == whole[..777_777]);

        let file = OpenOptions::new().read(true).write(true).open(place.at("big")).unwrap();
        let mut part = vec![0; 4096];
        for (n, at) in [70_000u64, 1, 4_999_000, 65_535].into_iter().enumerate() {
            file.write_all_at(&pattern(100, n as u64 + 5), at).unwrap();
            let len = file.read_at(&mut part, at).unwrap();
            assert!(
                len >= 100 && part[..100] == pattern(100, n as u64 + 5)[..],
                "a program reads its own writes at once"
            );
        }
        file.set_len(70_050).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 70_050);
        assert_eq!(file.read_at(&mut part, 70_000).unwrap(), 50);
        drop(file);
        assert_eq!(cluster.run(["cat", "/big"]).len(), 70_050);
        place.unmount();
    }
}

#[test]
fn a_file_longer_than_any_disk_can_be_used() {
    let Some((dir, cluster, place)) = mounted(&[]) else { return };
    // Most local file systems do not support such a large offset in a file. So the iods may refuse the write, and its
    // result does not matter.
    const FAR: u64 = 70_368_743_129_083;
    let path = place.at("far");
    let file = File::create(&path).unwrap();
    let written = file.write_all_at(b"x", FAR).and_then(|()| file.sync_all());
    drop(file);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(FAR).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), FAR);
    // Kill the mgr, so that the mgr must complete the intents of interrupted operations when it restarts.
    let url = cluster.url.clone();
    cluster.kill();
    let cluster = Cluster::start_again(&url, &dir.path().join("data"));
    assert_eq!(fs::metadata(&path).unwrap().len(), FAR, "{written:?}");
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all(b"begin").unwrap();
    file.set_len(7).unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"begin\0\0");
    cluster.text(["stat", "/far"]);
    fs::remove_file(&path).unwrap();
    cluster.run(["fsck"]);
    place.unmount();
}

#[test]
fn links_fifos_renames_and_removals_work() {
    let Some((_dir, _cluster, place)) = mounted(&[]) else { return };
    let deep = place.at("a/b/c");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), b"one").unwrap();
    fs::hard_link(deep.join("file"), place.at("hard")).unwrap();
    assert_eq!(fs::metadata(place.at("hard")).unwrap().nlink(), 2);
    symlink("a/b/c/file", place.at("soft")).unwrap();
    assert_eq!(fs::read(place.at("soft")).unwrap(), b"one");
    assert_eq!(fs::read_link(place.at("soft")).unwrap().to_str(), Some("a/b/c/file"));
    rustix::fs::mknodat(CWD, place.at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert_eq!(fs::metadata(place.at("pipe")).unwrap().mode(), 0o010_600);

    // Replace a file by renaming a new file over it, as editors do to save a file.
    fs::write(place.at("new"), b"two").unwrap();
    fs::rename(place.at("new"), place.at("hard")).unwrap();
    assert_eq!(fs::read(place.at("hard")).unwrap(), b"two");
    assert_eq!(fs::read(place.at("soft")).unwrap(), b"one");
    fs::write(place.at("x"), b"x").unwrap();
    let careful = |from, to| renameat_with(CWD, place.at(from), CWD, place.at(to), RenameFlags::NOREPLACE);
    assert_eq!(careful("x", "hard"), Err(rustix::io::Errno::EXIST));
    careful("x", "y").unwrap();
    assert_eq!((fs::read(place.at("y")).unwrap(), place.at("x").exists()), (b"x".to_vec(), false));

    exchanges(&place);

    // A file that was removed while it is open must stay usable.
    let mut open = OpenOptions::new().read(true).write(true).open(place.at("y")).unwrap();
    fs::remove_file(place.at("y")).unwrap();
    open.write_all(b"still here").unwrap();
    open.sync_all().unwrap();
    let mut found = [0; 10];
    open.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"still here");
    assert_eq!(open.metadata().unwrap().nlink(), 0);

    assert_eq!(fs::remove_dir(place.at("a")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir_all(place.at("a")).unwrap();
    assert_eq!(fs::read_dir(place.at("a")).unwrap_err().kind(), ErrorKind::NotFound);
    drop(open);
    place.unmount();
}

/// Reads a growing log file while another program appends to it through a descriptor that is open only for writing.
#[test]
fn a_file_can_be_read_while_another_open_only_writes_it() {
    let Some((_dir, _cluster, place)) = mounted(&[]) else { return };
    let mut model = Vec::new();
    for piece in [10, 5_000, 200_000] {
        for append in [true, false] {
            let mut how = OpenOptions::new();
            let mut writer = how.append(append).write(!append).create(true).open(place.at("log")).unwrap();
            if !append {
                std::io::Seek::seek(&mut writer, std::io::SeekFrom::End(0)).unwrap();
            }
            let reader = fs::File::open(place.at("log")).unwrap();
            for _ in 0..3 {
                let more = pattern(piece, model.len() as u64);
                writer.write_all(&more).unwrap();
                model.extend_from_slice(&more);
                assert_eq!(fs::read(place.at("log")).unwrap(), model);
                let mut tail = vec![0; piece];
                reader.read_exact_at(&mut tail, (model.len() - piece) as u64).unwrap();
                assert_eq!(tail, more);
            }
            // Linux truncates a file that is opened with `O_TRUNC`, even if it is opened only for reading.
            if piece == 5_000 && append {
                let cuts = OFlags::RDONLY | OFlags::TRUNC | OFlags::CLOEXEC;
                drop(rustix::fs::open(place.at("log"), cuts, Mode::empty()).unwrap());
                assert_eq!(writer.metadata().unwrap().len(), 0);
                writer.write_all(b"x").unwrap();
                model = b"x".into();
            }
            // `lseek(SEEK_DATA)` must work with a descriptor that is open only for writing.
            assert_eq!(rustix::fs::seek(&writer, rustix::fs::SeekFrom::Data(0)), Ok(0));
        }
    }
    place.unmount();
}

/// An open directory that was removed or replaced must still have attributes, but no entries.
#[test]
fn a_removed_directory_keeps_its_attributes_while_it_is_open() {
    let Some((_dir, _cluster, place)) = mounted(&[]) else { return };
    fs::create_dir(place.at("gone")).unwrap();
    let open = fs::File::open(place.at("gone")).unwrap();
    fs::remove_dir(place.at("gone")).unwrap();
    let found = open.metadata().unwrap();
    assert_eq!((found.is_dir(), found.nlink()), (true, 0));
    assert_eq!(rustix::fs::mkdirat(&open, "in", Mode::RWXU), Err(rustix::io::Errno::NOENT));
    assert_eq!(fs::metadata(place.at("gone")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(place.at("gone")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    let replaced = fs::File::open(place.at("gone")).unwrap();
    fs::create_dir_all(place.at("other")).unwrap();
    fs::rename(place.at("other"), place.at("gone")).unwrap();
    assert_eq!(replaced.metadata().unwrap().nlink(), 0);
    assert_eq!(rustix::fs::mkdirat(&replaced, "in", Mode::RWXU), Err(rustix::io::Errno::NOENT));
    fs::create_dir(place.at("gone/in")).unwrap();
    drop((open, replaced));
    place.unmount();
}

/// The creation time of a file must never change, even if the file changes.
#[test]
fn the_creation_time_of_a_file_stays() {
    let Some((_dir, _cluster, place)) = mounted(&["-o", "attr_timeout=0"]) else { return };
    fs::write(place.at("f"), b"1").unwrap();
    let made = fs::metadata(place.at("f")).unwrap().created().unwrap();
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    let open = OpenOptions::new().append(true).open(place.at("f")).unwrap();
    (&open).write_all(b"2").unwrap();
    open.set_times(times).unwrap();
    for found in [open.metadata().unwrap(), fs::symlink_metadata(place.at("f")).unwrap()] {
        assert_eq!((found.created().unwrap(), found.len()), (made, 2));
        assert_eq!((found.modified().unwrap(), found.is_file()), (std::time::UNIX_EPOCH, true));
    }
    let special = fs::metadata(place.at("")).unwrap();
    assert!(special.is_dir() && special.created().unwrap() <= made);
    drop(open);
    place.unmount();
}

/// Checks the flags of renameat2(2) with files and directories.
fn exchanges(place: &TestMount) {
    let with = |flags, from, to| renameat_with(CWD, place.at(from), CWD, place.at(to), flags);
    fs::create_dir_all(place.at("swap/one/in")).unwrap();
    fs::create_dir_all(place.at("swap/two")).unwrap();
    fs::write(place.at("swap/two/file"), b"file").unwrap();
    let mut open = OpenOptions::new().append(true).open(place.at("swap/two/file")).unwrap();
    with(RenameFlags::EXCHANGE, "swap/one/in", "swap/two/file").unwrap();
    assert_eq!(fs::metadata(place.at("swap/one")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(place.at("swap/two")).unwrap().nlink(), 3);
    open.write_all(b" and more").unwrap();
    assert_eq!(fs::read(place.at("swap/one/in")).unwrap(), b"file and more");
    assert!(fs::read_dir(place.at("swap/two/file")).unwrap().next().is_none());
    with(RenameFlags::EXCHANGE, "swap/one", "swap/two").unwrap();
    assert_eq!(fs::read(place.at("swap/two/in")).unwrap(), b"file and more");
    assert_eq!(fs::canonicalize(place.at("swap/one/file/../..")).unwrap(), place.at("swap"));
    assert_eq!(with(RenameFlags::EXCHANGE, "swap/one", "swap/one/file"), Err(rustix::io::Errno::INVAL));
    assert_eq!(with(RenameFlags::EXCHANGE, "swap/one", "swap/none"), Err(rustix::io::Errno::NOENT));
    assert_eq!(with(RenameFlags::NOREPLACE, "swap/one", "swap/two"), Err(rustix::io::Errno::EXIST));
    assert_eq!(with(RenameFlags::WHITEOUT, "swap/one", "swap/three"), Err(rustix::io::Errno::INVAL));
    with(RenameFlags::NOREPLACE, "swap/one", "swap/three").unwrap();
    assert_eq!((place.at("swap/one").exists(), place.at("swap/three/file").is_dir()), (false, true));
    fs::remove_dir_all(place.at("swap")).unwrap();
}

#[test]
fn a_changing_directory_lists_each_permanent_name_once() {
    let Some((_dir, _cluster, place)) = mounted(&[]) else { return };
    let count = 2_500;
    let dir = place.at("many");
    fs::create_dir(&dir).unwrap();
    (0..count).for_each(|n| drop(File::create(dir.join(format!("{n:05}"))).unwrap()));
    let mut seen = 0;
    for (n, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        let entry = entry.unwrap();
        seen += usize::from(!entry.file_name().to_str().unwrap().starts_with("late"));
        if n % 100 == 0 {
            File::create(dir.join(format!("late{n}"))).unwrap();
            let _ = fs::remove_file(dir.join(format!("late{}", n.saturating_sub(300))));
        }
    }
    assert_eq!(seen, count, "a name that exists all the time is listed exactly once");
    place.unmount();
}

#[test]
fn times_modes_and_extended_attributes_stay() {
    let Some((_dir, _cluster, place)) = mounted(&[]) else { return };
    let path = place.at("f");
    let mut file = File::create(&path).unwrap();
    file.write_all(&pattern(200_000, 3)).unwrap();
    let before = file.metadata().unwrap();
    assert!(
        before.mtime() >= before.ctime() - 1 && before.len() == 200_000,
        "written bytes are visible before they are synced"
    );
    // Set the times before the file is closed, as `cp -p` and tar do.
    let then = Timespec { tv_sec: 1_000_000_000, tv_nsec: 123_456_789 };
    rustix::fs::futimens(&file, &Timestamps { last_access: then, last_modification: then }).unwrap();
    drop(file);
    let after = fs::metadata(&path).unwrap();
    assert_eq!((after.mtime(), after.mtime_nsec()), (1_000_000_000, 123_456_789));

    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    rustix::fs::chownat(CWD, &path, None, Some(rustix::fs::Gid::from_raw(1234)), AtFlags::empty()).unwrap();
    let changed = fs::metadata(&path).unwrap();
    assert_eq!((changed.gid(), changed.len()), (1234, 200_000));

    rustix::fs::setxattr(&path, "user.colour", b"green", XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(&path, "user.colour", b"blue", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    rustix::fs::setxattr(&path, "user.colour", b"blue", XattrFlags::REPLACE).unwrap();
    let mut value = [0; 64];
    let len = rustix::fs::getxattr(&path, "user.colour", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"blue");
    let len = rustix::fs::listxattr(&path, &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"user.colour\0");
    rustix::fs::removexattr(&path, "user.colour").unwrap();
    let gone = rustix::fs::getxattr(&path, "user.colour", &mut value[..]);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    place.unmount();
}

#[test]
fn all_programs_on_a_mount_see_the_written_length_at_once() {
    for access in ["direct", "page", "unbuffered"] {
        // With an entry timeout of 0, the mount requests each name of a path from the mgr at every lookup.
        let Some((_dir, _cluster, place)) = mounted(&["--access", access, "--entry-timeout", "0"]) else { return };
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(place.at("f")).unwrap();
        let mut len = 0;
        for piece in [3, 60, 5000, 100_000] {
            file.write_all(&pattern(piece, 3)).unwrap();
            len += piece;
            assert_eq!(fs::metadata(place.at("f")).unwrap().len(), len as u64, "{access}");
            assert_eq!(fs::read(place.at("f")).unwrap().len(), len, "{access}");
        }
        // A program that has the replaced file open must still see the old content of this file.
        let mut kept = OpenOptions::new().read(true).write(true).create_new(true).open(place.at("old")).unwrap();
        kept.write_all(b"old").unwrap();
        fs::write(place.at("new"), b"new").unwrap();
        fs::rename(place.at("new"), place.at("old")).unwrap();
        let mut found = [0; 9];
        assert_eq!(kept.read_at(&mut found, 0).unwrap(), 3, "{access}");
        assert_eq!((&found[..3], fs::read(place.at("old")).unwrap()), (&b"old"[..], b"new".to_vec()));
        drop((file, kept));
        place.unmount();
    }
}

/// Caches the attributes of a file in the kernel, changes the file, and then reads all its attributes, including the
/// creation time, with statx(2). The attributes must show the change.
#[test]
fn attributes_from_before_a_change_are_not_reported_again() {
    let Some((_dir, cluster, place)) = mounted(&[]) else { return };
    type Change = fn(&File, &Path);
    let changes: [(&str, Change, (u64, u64, u32)); 4] = [
        ("append", |mut open, _| open.write_all(b"more").unwrap(), (8, 1, 0o644)),
        ("cut", |open, _| open.set_len(1).unwrap(), (1, 1, 0o644)),
        ("chmod", |open, _| open.set_permissions(fs::Permissions::from_mode(0o600)).unwrap(), (4, 1, 0o600)),
        ("link", |_, path| fs::hard_link(path, path.with_extension("again")).unwrap(), (4, 2, 0o644)),
    ];
    for (name, change, wanted) in changes {
        cluster.put(&format!("/{name}"), b"text", &[]);
        let path = place.at(name);
        let open = OpenOptions::new().append(true).open(&path).unwrap();
        // stat(2) does not request the creation time, so the kernel caches the attributes without it.
        assert_eq!(rustix::fs::stat(&path).unwrap().st_size, 4);
        change(&open, &path);
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.nlink(), found.mode() & 0o777), wanted, "{name}");
        found.created().unwrap();
    }
    place.unmount();
}

/// A guard that sets its flag when it is dropped.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Other threads create and remove a name all the time, as programs do with lock files. An open of this name must find
/// the file or return ENOENT. A name that another thread replaces all the time must always exist.
#[test]
fn opening_a_name_that_is_recreated_finds_a_file_or_none() {
    let Some((_dir, _cluster, place)) = mounted(&[]) else { return };
    let (lock, table) = (place.at("lock"), place.at("table"));
    File::create(&table).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                // Set the flag even if this thread panics, because the other threads otherwise run forever.
                let _done = Sets(&done);
                for round in 0..400 {
                    if let Err(error) = OpenOptions::new().write(true).open(&lock) {
                        assert_eq!(error.kind(), ErrorKind::NotFound, "round {round}: {error}");
                    }
                    File::open(&table).unwrap_or_else(|error| panic!("round {round}: {error}"));
                }
            });
        }
        scope.spawn(|| {
            while !done.load(SeqCst) {
                drop(File::create(place.at("own")).unwrap());
                fs::hard_link(place.at("own"), &lock).unwrap();
                fs::remove_file(place.at("own")).unwrap();
                fs::remove_file(&lock).unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(SeqCst) {
                drop(File::create(place.at("next")).unwrap());
                fs::rename(place.at("next"), &table).unwrap();
            }
        });
    });
    place.unmount();
}

/// Searches for data while the mgr still gathers short writes. The client asks only the iods for data ranges, but
/// must also find the bytes that the mgr has gathered.
fn seeks_short_writes(place: &TestMount) {
    let short = OpenOptions::new().write(true).create_new(true).open(place.at("short")).unwrap();
    for at in [1, 5, 4096, 100_000] {
        short.set_len(0).unwrap();
        short.write_all_at(b"a", at).unwrap();
        assert!(rustix::fs::seek(&short, SeekFrom::Data(0)).unwrap() <= at, "written at {at}");
    }
}

#[test]
fn holes_fallocate_copies_and_mappings_work() {
    for access in ["direct", "page"] {
        let Some((_dir, cluster, place)) = mounted(&["--access", access]) else { return };
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(place.at("holes")).unwrap();
        let data = pattern(65_536, 9);
        file.write_all_at(&data, 1 << 20).unwrap();
        file.write_all_at(&data, 3 << 20).unwrap();
        file.sync_all().unwrap();
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap(), 1 << 20);
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(1 << 20)).unwrap(), (1 << 20) + 65_536);
        let whole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, whole, 1 << 20, 65_536).unwrap();
        let mut byte = [1];
        file.read_exact_at(&mut byte, (1 << 20) + 5).unwrap();
        assert_eq!(byte, [0]);
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap(), 3 << 20);

        rustix::fs::fallocate(&file, FallocateFlags::empty(), 4 << 20, 1000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (4 << 20) + 1000);
        let keep = FallocateFlags::KEEP_SIZE;
        let beyond = rustix::fs::fallocate(&file, keep, 8 << 20, 1000);
        assert_eq!(beyond, Err(rustix::io::Errno::OPNOTSUPP));
        rustix::fs::fallocate(&file, keep, 0, 4 << 20).unwrap();
        // Zero ranges of a file and reserve storage for them. A range may extend the file only if the flags allow it.
        let zeroed = OpenOptions::new().read(true).write(true).create_new(true).open(place.at("zeroed")).unwrap();
        zeroed.write_all_at(&data, 0).unwrap();
        for (flags, offset, len) in
            [(FallocateFlags::empty(), 65_000, 70_000), (keep, 100, 1000), (keep, 69_000, 75_000)]
        {
            rustix::fs::fallocate(&zeroed, FallocateFlags::ZERO_RANGE | flags, offset, len - offset).unwrap();
        }
        let mut wanted = data.clone();
        wanted.resize(70_000, 0);
        wanted[65_000..].fill(0);
        wanted[100..1000].fill(0);
        let mut found = Vec::new();
        (&zeroed).read_to_end(&mut found).unwrap();
        assert!(found == wanted);
        drop(zeroed);
        fs::remove_file(place.at("zeroed")).unwrap();
        let copy = File::create(place.at("copy")).unwrap();
        let copied = rustix::fs::copy_file_range(&file, Some(&mut (3 << 20)), &copy, Some(&mut 77), 65_536).unwrap();
        assert!(copied == 65_536 && fs::read(place.at("copy")).unwrap()[77..] == data[..]);
        assert!(
            cluster.counter("counters", "iod_copied_bytes") >= 65_536,
            "the iods copy the bytes, without the mount and the mgr"
        );
        drop(copy);

        // A shared mapping must show the bytes of the file.
        // SAFETY: the code uses the mapping only within its length, and unmaps it at the end of the block.
        unsafe {
            let (len, all) = (8192, ProtFlags::READ | ProtFlags::WRITE);
            let map = rustix::mm::mmap(std::ptr::null_mut(), len, all, MapFlags::SHARED, &file, 3 << 20).unwrap();
            let bytes = std::slice::from_raw_parts_mut(map.cast::<u8>(), len);
            assert!(bytes[..] == data[..len]);
            bytes[100..105].copy_from_slice(b"inmap");
            rustix::mm::msync(map, len, MsyncFlags::SYNC).unwrap();
            let mut found = [0; 5];
            file.read_exact_at(&mut found, (3 << 20) + 100).unwrap();
            assert_eq!(&found, b"inmap");
            rustix::mm::munmap(map, len).unwrap();
        }
        drop(file);
        seeks_short_writes(&place);
        let there = cluster.run(["cat", "/holes"]);
        assert_eq!(&there[(3 << 20) + 100..(3 << 20) + 105], b"inmap");
        place.unmount();
    }
}

#[test]
fn busy_mounts_and_bad_mount_commands_report_errors() {
    let Some((dir, cluster, place)) = mounted(&["--read-only"]) else { return };
    cluster.put("/f", b"text", &[]);
    let mut open = File::open(place.at("f")).unwrap();
    let refused = File::create(place.at("g")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "read-only: {refused}");
    let umount = |options: &[&str]| {
        let mut command = cluster.weir(["umount"]);
        command.args(options).arg(dir.path().join("mnt")).output().unwrap()
    };
    let busy = umount(&[]);
    let said = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(busy.status.code() == Some(1) && said.contains("busy") && said.contains("--lazy"), "{said}");
    assert!(umount(&["--lazy"]).status.success());
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "text", "programs that have the file open continue");
    let nothing = umount(&[]);
    assert_eq!(nothing.status.code(), Some(1));
    let mut mount = cluster.weir(["mount", &cluster.url, "/nowhere/at/all"]);
    assert!(crate::cluster::fail(&mut mount, 1).contains("make the directory first"));
    let mut mount = cluster.weir(["mount", &cluster.url, "/tmp", "-o", "ro,colour=blue"]);
    assert!(crate::cluster::fail(&mut mount, 2).contains("colour=blue"));
    let mut mount = cluster.weir(["mount", "weir://127.0.0.1:1/", "/tmp", "--connect-timeout", "1"]);
    assert!(crate::cluster::fail(&mut mount, 3).contains("is the mgr running there"));
}

#[test]
fn each_write_takes_its_path() {
    let Some((dir, cluster, place)) = mounted(&[]) else { return };
    let large = pattern(1 << 20, 4);
    let count = |name| cluster.counter("operations", name);
    fs::write(place.at("large"), &large).unwrap();
    assert_eq!((cluster.proxied_bytes(), count("layoutget")), (0, 1), "the bytes take the direct path to the iods");
    fs::write(place.at("small"), &large[..2000]).unwrap();
    assert_eq!(
        (cluster.proxied_bytes(), count("layoutget")),
        (2000, 1),
        "through the mgr, which needs no layout for it"
    );
    assert!(fs::read(place.at("small")).unwrap() == large[..2000]);
    assert_eq!((cluster.proxied_bytes(), count("layoutget")), (4000, 1));
    // Write one file on the direct path and on the mgr path: the newest bytes must remain.
    let file = OpenOptions::new().read(true).write(true).open(place.at("large")).unwrap();
    file.write_all_at(b"small", 5000).unwrap();
    file.write_all_at(&large, 4000).unwrap();
    file.write_all_at(b"newest", 6000).unwrap();
    file.sync_all().unwrap();
    let mut whole = large[..4000].to_vec();
    whole.extend_from_slice(&large);
    whole[6000..6006].copy_from_slice(b"newest");
    drop(file);
    assert!(cluster.run(["cat", "/large"]) == whole);

    let other = TestMount::new(&cluster, &dir.path().join("other"), &["--write-threshold", "0"]);
    let before = cluster.proxied_bytes();
    fs::write(other.at("straight"), &large[..2000]).unwrap();
    assert_eq!(cluster.proxied_bytes(), before, "with a threshold of 0, all bytes take the direct path");
    other.unmount();
    let auto = TestMount::new(&cluster, &dir.path().join("auto"), &["-o", "write_threshold=auto"]);
    (0..200).for_each(|n| fs::write(auto.at(&format!("f{n}")), pattern(n * 500, n as u64)).unwrap());
    (0..200).for_each(|n| assert!(fs::read(auto.at(&format!("f{n}"))).unwrap() == pattern(n * 500, n as u64)));
    auto.unmount();
    place.unmount();
}
