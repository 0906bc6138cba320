//! Memory use of the mount and the servers, which must not grow with the amount of work.

use crate::cluster::Cluster;
use crate::test_mount::{TestMount, can_mount, full};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Upper limit of the memory of a process in bytes. It is more than all configured windows, caches and buffers use
/// together.
const BOUND: u64 = 400 << 20;
/// Growth of the memory use of a process, in bytes, that the tests accept. The memory use varies, because the
/// allocator keeps different amounts of free memory at different times.
const GROWTH: u64 = 32 << 20;

/// The memory of a process: its current resident set size, and the maximum of its resident set size.
#[derive(Clone, Copy, Debug)]
struct Memory {
    now: u64,
    most: u64,
}

impl Memory {
    fn of(pid: i32) -> Memory {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("every process has it");
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
        };
        Memory { now: value("VmRSS:"), most: value("VmHWM:") }
    }
}

/// The kernel must keep no more unused inodes than the limit of the mount allows. Files in use must stay usable.
#[test]
fn the_kernel_forgets_unused_files_beyond_the_limit() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &["-o", "known_files=200"]);
    let known = || {
        let mut value = [0; 20];
        let len = rustix::fs::getxattr(place.at(""), "user.weir.known", &mut value[..]).unwrap();
        std::str::from_utf8(&value[..len]).unwrap().parse::<u64>().unwrap()
    };
    fs::create_dir(place.at("d")).unwrap();
    let name = |n: u32| place.at("d").join(n.to_string());
    let held = (0..300).map(|n| {
        fs::write(name(n), n.to_string()).unwrap();
        File::open(name(n)).unwrap()
    });
    let held: Vec<File> = held.collect();
    for n in 300..2000 {
        fs::write(name(n), n.to_string()).unwrap();
    }
    let fall_to = |most| {
        let began = Instant::now();
        while known() > most {
            if began.elapsed() > Duration::from_secs(20) && !prunes() {
                return false;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{} files are known", known());
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    };
    if !fall_to(310) {
        eprintln!("NOT TESTED: this kernel cannot drop unused inodes on request (Linux 6.18 can)");
        drop(held);
        return place.unmount();
    }
    for (n, file) in held.iter().enumerate() {
        let mut text = [0; 20];
        let len = file.read_at(&mut text, 0).unwrap();
        assert_eq!(text[..len], *n.to_string().as_bytes());
    }
    // The kernel does not report when inodes become unused, so the mount must request their eviction repeatedly.
    drop(held);
    assert!(fall_to(200));
    for n in (0..2000).step_by(37) {
        assert_eq!(fs::read(name(n)).unwrap(), n.to_string().as_bytes());
    }
    place.unmount();
}

/// Returns whether this kernel supports `FUSE_NOTIFY_PRUNE`.
fn prunes() -> bool {
    fs::read_to_string("/proc/kallsyms").is_ok_and(|symbols| symbols.contains("fuse_try_prune_one_inode"))
}

/// Returns the id of the process that has `argument` on its command line.
fn process_with(argument: &Path) -> i32 {
    let wanted = argument.to_str().unwrap().as_bytes();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.split(|b| *b == 0).any(|a| a == wanted))
    };
    pids.find(has).expect("it runs")
}

/// Makes some calls of each kind: small sequential writes, small writes at random offsets, appends, small files, and
/// changes of names.
fn round(place: &TestMount, number: u64) {
    let block = vec![number as u8; 4096];
    let mut stream = File::create(place.at("stream")).unwrap();
    for _ in 0..4096 {
        stream.write_all(&block).unwrap();
    }
    stream.sync_all().unwrap();
    for i in 0..500u64 {
        stream.write_all_at(&block[..1000], i * 7919 * 1009 % (16 << 20)).unwrap();
    }
    drop(stream);
    let mut log = OpenOptions::new().append(true).create(true).open(place.at("log")).unwrap();
    (0..200).for_each(|_| log.write_all(&block[..100]).unwrap());
    drop(log);
    let dir = place.at(&format!("dir{number}"));
    fs::create_dir(&dir).unwrap();
    for i in 0..100 {
        fs::write(dir.join(format!("f{i}")), &block[..i * 40]).unwrap();
    }
    for i in 0..100 {
        fs::rename(dir.join(format!("f{i}")), dir.join(format!("g{i}"))).unwrap();
    }
    let mut found = Vec::new();
    File::open(place.at("stream")).unwrap().read_to_end(&mut found).unwrap();
    assert_eq!(found.len(), 16 << 20);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 100);
    fs::remove_dir_all(&dir).unwrap();
}

/// Runs a short form of this test; `WEIR_TEST_SCALE=full` runs the full form, which takes one hour.
#[test]
fn memory_use_does_not_grow_with_the_work() {
    if !can_mount() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let cluster = Cluster::start(&data);
    let place = TestMount::new(&cluster, &home.path().join("mnt"), &[]);
    let pids = [("mount", place.daemon().as_raw_nonzero().get()), ("servers", process_with(&data))];
    let (warm, more, until) = if full() { (20, 20, Duration::from_secs(3600)) } else { (6, 12, Duration::ZERO) };
    (0..warm).for_each(|number| round(&place, number));
    let before = pids.map(|(_, pid)| Memory::of(pid));
    let begun = Instant::now();
    let mut number = warm;
    while number < warm + more || begun.elapsed() < until {
        round(&place, number);
        number += 1;
    }
    for ((name, pid), before) in pids.into_iter().zip(before) {
        let after = Memory::of(pid);
        assert!(after.most <= BOUND, "{name}: {after:?}");
        assert!(after.now <= before.now + GROWTH, "{name} after {number} rounds: {before:?}, then {after:?}");
    }
    place.unmount();
    cluster.stop();
}
