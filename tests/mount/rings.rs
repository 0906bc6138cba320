//! Repetition of all tests over io_uring, and further tests that only concern io_uring.

use crate::cluster::{Cluster, WEIR, fail, succeed};
use crate::test_mount::{TRANSPORT, TestMount, can_mount, full, rerun_passes};
use rustix::fs::{FlockOperation, flock};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;

/// The path of the kernel parameter that enables FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns whether this process already runs its tests over io_uring.
fn over_rings() -> bool {
    std::env::var_os(TRANSPORT).is_some_and(|transport| transport == "uring")
}

/// Enables FUSE over io_uring in the kernel. Dropping this value restores the kernel parameter.
struct Switched(Vec<u8>);

impl Switched {
    fn on() -> Option<Switched> {
        let before = fs::read(SWITCH).ok();
        let switched = before.filter(|_| fs::write(SWITCH, "Y").is_ok()).map(Switched);
        if switched.is_none() {
            eprintln!("NOT TESTED: this kernel offers no FUSE over io_uring");
        }
        switched
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        fs::write(SWITCH, self.0.trim_ascii_end()).unwrap();
    }
}

#[test]
fn all_tests_pass_over_io_uring() {
    if over_rings() || !can_mount() {
        return;
    }
    // Without io_uring in the kernel, a mount that requires io_uring must fail and report the reason. Mounts that do
    // not require io_uring must use the device.
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let off = fs::read(SWITCH).map_or(true, |value| value.starts_with(b"N"));
    if off {
        let cluster = Cluster::start(&dir.path().join("data"));
        let mut refused = Command::new(WEIR);
        let said = fail(refused.args(["mount", "-o", "transport=uring", &cluster.url]).arg(&at), 1);
        assert!(said.contains("enable_uring") || said.contains("this kernel does not have it"), "{said}");
        succeed(Command::new(WEIR).args(["mount", &cluster.url]).arg(&at));
        fs::write(at.join("f"), b"by the device").unwrap();
        succeed(Command::new(WEIR).arg("umount").arg(&at));
    }
    let Some(_switched) = Switched::on() else { return };
    let mut again = Command::new(std::env::current_exe().unwrap());
    if !full() {
        // Skip tests whose results do not depend on the transport: tests of names, tests of memory use, and tests of
        // the coherence of several mounts. Notifications to the kernel use the device with both transports.
        again.args(["--skip", "memory::", "--skip", "names::", "--skip", "coherence::"]);
    }
    rerun_passes(again.env(TRANSPORT, "uring"));
}

/// Starts a flock(1) process that requests a lock of a file. The process prints `locked` when it gets the lock.
fn locker(path: &Path) -> Child {
    let mut command = Command::new("flock");
    command.arg(path).args(["sh", "-c", "echo locked; read line"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("flock(1) is part of util-linux")
}

fn is_locked(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "locked\n");
}

#[test]
fn more_requests_may_wait_than_a_ring_has_entries_at_first() {
    if !over_rings() || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    File::create(place.at("f")).unwrap();
    let mut holder = locker(&place.at("f"));
    is_locked(&mut holder);
    // Start many processes that wait for the lock of one file. The lock request of each process occupies an entry in
    // the io_uring queue of the processor on which the process runs.
    let processors = std::thread::available_parallelism().unwrap().get();
    let mut others: Vec<_> = (0..processors * 20).map(|_| locker(&place.at("f"))).collect();
    let waits = |child: &Child| {
        let state = fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
        state.contains("request_wait") || state.contains("fuse")
    };
    others.iter().for_each(|child| {
        while !waits(child) {
            std::thread::yield_now();
        }
    });
    fs::write(place.at("g"), b"goes on").unwrap();
    assert_eq!(fs::read(place.at("g")).unwrap(), b"goes on");
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(holder.wait().unwrap().success());
    // Let the waiting processes get the lock of the file one after another, in any order.
    others.iter_mut().for_each(|child| child.stdin.take().unwrap().write_all(b"\n").unwrap());
    for mut child in others {
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success() && said == "locked\n");
    }
    place.unmount();
}

#[test]
fn requests_made_while_all_entries_are_taken_are_served() {
    if !over_rings() || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    let holder = File::create(place.at("f")).unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    // Send the requests of all threads to one queue at once. Most of the threads wait for the lock of one file, and
    // their requests occupy entries of the queue. So the kernel can deliver the other requests only after the mount
    // has added entries to the queue.
    let (waiting, asking) = (60, 20);
    let mut queue = CpuSet::new();
    queue.set(0);
    let begin = Barrier::new(waiting + asking);
    std::thread::scope(|scope| {
        let (begin, place, queue) = (&begin, &place, &queue);
        let together = move || {
            sched_setaffinity(None, queue).unwrap();
            begin.wait();
        };
        for _ in 0..waiting {
            let file = File::open(place.at("f")).unwrap();
            scope.spawn(move || {
                together();
                flock(&file, FlockOperation::LockExclusive).unwrap();
            });
        }
        let ask = |n| {
            scope.spawn(move || {
                together();
                assert!(!place.at(&format!("nobody{n}")).exists());
            })
        };
        let asked: Vec<_> = (0..asking).map(ask).collect();
        asked.into_iter().for_each(|thread| thread.join().unwrap());
        flock(&holder, FlockOperation::Unlock).unwrap();
    });
    drop(holder);
    place.unmount();
}

#[test]
fn killing_a_mount_ends_all_waiting_requests() {
    if !over_rings() || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    File::create(place.at("f")).unwrap();
    let mut holder = locker(&place.at("f"));
    is_locked(&mut holder);
    let mut waiting: Vec<_> = (0..3).map(|_| locker(&place.at("f"))).collect();
    let end = std::sync::atomic::AtomicBool::new(false);
    let writers = 4u8;
    let ready = Barrier::new(usize::from(writers) + 1);
    std::thread::scope(|scope| {
        let (place, end, ready) = (&place, &end, &ready);
        for n in 0..writers {
            scope.spawn(move || {
                let file = File::create(place.at(&format!("w{n}"))).unwrap();
                ready.wait();
                // Write until a write fails, because the mount has died.
                while file.write_all_at(&[n; 100_000], 0).and_then(|()| file.sync_all()).is_ok() {
                    assert!(!end.load(std::sync::atomic::Ordering::Relaxed));
                }
            });
        }
        ready.wait();
        rustix::process::kill_process(place.daemon(), rustix::process::Signal::KILL).unwrap();
    });
    end.store(true, std::sync::atomic::Ordering::Relaxed);
    for child in &mut waiting {
        assert!(!child.wait().unwrap().success(), "the process has waited for the lock of a killed mount");
    }
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert!(fs::metadata(place.at("f")).is_err());
}

#[test]
fn reads_and_writes_of_all_lengths_work_over_io_uring() {
    if !over_rings() || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    let whole: Vec<u8> = (0..3u32 << 20).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
    std::thread::scope(|scope| {
        for n in 0..6usize {
            let (place, whole) = (&place, &whole);
            scope.spawn(move || {
                let name = format!("f{n}");
                let mut file = File::create(place.at(&name)).unwrap();
                let mut rest = &whole[..];
                for len in (1usize..).map(|step| step * step * (n * 977 + 13)) {
                    let (now, later) = rest.split_at(len.min(rest.len()));
                    file.write_all(now).unwrap();
                    rest = later;
                    if rest.is_empty() {
                        break;
                    }
                }
                drop(file);
                assert!(fs::read(place.at(&name)).unwrap() == *whole);
                let (file, mut part) = (File::open(place.at(&name)).unwrap(), vec![0; 1 << 20]);
                for at in (0..whole.len()).step_by(131_071) {
                    let len = file.read_at(&mut part, at as u64).unwrap();
                    assert!(part[..len] == whole[at..][..len] && len == part.len().min(whole.len() - at));
                }
            });
        }
    });
    place.unmount();
}
