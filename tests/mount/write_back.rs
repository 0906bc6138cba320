//! Mounts with write-back caching (`-o writeback`), and the changes that these mounts and other mounts see of each
//! other.

use crate::cluster::Cluster;
use crate::test_mount::{OPTIONS, TRANSPORT, TestMount, can_mount, full, rerun_passes};
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;

const WRITE_BACK: &[&str] = &["-o", "writeback"];

/// Returns whether these tests cannot run: the environment already sets mount options, or this process cannot mount
/// file systems.
fn cannot() -> bool {
    std::env::var_os(OPTIONS).is_some() || !can_mount()
}

/// Returns a cluster with a mount that has write-back caching, and a second mount with the options `other`.
fn two(other: &[&str]) -> Option<(tempfile::TempDir, Cluster, [TestMount; 2])> {
    if cannot() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = |name: &str, options| TestMount::new(&cluster, &dir.path().join(name), options);
    let places = [place("one", WRITE_BACK), place("two", other)];
    Some((dir, cluster, places))
}

/// Data written with O_DSYNC must survive the death of the mount, also while the mount has another file open without
/// write-back caching. A second mount uses that other file, so the first mount stops write-back caching for it.
#[test]
fn data_written_with_o_dsync_outlives_the_mount() {
    let Some((_dir, _cluster, [one, two])) = two(WRITE_BACK) else { return };
    let shared = create(one.at("shared"));
    shared.write_all_at(b"1", 0).unwrap();
    let theirs = OpenOptions::new().read(true).write(true).open(two.at("shared")).unwrap();
    theirs.write_all_at(b"2", 1).unwrap();
    shared.write_all_at(b"3", 2).unwrap();
    let dsync = rustix::fs::OFlags::DSYNC.bits() as i32;
    let own = OpenOptions::new().write(true).create_new(true).custom_flags(dsync).open(one.at("own")).unwrap();
    own.write_all_at(&[7; 10_000], 0).unwrap();
    rustix::process::kill_process(one.daemon(), rustix::process::Signal::KILL).unwrap();
    assert!(fs::read(two.at("own")).unwrap() == [7; 10_000]);
    drop((shared, own, theirs));
    two.unmount();
}

fn create(path: std::path::PathBuf) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}

/// Waits until `holds` returns `true`, for a condition that other mounts see only after a while. Prints the description
/// `what` of this condition.
fn soon(what: &str, holds: impl Fn() -> bool) {
    eprintln!("waiting: {what}");
    while !holds() {
        std::thread::yield_now();
    }
}

#[test]
fn the_other_tests_pass_with_write_back_caching() {
    // The transports do not depend on write-back caching. So, without `WEIR_TEST_SCALE=full`, run the tests with
    // write-back caching only over the default transport.
    let with_a_transport = std::env::var_os(TRANSPORT).is_some();
    if cannot() || (with_a_transport && !full()) {
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    // Skip two tests. One test checks which path each write takes, which write-back caching changes. The other test
    // reads a file that a killed mount had open; with write-back caching, this read waits until the lease of the
    // killed mount expires.
    again.args([
        "files::",
        "sharing::",
        "descriptors::",
        "users::",
        "deaths::",
        "shared_process::",
        "mappings::",
        "--skip",
        "each_write_takes_its_path",
        "--skip",
        "outlives_the_mount",
    ]);
    if full() {
        // Run the tests of names only with `WEIR_TEST_SCALE=full`, because write-back caching concerns data.
        again.arg("names::");
    }
    rerun_passes(again.env(OPTIONS, "writeback"));
}

/// Returns the number of read system calls of a mount's process, which uses them to receive requests from the kernel.
fn reads(place: &TestMount) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", place.daemon().as_raw_pid())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

#[test]
fn stat_after_a_write_needs_one_request() {
    let Some((_dir, _cluster, [one, two])) = two(&[]) else { return };
    let names: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    names.iter().for_each(|name| fs::write(one.at(name), vec![1; 10 + name.len()]).unwrap());
    let before = reads(&one);
    let here: Vec<_> = names.iter().map(|name| fs::metadata(one.at(name)).unwrap()).collect();
    let asked = reads(&one) - before;
    assert!(asked < 1_000, "{asked} read system calls of the mount, for 500 stat calls");
    for (name, here) in names.iter().zip(here) {
        let there = fs::metadata(two.at(name)).unwrap();
        assert_eq!((here.len(), here.modified().unwrap()), (there.len(), there.modified().unwrap()));
    }
    one.unmount();
    two.unmount();
}

#[test]
fn small_writes_do_not_reach_the_mount_one_by_one() {
    let Some((_dir, _cluster, [one, two])) = two(&[]) else { return };
    let file = create(one.at("f"));
    let before = reads(&one);
    for n in 0..20_000u64 {
        file.write_all_at(&n.to_be_bytes(), n * 8).unwrap();
    }
    file.sync_all().unwrap();
    let asked = reads(&one) - before;
    assert!(asked < 2_000, "{asked} read system calls of the mount, for 20000 writes");
    let whole: Vec<u8> = (0..20_000u64).flat_map(u64::to_be_bytes).collect();
    assert!(fs::read(two.at("f")).unwrap() == whole);
    drop(file);
    one.unmount();
    two.unmount();
}

#[test]
fn an_open_on_another_mount_sees_written_back_data() {
    let Some((_dir, cluster, [one, two])) = two(&[]) else { return };
    let file = create(one.at("f"));
    file.write_all_at(&[7; 10_000], 0).unwrap();
    // The other mount must see the written bytes, although the program has neither synced nor closed the file.
    assert_eq!(fs::metadata(two.at("f")).unwrap().len(), 10_000);
    // After the second mount has used the file, the first mount must send unsynced bytes after a while, as a mount
    // without write-back caching does.
    file.write_all_at(&[8; 10_000], 10_000).unwrap();
    soon("bytes and length", || fs::metadata(two.at("f")).unwrap().len() == 20_000);
    assert!(fs::read(two.at("f")).unwrap() == [[7; 10_000], [8; 10_000]].concat());
    file.write_all_at(&[9; 10], 5_000).unwrap();
    file.sync_all().unwrap();
    assert_eq!(cluster.run(["cat", "/f"])[5_000..5_010], [9; 10]);
    drop(file);
    // The second mount may show older times for up to one second, because it caches the attributes that it received
    // before the last write.
    soon("times", || {
        let times = |place: &TestMount| {
            fs::metadata(place.at("f")).map(|found| (found.len(), found.mtime(), found.mtime_nsec())).unwrap()
        };
        times(&one) == times(&two)
    });
    one.unmount();
    two.unmount();
}

/// The kernel may write pages back through any open of the file. In this test, the kernel uses the newest open of the
/// file, not the open through which the program wrote.
#[test]
fn close_makes_pages_durable_whichever_open_writes_them_back() {
    let Some((dir, cluster, [one, two])) = two(&[]) else { return };
    // Write so few bytes that the mount gathers them instead of sending them at once.
    let data = [7; 3_000];
    let mut kept = Vec::new();
    for name in ["f", "g"] {
        let older = create(one.at(name));
        older.set_len(3_000).unwrap();
        older.sync_all().unwrap();
        let newer = OpenOptions::new().read(true).write(true).open(one.at(name)).unwrap();
        if name == "f" {
            older.write_all_at(&data, 0).unwrap();
        } else {
            fill(&older, &data);
        }
        drop(older);
        kept.push(newer);
    }
    rustix::process::kill_process(one.daemon(), rustix::process::Signal::KILL).unwrap();
    while fs::read_dir(one.at("")).is_ok() {
        std::thread::yield_now();
    }
    drop(kept);
    std::mem::forget(one);
    // Mount the file system again at the mount point of the killed mount. Until this new mount exists, other mounts
    // have to wait for files that the killed mount had open.
    let again = TestMount::new(&cluster, &dir.path().join("one"), WRITE_BACK);
    for name in ["f", "g"] {
        assert!(fs::read(two.at(name)).unwrap() == data, "{name}");
    }
    again.unmount();
    two.unmount();
}

/// Writes `data` to a file through a shared mapping.
fn fill(file: &File, data: &[u8]) {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let (len, both) = (data.len(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: this is a new mapping of `data.len()` bytes, and the file is at least as long. No other code uses it, and
    // the block unmaps it at its end.
    unsafe {
        let at = mmap(std::ptr::null_mut(), len, both, MapFlags::SHARED, file, 0).unwrap();
        std::ptr::copy_nonoverlapping(data.as_ptr(), at.cast(), len);
        munmap(at, len).unwrap();
    }
}

/// Writes at an offset that is too large for most local file systems, so that an iod refuses the write. The mount must
/// report an error.
#[test]
fn a_failed_write_back_is_reported_once_and_leaves_the_size() {
    const FAR: u64 = 70_368_743_129_083;
    let Some((_dir, _cluster, [place, _other])) = two(&[]) else { return };
    let path = place.at("f");
    fs::write(&path, b"head").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let fails = |outcome: std::io::Result<()>| match outcome {
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge),
        Ok(()) => panic!("the iods' local file system holds a file of 64 TiB: run this on ext4"),
    };
    // `fsync` must report the write error, and no later call through this open may report this error again.
    let file = open();
    file.write_all_at(b"x", FAR).unwrap();
    fails(file.sync_all());
    assert_eq!(file.metadata().unwrap().len(), 4);
    file.sync_all().unwrap();
    file.write_all_at(b"tail", 4).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8);
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"headtail");
    // `close` must report the write error. Let dd write, because the standard library of Rust ignores errors of
    // `close`.
    for _ in 0..10 {
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/zero", "bs=1", "count=1", "conv=notrunc", "status=none"]);
        let said = dd.arg(format!("seek={FAR}")).arg(format!("of={}", path.display())).output().unwrap();
        assert!(String::from_utf8_lossy(&said.stderr).contains("File too large"), "{said:?}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 8);
    }
    place.unmount();
}

/// Two mounts with write-back caching write different bytes of the same pages at the same time, without locks. No byte
/// may be lost.
#[test]
fn write_back_of_a_page_keeps_bytes_of_other_mounts() {
    let Some((_dir, cluster, places)) = two(WRITE_BACK) else { return };
    let (record, rounds) = (100, 300);
    // The first mount has a write delegation of the file until the other mount opens the file.
    let mine = create(places[0].at("f"));
    mine.write_all_at(&[1; 64], 0).unwrap();
    let theirs = OpenOptions::new().write(true).open(places[1].at("f")).unwrap();
    std::thread::scope(|scope| {
        for (who, file) in [(0u64, &mine), (1, &theirs)] {
            scope.spawn(move || {
                for round in 0..rounds {
                    file.write_all_at(&[b'a' + who as u8; 100], (2 * round + who) * record).unwrap();
                }
                file.sync_all().unwrap();
            });
        }
    });
    let found = cluster.run(["cat", "/f"]);
    let want: Vec<u8> = (0..2 * rounds).flat_map(|n| [b'a' + (n % 2) as u8; 100]).collect();
    let wrong = found.iter().zip(&want).position(|(a, b)| a != b);
    assert!(found == want, "{} bytes of {}, first difference at {wrong:?}", found.len(), want.len());
    // A mount that already has the file open must see the new length and the new bytes.
    theirs.write_all_at(b"end", 100_000).unwrap();
    theirs.sync_all().unwrap();
    soon("the file has become longer", || mine.metadata().unwrap().len() == 100_003);
    let mut end = [0; 3];
    mine.read_exact_at(&mut end, 100_000).unwrap();
    assert_eq!(&end, b"end");
    drop((mine, theirs));
    places.into_iter().for_each(TestMount::unmount);
}

/// Pages also enter the page cache through mappings, even if the open bypasses the page cache. The write-back of such
/// pages must not overwrite bytes of other mounts.
#[test]
fn write_back_of_a_mapped_page_keeps_bytes_of_other_mounts() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let Some((_dir, _cluster, [one, two])) = two(&[]) else { return };
    let mine = create(one.at("f"));
    mine.write_all_at(&[1; 4096], 0).unwrap();
    let theirs = OpenOptions::new().read(true).write(true).open(two.at("f")).unwrap();
    // Another mount has the file open, so the next open of the file bypasses the page cache.
    let mapped = OpenOptions::new().read(true).write(true).open(one.at("f")).unwrap();
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: this is a new mapping of one page, and the file keeps its length of one page.
    let at = unsafe { mmap(std::ptr::null_mut(), 4096, both, MapFlags::SHARED, &mapped, 0).unwrap() } as usize;
    let end = std::sync::atomic::AtomicBool::new(false);
    let ends = || end.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends() {
                // SAFETY: the page stays mapped until this thread has ended, because the scope ends before `munmap`.
                unsafe { std::ptr::read_volatile(at as *const u8) };
            }
        });
        scope.spawn(|| {
            for round in 0u64.. {
                mine.write_all_at(&round.to_be_bytes(), 1000).unwrap();
                if ends() {
                    break;
                }
            }
        });
        let counted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..200u64 {
                theirs.write_all_at(&round.to_be_bytes(), 100).unwrap();
                theirs.sync_all().unwrap();
                let mut found = [0; 8];
                theirs.read_exact_at(&mut found, 100).unwrap();
                assert_eq!(u64::from_be_bytes(found), round, "no other client writes the file");
            }
        }));
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        counted.unwrap();
    });
    // SAFETY: all threads that use the mapping have ended.
    unsafe { munmap(at as *mut _, 4096).unwrap() };
    drop((mine, mapped, theirs));
    one.unmount();
    two.unmount();
}

#[test]
fn writes_after_a_truncation_by_another_mount_set_the_length() {
    let Some((_dir, cluster, [one, two])) = two(&[]) else { return };
    let mine = create(one.at("f"));
    mine.write_all_at(&[1; 10_000], 0).unwrap();
    let theirs = OpenOptions::new().read(true).write(true).open(two.at("f")).unwrap();
    for round in 0..20u8 {
        mine.write_all_at(&[round; 10_000], 0).unwrap();
        mine.sync_all().unwrap();
        theirs.set_len(0).unwrap();
        // Write several ranges of the file at the same time. After each write, the mount must report the new length to
        // the kernel.
        std::thread::scope(|scope| {
            for part in 0..4u64 {
                let mine = &mine;
                scope.spawn(move || mine.write_all_at(&[b'a' + round; 5], part * 5).unwrap());
            }
        });
        mine.sync_all().unwrap();
        assert_eq!(cluster.run(["cat", "/f"]), [b'a' + round; 20]);
        assert_eq!(std::io::Seek::seek(&mut &mine, std::io::SeekFrom::End(0)).unwrap(), 20);
    }
    drop((mine, theirs));
    one.unmount();
    two.unmount();
}

#[test]
fn changes_by_other_mounts_are_seen_despite_cached_sizes_and_times() {
    let Some((_dir, _cluster, [one, two])) = two(&[]) else { return };
    fs::write(one.at("f"), [1; 7_000]).unwrap();
    let (here, there) = (|| fs::metadata(one.at("f")).unwrap(), || fs::metadata(two.at("f")).unwrap());
    let same = || (here().len(), here().mtime_nsec()) == (there().len(), there().mtime_nsec());
    let reader = File::open(one.at("f")).unwrap();
    for (len, byte) in [(5, 2), (9_000, 3), (0, 4), (300_000, 5)] {
        fs::write(two.at("f"), vec![byte; len]).unwrap();
        assert!(fs::read(one.at("f")).unwrap() == vec![byte; len], "the next open sees the bytes at once");
        soon("attributes", || same() && here().len() == len as u64);
        soon("attributes of an open file", || reader.metadata().unwrap().len() == len as u64);
        let mut found = vec![0; len + 1];
        assert_eq!(reader.read_at(&mut found, 0).unwrap().min(len), len.min(reader.read_at(&mut found, 0).unwrap()));
        let names: Vec<u64> =
            fs::read_dir(one.at("")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(names, [len as u64], "by the directory");
    }
    // Writes that bypass the page cache of this mount must also be visible to programs that read through the page
    // cache.
    let mut appended = OpenOptions::new().append(true).open(one.at("f")).unwrap();
    std::io::Write::write_all(&mut appended, b"more").unwrap();
    assert_eq!(appended.metadata().unwrap().len(), 300_004);
    drop(appended);
    soon("the same on both", || same() && here().len() == 300_004);
    drop(reader);
    one.unmount();
    two.unmount();
}

#[test]
fn permissions_are_those_of_the_program_not_of_the_cache() {
    let Some((_dir, _cluster, [one, two])) = two(&[]) else { return };
    // To change a part of a page, the page cache must read the page, although the program has no permission to read the
    // file.
    let secret = OpenOptions::new().write(true).create(true).truncate(true).mode(0o222).open(one.at("w")).unwrap();
    secret.write_all_at(&[1; 5_000], 0).unwrap();
    secret.write_all_at(&[2; 10], 100).unwrap();
    assert!(secret.read_at(&mut [0; 1], 0).is_err());
    drop(secret);
    fs::set_permissions(one.at("w"), fs::Permissions::from_mode(0o222)).unwrap();
    let script = format!("printf xyz | dd of={} bs=3 seek=1 conv=notrunc 2>/dev/null", one.at("w").display());
    fs::set_permissions(one.at(""), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = one.at("").parent().unwrap().to_owned();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let user = |script: &str| {
        Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", "--clear-groups", "sh", "-c", script])
            .status()
            .unwrap()
    };
    assert!(user(&script).success());
    let mut want = vec![1; 5_000];
    want[3..6].copy_from_slice(b"xyz");
    want[100..110].fill(2);
    assert!(fs::read(two.at("w")).unwrap() == want);
    // A write or truncation by another user must clear the setuid and setgid bits of a program.
    for change in
        ["printf x >> FILE", "printf x | dd of=FILE conv=notrunc 2>/dev/null", ": > FILE", "truncate -s 1 FILE"]
    {
        fs::write(one.at("p"), b"program").unwrap();
        fs::set_permissions(one.at("p"), fs::Permissions::from_mode(0o6777)).unwrap();
        assert!(user(&change.replace("FILE", one.at("p").to_str().unwrap())).success());
        soon(change, || [&one, &two].iter().all(|place| fs::metadata(place.at("p")).unwrap().mode() & 0o7777 == 0o777));
    }
    // A refused truncation must change nothing, even if this mount still has cached permissions that allow the
    // truncation.
    fs::set_permissions(one.at("p"), fs::Permissions::from_mode(0o6777)).unwrap();
    fs::metadata(one.at("p")).unwrap();
    fs::set_permissions(two.at("p"), fs::Permissions::from_mode(0o6755)).unwrap();
    assert!(!user(&format!(": > {}", one.at("p").display())).success());
    assert_eq!(fs::metadata(two.at("p")).unwrap().mode() & 0o7777, 0o6755);
    one.unmount();
    two.unmount();
}

/// With write-back caching, the kernel sends the new times of a renamed file some time after the rename. Before that,
/// another mount may remove the file or write to it.
#[test]
fn late_time_updates_from_the_kernel_do_no_harm() {
    let Some((_dir, _cluster, [one, two])) = two(&[]) else { return };
    let all = File::open(one.at("")).unwrap();
    for name in ["f", "g"] {
        fs::write(one.at(name), b"first").unwrap();
        fs::rename(one.at(name), one.at("moved")).unwrap();
        if name == "f" {
            fs::remove_file(one.at("moved")).unwrap();
        }
        rustix::fs::syncfs(&all).unwrap();
    }
    fs::metadata(one.at("moved")).unwrap();
    let seen = fs::metadata(one.at("moved")).unwrap().modified().unwrap();
    let written = loop {
        fs::write(two.at("moved"), b"second").unwrap();
        let written = fs::metadata(two.at("moved")).unwrap().modified().unwrap();
        if written > seen {
            break written;
        }
    };
    fs::rename(one.at("moved"), one.at("again")).unwrap();
    rustix::fs::syncfs(&all).unwrap();
    assert_eq!(fs::metadata(two.at("again")).unwrap().modified().unwrap(), written);
    drop(all);
    one.unmount();
    two.unmount();
}

#[test]
fn seeks_appends_and_chmod_respect_cached_writes() {
    let Some((_dir, _cluster, [one, two])) = two(&[]) else { return };
    let file = create(one.at("f"));
    file.write_all_at(&[1; 8_192], 1 << 20).unwrap();
    // cp(1) searches for data with `lseek`, in a process that did not write the file.
    let copied = Command::new("cp").arg(one.at("f")).arg(one.at("copy")).status().unwrap();
    assert!(copied.success());
    let mut want = vec![0; 1 << 20];
    want.extend([1; 8_192]);
    assert!(fs::read(one.at("copy")).unwrap() == want);
    // Append to the file through another open, which bypasses the page cache.
    file.write_all_at(&[2; 8_192], 1 << 20).unwrap();
    let mut more = OpenOptions::new().append(true).open(one.at("f")).unwrap();
    std::io::Write::write_all(&mut more, b"end").unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 8_195);
    drop((file, more));
    want[1 << 20..].fill(2);
    want.extend(b"end");
    assert!(fs::read(two.at("f")).unwrap() == want);
    // Set the setuid and setgid bits while another user has the file open for writing.
    fs::set_permissions(one.at("f"), fs::Permissions::from_mode(0o666)).unwrap();
    let path = one.at("f");
    let at = |dir: std::path::PathBuf| fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    at(one.at(""));
    at(one.at("").parent().unwrap().to_owned());
    let script = format!("exec 3<>{0}; printf a >&3; echo; read line; printf b >&3; exec 3>&-", path.display());
    let mut writer = Command::new("setpriv")
        .args(["--reuid=1234", "--regid=1234", "--clear-groups", "sh", "-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(writer.stdout.as_mut().unwrap()), &mut line).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    std::io::Write::write_all(writer.stdin.as_mut().unwrap(), b"\n").unwrap();
    assert!(writer.wait().unwrap().success());
    soon("the bits go", || fs::metadata(&path).unwrap().mode() & 0o7777 == 0o777);
    one.unmount();
    two.unmount();
}

/// Returns the offset of the end of a file, as `lseek(SEEK_END)` returns it.
fn end(mut file: &File) -> u64 {
    file.seek(SeekFrom::End(0)).unwrap()
}

/// The kernel answers `lseek(SEEK_END)` from the file size that it has cached. The test makes no other call before
/// `lseek` that refreshes this size.
#[test]
fn seek_end_finds_the_end_that_another_mount_has_just_set() {
    for options in [WRITE_BACK, &[]] {
        let Some((_dir, _cluster, [one, two])) = two(options) else { return };
        for round in 0..12u64 {
            let (first, then) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
            let a = create(first.at("f"));
            a.write_all_at(&[1; 9000], 0).unwrap();
            let b = OpenOptions::new().read(true).write(true).open(then.at("f")).unwrap();
            b.write_all_at(&[2; 10], 9000).unwrap();
            assert_eq!((end(&a), end(&b)), (9010, 9010), "round {round} of {options:?}");
            for (step, (setter, other)) in [(&a, &b), (&b, &a), (&a, &b), (&b, &a)].into_iter().enumerate() {
                let what = format!("step {step} of round {round} with {options:?}");
                let cut = 5000 + 977 * step as u64 + round;
                setter.set_len(cut).unwrap();
                assert_eq!((end(other), end(setter)), (cut, cut), "{what}: truncated");
                setter.set_len(cut + 8192).unwrap();
                assert_eq!((end(other), end(setter)), (cut + 8192, cut + 8192), "{what}: extended");
                rustix::fs::fallocate(setter, rustix::fs::FallocateFlags::empty(), 0, cut + 20_000).unwrap();
                assert_eq!((end(other), end(setter)), (cut + 20_000, cut + 20_000), "{what}: reserved");
                setter.write_all_at(&[3; 5000], cut + 20_000).unwrap();
                assert_eq!((end(other), end(setter)), (cut + 25_000, cut + 25_000), "{what}: written");
                let mut read = vec![9; 5010];
                assert_eq!(other.read_at(&mut read, cut + 19_995).unwrap(), 5005, "{what}");
                assert!(read[..5] == [0; 5] && read[5..5005] == [3; 5000], "{what}: {:?}", &read[..10]);
            }
            drop(create(then.at("f")));
            assert_eq!((end(&a), end(&b)), (0, 0), "round {round} of {options:?}: opened with O_TRUNC");
        }
        one.unmount();
        two.unmount();
    }
}

/// During a truncation, the kernel holds the lock of the truncating mount's inode. If each of two truncating mounts
/// waited for the inode lock of the other mount, both would wait forever.
#[test]
fn mounts_that_truncate_a_file_concurrently_agree_on_its_end() {
    let Some((_dir, _cluster, [one, two])) = two(WRITE_BACK) else { return };
    let files = [create(one.at("f")), create(two.at("f"))];
    let start = std::sync::Barrier::new(2);
    for round in 0..60u64 {
        std::thread::scope(|scope| {
            for (file, of) in files.iter().zip([100, 1000]) {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for step in 0..3 {
                        file.set_len(of + round + step).unwrap();
                    }
                });
            }
        });
        let ends = files.each_ref().map(end);
        let size = fs::metadata(one.at("f")).unwrap().len();
        assert!(ends == [size, size] && [102 + round, 1002 + round].contains(&size), "round {round}: {ends:?}, {size}");
    }
    drop(files);
    one.unmount();
    two.unmount();
}
