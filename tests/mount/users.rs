//! Permissions of several users who use the same mount.

use crate::cluster::{Cluster, WEIR, succeed};
use crate::test_mount::{TestMount, can_mount};
use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Runs a shell script as the user `uid` with one supplementary group. Returns whether the script succeeded, and its
/// standard error.
fn as_user(uid: u32, group: u32, script: &str) -> (bool, String) {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}"), format!("--groups={group}")]);
    let output = command.args(["sh", "-c", script]).process_group(0).output().expect("setpriv is part of util-linux");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// `fallocate` by an ordinary user must clear the setuid and setgid bits of a program, and `stat` must show this at
/// once. `fallocate` by root must keep the bits.
fn reserves(place: &TestMount, mnt: &str) {
    let bits = |by: &str| {
        fs::set_permissions(place.at("prog"), fs::Permissions::from_mode(0o6777)).unwrap();
        let script = format!("setpriv {by} --clear-groups fallocate -o 64k -l 4k {mnt}/prog && stat -c %a {mnt}/prog");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        (String::from_utf8_lossy(&output.stdout).trim().to_owned(), output.status.success())
    };
    assert_eq!(bits("--reuid=1002 --regid=1002"), ("777".to_owned(), true));
    assert_eq!(bits("--reuid=0 --regid=0"), ("6777".to_owned(), true));
}

/// A new file must keep the setuid bit of its creation mode, even if the program opens it for writing with `O_TRUNC`.
fn makes(place: &TestMount) {
    let made = std::thread::scope(|scope| {
        let as_user = || {
            // This system call changes the user id of this thread alone, not of the whole process.
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(1002)).unwrap();
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o4755).open(place.at("made")).map(drop)
        };
        scope.spawn(as_user).join().unwrap()
    });
    made.unwrap();
    assert_eq!(fs::metadata(place.at("made")).unwrap().mode() & 0o7777, 0o4755);
}

#[test]
fn each_user_has_separate_permissions_on_one_mount() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = TestMount::new(&cluster, &dir.path().join("mnt"), &[]);
    fs::set_permissions(place.at(""), fs::Permissions::from_mode(0o1777)).unwrap();
    let mnt = place.at("").to_str().unwrap().to_owned();

    let (done, said) =
        as_user(1001, 3001, &format!("cd {mnt} && umask 077 && echo mine > f && mkdir d && echo in > d/g"));
    assert!(done, "{said}");
    let file = fs::metadata(place.at("f")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (1001, 1001, 0o600));
    for script in
        ["cat f", "echo x >> f", "rm -f f", "mv f h", "ls d", "cat d/g", "chmod 777 f", "touch -d 2001-01-01 f"]
    {
        let (done, said) = as_user(1002, 3001, &format!("cd {mnt} && {script}"));
        assert!(!done && (said.contains("ermission denied") || said.contains("not permitted")), "{script}: {said}");
    }
    // Access through a supplementary group must work. Only the first of the two processes below is a member of the
    // group.
    fs::write(place.at("shared"), b"for the group").unwrap();
    std::os::unix::fs::chown(place.at("shared"), Some(0), Some(3001)).unwrap();
    fs::set_permissions(place.at("shared"), fs::Permissions::from_mode(0o660)).unwrap();
    assert!(as_user(1002, 3001, &format!("cd {mnt} && cat shared && echo more >> shared")).0);
    assert!(!as_user(1002, 3002, &format!("cd {mnt} && cat shared")).0);
    // A file that a program has open for writing must stay writable through this open when the mode of the file
    // changes.
    let script = format!("cd {mnt} && exec 3<>f && chmod 0 f && echo again >&3 && cat /dev/null");
    let (done, said) = as_user(1001, 3001, &script);
    assert!(done, "{said}");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"again\n");
    // A user with read permission must be able to lock a file with flock(2), both with a shared and with an exclusive
    // lock.
    fs::write(place.at("lock"), b"").unwrap();
    let lock = |how: &str| as_user(1002, 3001, &format!("exec 3<{mnt}/lock && flock -n {how} 3"));
    assert!(lock("-x").0);
    let held = fs::File::open(place.at("lock")).unwrap();
    held.lock_shared().unwrap();
    assert!(lock("-s").0 && !lock("-x").0);
    drop(held);
    // A user with write permission may set both times of a file to now, but may not set other times.
    let touched = |how: &str| as_user(1002, 3001, &format!("cd {mnt} && touch -c {how} shared")).0;
    assert_eq!(["", "-m", "-a", "-d 2001-01-01"].map(touched), [true, false, false, false]);
    // A user with execute permission must be able to run a program that the user may not read.
    fs::copy("/bin/true", place.at("runs")).unwrap();
    fs::set_permissions(place.at("runs"), fs::Permissions::from_mode(0o711)).unwrap();
    assert_eq!(["./runs", "cat runs"].map(|s| as_user(1002, 3001, &format!("cd {mnt} && {s}")).0), [true, false]);
    // A write by another user must clear the setuid bit of a program.
    fs::write(place.at("prog"), b"#!").unwrap();
    fs::set_permissions(place.at("prog"), fs::Permissions::from_mode(0o4777)).unwrap();
    assert!(as_user(1002, 3001, &format!("echo evil >> {mnt}/prog")).0);
    assert_eq!(fs::metadata(place.at("prog")).unwrap().mode() & 0o7777, 0o777);
    reserves(&place, &mnt);
    makes(&place);
    place.unmount();
}

/// mount(8) passes options such as `nosuid`, `nodev` and `noexec` to its helper. Without options, `weir mount` must
/// forbid setuid bits and devices.
#[test]
fn mount_options_control_setuid_devices_and_exec() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let (helper, mnt) = (dir.path().join("mount.weir"), dir.path().join("mnt"));
    std::os::unix::fs::symlink(WEIR, &helper).unwrap();
    fs::create_dir(&mnt).unwrap();
    let with = |command: &mut Command| {
        succeed(command);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let at = |line: &&str| line.split(' ').nth(1) == mnt.to_str();
        let options: Vec<String> = mounts.lines().find(at).unwrap().split([' ', ',']).map(str::to_owned).collect();
        fs::write(mnt.join("prog"), b"#!/bin/sh\n").unwrap();
        fs::set_permissions(mnt.join("prog"), fs::Permissions::from_mode(0o755)).unwrap();
        let runs = Command::new(mnt.join("prog")).status().is_ok_and(|status| status.success());
        succeed(Command::new(WEIR).arg("umount").arg(&mnt));
        let has = |option: &str| options.iter().any(|found| found == option);
        (["nosuid", "nodev", "noexec"].map(has), runs)
    };
    let by = |program: &Path, more: &[&str]| {
        let mut command = Command::new(program);
        command.args((program == Path::new(WEIR)).then_some("mount")).args([&cluster.url, mnt.to_str().unwrap()]);
        with(command.args(more))
    };
    assert_eq!(by(Path::new(WEIR), &[]), ([true, true, false], true));
    assert_eq!(by(Path::new(WEIR), &["-o", "dev,nodiratime,noexec"]), ([true, false, true], false));
    assert_eq!(by(&helper, &["-n", "-o", "rw,noatime,lazytime"]), ([false, false, false], true));
    assert_eq!(by(&helper, &["-o", "rw,noexec,nosuid,nodev,user=x"]), ([true, true, true], false));
    // `mount -f` must succeed without mounting the file system.
    succeed(Command::new(&helper).arg(&cluster.url).arg(&mnt).args(["-f", "-o", "rw"]));
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(mnt.to_str().unwrap()));
    // Call the mount helper under both names that mount(8) uses: the name for the type in `/proc/mounts`, and the name
    // for all types of FUSE.
    for (name, named) in [("mount.fuse.weir", &[][..]), ("mount.fuse", &["-t", "fuse.weir"])] {
        let helper = dir.path().join(name);
        std::os::unix::fs::symlink(WEIR, &helper).unwrap();
        assert_eq!(by(&helper, &[&["-o", "rw,nodev"], named].concat()), ([false, true, false], true), "{name}");
    }
    succeed(Command::new(WEIR).args(["mount", &cluster.url]).arg(&mnt));
    let again =
        |options: &str| Command::new(WEIR).args(["mount", &cluster.url]).arg(&mnt).args(["-o", options]).output();
    assert!(again("remount,ro,max_read=1048576").unwrap().status.success());
    assert_eq!(fs::write(mnt.join("prog"), b"").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let open = fs::File::open(mnt.join("prog")).unwrap();
    assert!(again("remount,rw").unwrap().status.success());
    fs::write(mnt.join("prog"), b"new").unwrap();
    assert_eq!(open.metadata().unwrap().len(), 3, "the mount is the same");
    drop(open);
    succeed(Command::new(WEIR).arg("umount").arg(&mnt));
    let refused = again("remount,ro").unwrap();
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("no Weir file system is mounted there")
    );
}
