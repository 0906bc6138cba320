//! Users with their own permissions on one mount.

use crate::cluster::Cluster;
use crate::place::{Place, can_mount};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs a shell script as somebody with one supplementary group.
fn as_user(uid: u32, group: u32, script: &str) -> (bool, String) {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}"), format!("--groups={group}")]);
    let output = command.args(["sh", "-c", script]).process_group(0).output().expect("setpriv is part of util-linux");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn everybody_has_their_own_rights() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let cluster = Cluster::start(&dir.path().join("data"));
    let place = Place::new(&cluster, &dir.path().join("mnt"), &[]);
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
    // By a group that only this process is in.
    fs::write(place.at("shared"), b"for the group").unwrap();
    std::os::unix::fs::chown(place.at("shared"), Some(0), Some(3001)).unwrap();
    fs::set_permissions(place.at("shared"), fs::Permissions::from_mode(0o660)).unwrap();
    assert!(as_user(1002, 3001, &format!("cd {mnt} && cat shared && echo more >> shared")).0);
    assert!(!as_user(1002, 3002, &format!("cd {mnt} && cat shared")).0);
    // A file that is open stays so when its mode changes.
    let script = format!("cd {mnt} && exec 3<>f && chmod 0 f && echo again >&3 && cat /dev/null");
    let (done, said) = as_user(1001, 3001, &script);
    assert!(done, "{said}");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"again\n");
    // Who may read a file may lock it with flock(2), also against all others.
    fs::write(place.at("lock"), b"").unwrap();
    let lock = |how: &str| as_user(1002, 3001, &format!("exec 3<{mnt}/lock && flock -n {how} 3"));
    assert!(lock("-x").0);
    let held = fs::File::open(place.at("lock")).unwrap();
    held.lock_shared().unwrap();
    assert!(lock("-s").0 && !lock("-x").0);
    drop(held);
    // Who writes to a setuid program that is not theirs takes the bit away.
    fs::write(place.at("prog"), b"#!").unwrap();
    fs::set_permissions(place.at("prog"), fs::Permissions::from_mode(0o4777)).unwrap();
    assert!(as_user(1002, 3001, &format!("echo evil >> {mnt}/prog")).0);
    assert_eq!(fs::metadata(place.at("prog")).unwrap().mode() & 0o7777, 0o777);
    place.unmount();
}
