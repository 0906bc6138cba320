//! Deaths of daemons and of the process of a mount while programs write files.

use crate::cluster::{Cluster, WEIR, succeed};
use crate::test_mount::{TestMount, can_mount};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

#[test]
fn synced_data_outlives_the_mount() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    let mut file = File::create(place.at("f")).unwrap();
    let synced = vec![7; 3_000_000];
    file.write_all(&synced).unwrap();
    file.sync_all().unwrap();
    file.write_all(&vec![8; 100_000]).unwrap();
    rustix::process::kill_process(place.daemon(), rustix::process::Signal::KILL).unwrap();
    // The mount has died, so another write, or the sync after this write, must fail.
    assert!(file.write_all(b"more").and_then(|()| file.sync_all()).is_err());
    drop(file);
    assert!(fs::read(place.at("f")).is_err());
    succeed(Command::new(WEIR).args(["umount", "--lazy"]).arg(place.at("")));
    let found = cluster.run(["cat", "/f"]);
    assert!(found.len() >= synced.len() && found[..synced.len()] == synced[..]);
    drop(place);
    // A new mount must succeed at the mount point of a killed mount that no user has unmounted.
    let dead = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    rustix::process::kill_process(dead.daemon(), rustix::process::Signal::KILL).unwrap();
    while fs::read_dir(dead.at("")).is_ok() {
        std::thread::yield_now();
    }
    std::mem::forget(dead);
    let again = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    assert!(fs::read(again.at("f")).unwrap()[..synced.len()] == synced[..]);
    again.unmount();
}

#[test]
fn a_new_mount_at_the_same_directory_frees_locks_of_a_killed_one() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let [one, two] = ["one", "two"].map(|name| TestMount::new(&cluster, &dir.path().join(name), &[]));
    let held = File::create(one.at("f")).unwrap();
    held.lock().unwrap();
    let writable = |path: std::path::PathBuf| File::options().write(true).open(path).unwrap();
    let wanted = writable(two.at("f"));
    rustix::process::kill_process(one.daemon(), rustix::process::Signal::KILL).unwrap();
    while fs::read_dir(one.at("")).is_ok() {
        std::thread::yield_now();
    }
    drop(held);
    // The mgr cannot distinguish the killed mount from a client that is silent for a while and then continues. So the
    // mgr must keep the locks of the killed mount until the mount's lease expires.
    assert!(matches!(wanted.try_lock(), Err(fs::TryLockError::WouldBlock)));
    std::mem::forget(one);
    let again = TestMount::new(&cluster, &dir.path().join("one"), &[]);
    wanted.try_lock().unwrap();
    // The new mount and the other live mount must not take locks from each other.
    assert!(matches!(writable(again.at("f")).try_lock(), Err(fs::TryLockError::WouldBlock)));
    fs::write(again.at("g"), b"new").unwrap();
    assert_eq!(fs::read(two.at("g")).unwrap(), b"new");
    wanted.unlock().unwrap();
    writable(again.at("f")).try_lock().unwrap();
    drop(wanted);
    again.unmount();
    two.unmount();
}

/// The environment variable that turns a process of this test binary into a writer. A separate process has the file
/// open, because child processes of the tests would inherit a descriptor of the test process and close it at
/// `execve`. Such a close would wait for the servers.
const WRITER: &str = "WEIR_TEST_WRITER";

/// The main function of the writer process, which does nothing unless the environment variable `WRITER` is set. This is
/// not a test.
#[test]
fn writer() {
    let Some(path) = std::env::var_os(WRITER) else { return };
    let mut file = File::create(path).unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let done = match line.split_once(' ') {
            Some((byte, len)) => file.write_all(&vec![byte.parse().unwrap(); len.parse().unwrap()]),
            None => file.sync_all(),
        };
        println!("writer: {}", if done.is_ok() { "done" } else { "failed" });
    }
}

struct Writer {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Writer {
    fn start(path: &Path) -> Writer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "deaths::writer", "--nocapture"]).env(WRITER, path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Writer { child, said }
    }

    /// Sends a command to the writer. Returns whether the writer executed the command with success.
    fn tell(&mut self, what: &str) -> bool {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
        let mut lines = self.said.by_ref().lines().map(Result::unwrap);
        lines.find_map(|line| line.split_once("writer: ").map(|(_, answer)| answer == "done")).expect("an answer")
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn a_mount_continues_after_a_restart_of_its_cluster() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut cluster = Cluster::start(&data);
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    let mut writer = Writer::start(&place.at("f"));
    let mut whole = Vec::new();
    for round in 1..5u8 {
        assert!(writer.tell(&format!("{round} 300000")));
        whole.extend(vec![round; 300_000]);
        assert!(round % 2 == 0 || writer.tell("sync"));
        // While the cluster is down, the mount keeps the bytes that the writer has not synced. After the restart of the
        // cluster, the mount must send these bytes again.
        let url = cluster.url.clone();
        cluster.kill();
        cluster = Cluster::start_again(&url, &data);
    }
    assert!(writer.tell("sync"));
    writer.end();
    let found = cluster.run(["cat", "/f"]);
    let differs = found.iter().zip(&whole).position(|(a, b)| a != b);
    assert!(found == whole, "{} bytes of {}, the first that differs: {differs:?}", found.len(), whole.len());
    place.unmount();
}

#[test]
fn fsync_fails_when_bytes_cannot_be_made_durable() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &["--retry-timeout", "2"]);
    let mut writer = Writer::start(&place.at("f"));
    assert!(writer.tell("1 300000") && writer.tell("sync") && writer.tell("2 300000"));
    cluster.kill();
    assert!(!writer.tell("sync"), "the program got neither an answer nor an error");
    writer.end();
}

/// With `durable=fsync`, no change of a name may be lost when processes are killed, even the process of the mount.
#[test]
fn unsynced_name_changes_survive_killed_processes() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut cluster = Cluster::start(&data);
    let mount = |cluster: &Cluster| TestMount::new(cluster, &dir.path().join("mnt"), &["-o", "durable=fsync"]);
    let mut place = mount(&cluster);
    let text = |round: u32, i: u32| format!("round {round}, file {i}").repeat(1 + i as usize % 50);
    for round in 0..3 {
        fs::create_dir(place.at(&format!("d{round}"))).unwrap();
        for i in 0..60 {
            let path = place.at(&format!("d{round}/f{i}"));
            fs::write(&path, text(round, i)).unwrap();
            match i % 3 {
                0 => fs::remove_file(&path).unwrap(),
                1 => fs::rename(&path, place.at(&format!("d{round}/g{i}"))).unwrap(),
                _ => {}
            }
        }
        let url = cluster.url.clone();
        if round == 1 {
            rustix::process::kill_process(place.daemon(), rustix::process::Signal::KILL).unwrap();
            while fs::read_dir(place.at("")).is_ok() {
                std::thread::yield_now();
            }
        }
        cluster.kill();
        cluster = Cluster::start_again(&url, &data);
        if round == 1 {
            std::mem::forget(place);
            place = mount(&cluster);
        }
        // The fsync of the directory must succeed: only processes were killed, and the machine has not lost power, so
        // no change is lost.
        File::open(place.at("")).unwrap().sync_all().unwrap();
        for i in 0..60 {
            let name = ["", "g", "f"][i as usize % 3];
            let kept = (i % 3 > 0).then(|| text(round, i));
            let found = |name: &str| fs::read_to_string(place.at(&format!("d{round}/{name}{i}"))).ok();
            assert_eq!(found(name), kept, "{name}{i} of round {round}");
            assert!(i % 3 == 2 || found("f").is_none(), "f{i} of round {round}");
        }
    }
    place.unmount();
    succeed(Command::new(WEIR).args(["fsck", &cluster.url]));
}

/// While a process has the FUSE device open, the kernel does not end the connection. In practice, an unkillable
/// thread of the killed mount process has the device open. In this test, the test process has the device open.
#[test]
fn a_killed_mount_ends_although_its_device_stays_open() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    fs::write(place.at("f"), "text").unwrap();
    let own = format!("/proc/{}/fd", place.daemon().as_raw_nonzero());
    let is_device = |fd: &i32| fs::read_link(format!("{own}/{fd}")).is_ok_and(|to| to == Path::new("/dev/fuse"));
    let numbers = fs::read_dir(&own).unwrap().map(|fd| fd.unwrap().file_name().to_str().unwrap().parse::<i32>());
    let devices: Vec<i32> = numbers.map(Result::unwrap).filter(is_device).collect();
    assert!(!devices.is_empty());
    let process = pidfd_open(place.daemon(), PidfdFlags::empty()).unwrap();
    let taken: Vec<_> =
        devices.iter().map(|fd| pidfd_getfd(&process, *fd, PidfdGetfdFlags::empty()).unwrap()).collect();
    // The guard process aborts the FUSE connection when the process of the mount has died. The mount must start a new
    // guard process after one was killed. A guard process must block SIGTERM, because an administrator who sends
    // SIGTERM to all `weir` processes does not want to end the guard processes.
    let first = guard_of(place.daemon());
    rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
    while guard_of(place.daemon()) == first {}
    rustix::process::kill_process(guard_of(place.daemon()), rustix::process::Signal::TERM).unwrap();
    rustix::process::kill_process(place.daemon(), rustix::process::Signal::KILL).unwrap();
    // The kernel does not detect at once that the process of the mount is dead, and still sends a request to this
    // process. This request must fail when the guard process aborts the FUSE connection.
    while fs::read_dir(place.at("")).is_ok() {
        std::thread::yield_now();
    }
    assert!(fs::read(place.at("f")).is_err());
    drop(taken);
    std::mem::forget(place);
    let again = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    assert_eq!(fs::read(again.at("f")).unwrap(), b"text");
    // The guard process, which watches for the death of a mount's process, must end when the mount ends.
    let guard = guard_of(again.daemon());
    again.unmount();
    while Path::new("/proc").join(guard.as_raw_nonzero().to_string()).exists() {
        std::thread::yield_now();
    }
}

/// Waits until the mount process `daemon` has a child `fuse-guard` (the guard process), and returns the child's id.
fn guard_of(daemon: Pid) -> Pid {
    loop {
        let parent = daemon.as_raw_nonzero().to_string();
        let found = Command::new("pgrep").args(["-x", "fuse-guard", "-P", &parent]).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        assert!(found.lines().count() <= 1, "{found:?}");
        if let Ok(number) = found.trim().parse() {
            return Pid::from_raw(number).unwrap();
        }
    }
}
