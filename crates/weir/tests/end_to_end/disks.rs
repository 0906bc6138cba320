//! Full and failing disks: writes to such a disk must fail, all other operations must succeed, and the file system must
//! need no repair.

use crate::cluster::{Cluster, WEIR, fail, ready, stderr_of};
use crate::lab::{Lab, on_failing_disk};
use crate::tree::bytes;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small mounted file system for a test. Dropping this value unmounts the file system.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a tmpfs at `at`. Returns `None` if this process may not mount, for example without root or in some
    /// containers.
    pub fn tmpfs(at: &Path, size: &str) -> Option<Self> {
        let option = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &option, "none"]).arg(at).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Mounted(at.to_owned()));
        }
        eprintln!("NOT TESTED: cannot mount a small file system here");
        None
    }

    /// Mounts an ext4 file system of `mib` MiB from an image file beside `at`. Returns `None` if this process may not
    /// mount.
    fn ext4(at: &Path, mib: u64) -> Option<Self> {
        let image = at.with_extension("img");
        File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status();
        let is_made = made.is_ok_and(|status| status.success());
        let mounted = || Command::new("mount").args(["-o", "loop"]).arg(&image).arg(at).status();
        if is_made && mounted().is_ok_and(|status| status.success()) {
            return Some(Mounted(at.to_owned()));
        }
        eprintln!("NOT TESTED: cannot mount an ext4 image here");
        None
    }

    /// Returns the mount point.
    fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the file `name` until only `free` bytes of the file system are free.
    fn fill(&self, name: &str, free: u64) {
        let stat = rustix::fs::statvfs(&self.0).unwrap();
        let mut left = (stat.f_bavail * stat.f_frsize).saturating_sub(free);
        let mut file = File::create(self.0.join(name)).unwrap();
        let zeros = vec![0; 1 << 20];
        while left > 0 {
            let part = left.min(1 << 20);
            file.write_all(&zeros[..part as usize]).unwrap();
            left -= part;
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Unmount lazily, because a failed test may have left a process whose files are open in the mount.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn writes_to_a_full_iod_fail_and_other_writes_succeed() {
    let home = tempfile::tempdir().unwrap();
    let small = home.path().join("iod-1");
    std::fs::create_dir(&small).unwrap();
    let Some(_small) = Mounted::tmpfs(&small, "300m") else { return };
    // With the stripe count 1, each file is on one iod. Two files that are created one after the other are on different
    // iods.
    let lab = Lab::start_with(home.path(), 2, &["--stripe-count", "1"]);
    let big = home.path().join("big");
    let mut file = File::create(&big).unwrap();
    let part = bytes(1, 1 << 20);
    for _ in 0..320 {
        file.write_all(&part).unwrap();
    }
    let small_file = home.path().join("small");
    std::fs::write(&small_file, &part).unwrap();
    for i in 0..4 {
        lab.put(&format!("/kept-{i}"), &bytes(i, 100_000));
    }
    let copies: Vec<_> = ["weir:/one", "weir:/two"]
        .map(|to| {
            let mut command = lab.weir(["cp", "--quiet", big.to_str().unwrap(), to]);
            (to, command.stderr(Stdio::piped()).spawn().unwrap())
        })
        .into_iter()
        .map(|(to, mut child)| (to.trim_start_matches("weir:"), child.wait().unwrap().code(), stderr_of(&mut child)))
        .collect();
    let failed: Vec<_> = copies.iter().filter(|(_, code, _)| *code != Some(0)).collect();
    assert_eq!(failed.len(), 1, "{copies:?}");
    let (lost, code, said) = failed[0];
    assert!(*code == Some(1) && said.contains("no space left") && said.contains("weir df"), "{said}");
    let there: Vec<&str> = ["/one", "/two"].into_iter().filter(|name| name != lost).collect();
    assert_eq!(lab.json(["stat", "--json", there[0]])[0]["size"], 320 << 20);
    // The mgr deletes the incomplete file of the failed copy in the background. After this deletion, both iods have
    // free space again.
    for name in ["/new-0", "/new-1", "/new-2", "/new-3"] {
        loop {
            let output =
                lab.weir(["cp", "--quiet", small_file.to_str().unwrap(), &format!("weir:{name}")]).output().unwrap();
            if output.status.success() {
                break;
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("no space left"), "{said}");
        }
    }
    for i in 0..4 {
        assert!(lab.run(["cat", &format!("/kept-{i}")]) == bytes(i, 100_000));
        lab.run(["rm", &format!("/kept-{i}")]);
    }
    lab.run(["rm", there[0], "/new-0", "/new-1", "/new-2", "/new-3"]);
    lab.run(["mkdir", "/dir"]);
    lab.fsck();
}

/// Free space in bytes on a nearly full disk of 256 MiB. It is less than the mgr requires for new names, and more than
/// removal and recovery need.
const LITTLE: u64 = 6 << 20;

#[test]
fn a_full_mgr_disk_refuses_new_names_and_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let small = home.path().join("mgr");
    std::fs::create_dir(&small).unwrap();
    let Some(small) = Mounted::tmpfs(&small, "300m") else { return };
    let mut lab = Lab::start(home.path(), 1);
    lab.put("/kept", b"kept");
    lab.run(["mkdir", "/dir"]);
    for left in [LITTLE, 0] {
        small.fill(&format!("filler-{left}"), left);
        for again in [false, true] {
            if again && left > 0 {
                lab.mgr.kill();
                lab.mgr.restart();
            }
            let said = fail(&mut lab.weir(["mkdir", "/new"]), 1);
            assert!(said.contains("no space left") && said.contains("weir df"), "{left}: {said}");
            assert_eq!(lab.run(["cat", "/kept"]), b"kept");
            assert_eq!(lab.json(["ls", "--json", "/"]).len(), 2);
        }
    }
    // When its disk has no free space at all, the mgr must refuse to start, and must change nothing.
    lab.mgr.kill();
    let said = lab.mgr.fail_to_restart();
    assert!(said.contains("no space left") && said.contains("nothing is lost"), "{said}");
    std::fs::remove_file(small.path().join("filler-0")).unwrap();
    lab.mgr.restart();
    lab.run(["rm", "-r", "/dir"]);
    std::fs::remove_file(small.path().join(format!("filler-{LITTLE}"))).unwrap();
    lab.run(["mkdir", "/new"]);
    assert_eq!(lab.run(["cat", "/kept"]), b"kept");
    lab.fsck();
}

#[test]
fn an_mgr_with_a_failing_disk_exits_and_loses_no_acknowledged_change() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 1);
    lab.mgr.kill();
    lab.mgr.restart_on_failing_disk(1500 << 10);
    let mut made = 0;
    loop {
        let names: Vec<String> = (made..made + 20).map(|i| format!("/dir-{i}")).collect();
        let args = ["--connect-timeout", "2", "--retry-timeout", "2"].map(String::from).into_iter().chain(names);
        let output = lab.weir(["mkdir".to_owned()].into_iter().chain(args)).output().unwrap();
        if !output.status.success() {
            break;
        }
        made += 20;
    }
    assert!(made > 0);
    assert_eq!(lab.mgr.wait().code(), Some(1), "{}", lab.mgr.said());
    let said = lab.mgr.said();
    assert!(said.contains("the metadata store has failed") && said.contains("repair its disk"), "{said}");
    lab.mgr.restart();
    let there = lab.json(["ls", "--json", "/"]).len();
    assert!((made..made + 20).contains(&there), "{made} acknowledged, {there} exist");
    lab.run(["mkdir", "/more"]);
    lab.fsck();
}

#[test]
fn up_exits_with_an_error_when_its_mgr_fails() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.run(["mkdir", "/kept"]);
    cluster.stop();
    let mut command = on_failing_disk(1500 << 10);
    command.args(["up", "--listen", "127.0.0.1:0", "--dir"]).arg(home.path()).stderr(Stdio::piped());
    let (mut up, told) = ready(&mut command);
    let url = told["url"].as_str().unwrap().to_owned();
    let mut made = 0;
    let mut mkdir = |url: &str| {
        let names: Vec<String> = (made..made + 20).map(|i| format!("/dir-{i}")).collect();
        made += 20;
        let mut command = Command::new(WEIR);
        command.args(["mkdir", "--connect-timeout", "2", "--retry-timeout", "2", "--url", url]).args(names);
        command.output().unwrap().status.success()
    };
    while mkdir(&url) {}
    assert_eq!(up.wait().unwrap().code(), Some(1));
    let said = stderr_of(&mut up);
    assert!(said.contains("the metadata store has failed") && said.contains("start the mgr again"), "{said}");
    let cluster = Cluster::start(home.path());
    assert!(cluster.text(["ls", "/"]).contains("kept"));
    cluster.stop();
}

/// Waits until the mgr has deleted the objects of all removed files, and at least `free` bytes are free.
fn cleared(status: impl Fn(&str, &str) -> u64, free: u64) {
    while status("work", "orphans") + status("work", "doomed") > 0 || status("mgr", "free_bytes") < free {
        std::thread::yield_now();
    }
}

/// Fills a disk of `mib` MiB on which a whole cluster stores its data, and then removes all files.
fn fill_up_and_clear(home: &Path, mib: u64) {
    let dir = home.join("up");
    let mut cluster = Cluster::start(&dir);
    let before = cluster.counter("mgr", "free_bytes");
    let big = home.with_extension("big");
    std::fs::write(&big, vec![7; (mib << 20) as usize]).unwrap();
    let big_copy = || cluster.weir(["cp", "--quiet", big.to_str().unwrap(), "weir:/big"]);
    let said = fail(&mut big_copy(), 1);
    assert!(said.contains("no space left") && !said.contains(".weir-cp-"), "{mib}: {said}");
    cleared(|group, name| cluster.counter(group, name), before - (8 << 20));
    // Store files until no space is left. Remove no file before the disk is full.
    let part = home.with_extension("part");
    std::fs::write(&part, bytes(1, 4 << 20)).unwrap();
    let copy = |cluster: &Cluster, n: usize| {
        cluster.weir(["cp", "--quiet", part.to_str().unwrap(), &format!("weir:/{n}")]).output().unwrap().status
    };
    let mut made = 0;
    while copy(&cluster, made).success() {
        made += 1;
    }
    assert!(made as u64 > mib / 8, "{mib}: {made} files of 4 MiB");
    cluster.run(["mkdir", "/dir"]);
    cluster.run(["rm", "/0"]);
    let url = cluster.url.clone();
    cluster.stop();
    cluster = Cluster::start_again(&url, &dir);
    assert!(cluster.run(["cat", "/1"]) == bytes(1, 4 << 20));
    for n in 1..made {
        cluster.run(["rm", &format!("/{n}")]);
    }
    cleared(|group, name| cluster.counter(group, name), before - (8 << 20));
    assert!(copy(&cluster, 0).success());
    cluster.run(["fsck"]);
    cluster.stop();
}

#[test]
fn small_tmpfs_disks_can_be_cleared_after_filling_up() {
    let home = tempfile::tempdir().unwrap();
    for mib in [128, 200, 400, 900] {
        let at = home.path().join(format!("tmpfs-{mib}"));
        std::fs::create_dir(&at).unwrap();
        let Some(_disk) = Mounted::tmpfs(&at, &format!("{mib}m")) else { return };
        fill_up_and_clear(&at, mib);
    }
}

#[test]
fn small_ext4_disks_can_be_cleared_after_filling_up() {
    let home = tempfile::tempdir().unwrap();
    for mib in [128, 400] {
        let at = home.path().join(format!("ext4-{mib}"));
        std::fs::create_dir(&at).unwrap();
        let Some(_disk) = Mounted::ext4(&at, mib) else { return };
        fill_up_and_clear(&at, mib);
    }
}

/// Kills a client that has a removed file open. The mgr must measure, fence and delete this file, which needs free
/// space.
#[test]
fn a_removed_file_of_a_killed_client_is_deleted_on_a_full_disk() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = Mounted::tmpfs(home.path(), "256m") else { return };
    let lab = Lab::start_with(home.path(), 1, &["--lease-secs", "2"]);
    let counter = |group: &str, name: &str| {
        let status = lab.weir(["status", "--json"]).output().unwrap();
        let groups: Vec<serde_json::Value> = serde_json::from_slice(&status.stdout).unwrap();
        groups.iter().find(|g| g["group"] == group).unwrap()["values"][name].as_u64().unwrap()
    };
    let mut put = lab.weir(["put", "/big"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = put.stdin.take().unwrap();
    // Write more data than the client buffers, so that some data reach the iods, but less data than the disk can store.
    input.write_all(&vec![7; 160 << 20]).unwrap();
    let name = lab.json(["ls", "-a", "--json", "/"])[0]["path"].as_str().unwrap().to_owned();
    lab.run(["rm", &name]);
    disk.fill("filler", LITTLE);
    assert_eq!(counter("work", "orphans"), 1);
    put.kill().unwrap();
    put.wait().unwrap();
    cleared(counter, 100 << 20);
    lab.run(["mkdir", "/dir"]);
    lab.fsck();
}
