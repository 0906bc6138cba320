//! Policies on a mount: which policy applies to a file, which users may change it, and whether bytes take the direct
//! path or the mgr path.

use crate::cluster::{Cluster, WEIR, fail, succeed};
use crate::files::{mounted, pattern};
use crate::test_mount::TestMount;
use rustix::fs::{XattrFlags, removexattr, setxattr};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

fn set(path: &Path, name: &str, value: &str) -> Result<(), Errno> {
    setxattr(path, format!("user.weir.{name}").as_str(), value.as_bytes(), XattrFlags::empty())
}

/// Returns the effective value of the policy setting `part` at a path of a mount, and `origin`, which names the place
/// where the value is set.
fn effective(path: &Path, part: &str) -> (String, String) {
    let out = succeed(Command::new(WEIR).args(["policy", "show", "--mount", "--json"]).arg(path));
    let shown: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let text = |what: &str| shown[part][what].as_str().unwrap_or_default().to_owned();
    (text("value"), text("origin"))
}

fn counts(value: &str, origin: &str) -> (String, String) {
    (value.to_owned(), origin.to_owned())
}

/// Writes a file of `len` bytes and closes it. Returns how many of the bytes took the mgr path.
fn through_mgr(cluster: &Cluster, path: &Path, len: usize) -> u64 {
    let before = cluster.counter("counters", "proxy_write_bytes");
    fs::write(path, pattern(len, 3)).unwrap();
    cluster.counter("counters", "proxy_write_bytes") - before
}

#[test]
fn the_policy_of_a_directory_applies_to_its_files_on_all_mounts() {
    let Some((dir, cluster, place)) = mounted(&[]) else { return };
    let other = TestMount::new(&cluster, &dir.path().join("other"), &[]);
    fs::create_dir(place.at("d")).unwrap();
    let (here, there) = (place.at("d"), other.at("d"));
    assert_eq!(through_mgr(&cluster, &here.join("f"), 40_000), 40_000, "the threshold of mounts is 64K");
    set(&here, "write_threshold", "32K").unwrap();
    assert_eq!(through_mgr(&cluster, &there.join("f"), 40_000), 0);
    assert_eq!(through_mgr(&cluster, &there.join("f"), 20_000), 20_000);
    assert_eq!(effective(&there, "write_threshold"), counts("32K", "directory"));
    assert_eq!(effective(&there.join("f"), "write_threshold"), counts("32K", "directory"));
    assert_eq!(effective(&other.at("."), "write_threshold"), counts("64K", "driver"));
    for (name, value) in [("write_threshold", "much"), ("access", ""), ("colour", "blue"), ("mgr_gather_delay", "1s")] {
        assert_eq!(set(&here, name, value), Err(Errno::INVAL), "{name}={value}");
    }
    assert_eq!(set(&here.join("f"), "stripe_unit", "64K"), Err(Errno::INVAL));
    cluster.run(["policy", "unset", "/d", "write_threshold"]);
    assert_eq!(through_mgr(&cluster, &here.join("f"), 40_000), 40_000);
    let shown = String::from_utf8(cluster.run(["policy", "show", "/d"])).unwrap();
    assert!(shown.contains("write_threshold   64K            driver"), "{shown}");
    other.unmount();
    place.unmount();
}

/// Gives this thread a descriptor table of its own. Otherwise, child processes of other tests inherit its descriptors
/// and close them at any time. Each such close makes the mount send the gathered writes of the file, which would
/// disturb the test.
fn unshare_descriptor_table() {
    // SAFETY: no other thread uses a descriptor of this thread, and this thread uses no descriptor of another thread.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.unwrap();
}

#[test]
fn each_access_method_sends_the_expected_requests() {
    unshare_descriptor_table();
    // Let all bytes take the mgr path, so that the counters of the mgr count all requests.
    let Some((_dir, cluster, place)) = mounted(&["-o", "write_threshold=max,read_threshold=max"]) else { return };
    let write = |file: &File| {
        let before = cluster.counter("counters", "proxy_writes");
        (0..8).for_each(|n| file.write_all_at(&[7; 4096], n * 4096).unwrap());
        file.sync_all().unwrap();
        cluster.counter("counters", "proxy_writes") - before
    };
    let read_twice = |file: &File| {
        let before = cluster.counter("counters", "proxy_read_bytes");
        (0..2).for_each(|_| file.read_exact_at(&mut [0; 32768], 0).unwrap());
        cluster.counter("counters", "proxy_read_bytes") - before
    };
    let open = |name: &str, flags: rustix::fs::OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32);
        options.open(place.at(name)).unwrap()
    };
    let nothing = rustix::fs::OFlags::empty();
    let direct = open("direct", nothing);
    assert_eq!(
        (write(&direct), read_twice(&direct)),
        (1, 65536),
        "direct: writes are gathered, and read bytes are not cached"
    );
    let odirect = open("direct", rustix::fs::OFlags::DIRECT);
    assert_eq!((write(&odirect), read_twice(&odirect)), (8, 65536), "O_DIRECT: one request for each write");
    assert_eq!(write(&direct), 1, "the other open keeps its access method");
    // A policy setting of the file itself must apply to every open of the file.
    set(&place.at("direct"), "access", "unbuffered").unwrap();
    assert_eq!(write(&direct), 8, "settings that the mount applies take effect at once");
    File::create(place.at("page")).unwrap();
    set(&place.at("page"), "access", "page").unwrap();
    assert_eq!(write(&open("page", nothing)), 1);
    let page = open("page", nothing);
    page.read_exact_at(&mut [0; 32768], 0).unwrap();
    assert_eq!(read_twice(&page), 0, "page: read bytes stay cached");
    assert_eq!(effective(&place.at("page"), "access"), counts("page", "file"));
    drop((direct, odirect, page));
    place.unmount();
}

#[test]
fn the_policy_of_a_mount_can_be_changed_during_use() {
    let Some((dir, cluster, place)) = mounted(&["--policy", "read_threshold=4K"]) else { return };
    let root = place.at(".");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(place.at("open")).unwrap();
    let policy = |args: &[&str]| {
        let mut command = Command::new(WEIR);
        command.args(["policy", args[0], "--mount"]).arg(&root).args(&args[1..]);
        command
    };
    let proxied = || cluster.counter("counters", "proxy_write_bytes");
    let mut whole = vec![0; 600_000];
    for (n, (threshold, bytes)) in [("max", 200_000), ("0", 0), ("1M", 200_000), ("100K", 0)].iter().enumerate() {
        succeed(&mut policy(&["set", &format!("write_threshold={threshold}")]));
        assert_eq!(effective(&root, "write_threshold"), counts(threshold, "mount"));
        let (before, data, at) = (proxied(), pattern(200_000, n as u64), n * 100_000);
        file.write_all_at(&data, at as u64).unwrap();
        file.sync_all().unwrap();
        whole[at..at + data.len()].copy_from_slice(&data);
        assert_eq!(proxied() - before, *bytes, "{threshold}");
    }
    assert!(fs::read(place.at("open")).unwrap() == whole[..500_000]);
    assert_eq!(effective(&root, "read_threshold"), counts("4K", "mount"));
    succeed(&mut policy(&["unset", "write_threshold", "read_threshold"]));
    assert_eq!(effective(&root, "write_threshold"), counts("64K", "driver"));
    assert!(fail(&mut policy(&["set", "stripe_unit=64K"]), 2).contains("for the directory"));
    assert_eq!(set(&root, "mount.access", "fast"), Err(Errno::INVAL));
    assert_eq!(removexattr(&root, "user.weir.mount.access"), Err(Errno::NODATA));
    // The mount must not list its own settings as extended attributes of a file, and must not let other users set them.
    let mut names = [0; 1000];
    let len = rustix::fs::listxattr(&root, &mut names).unwrap();
    assert_eq!(len, 0);
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(&root, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut user = policy(&["set", "access=page"]);
    assert!(fail(user.uid(1000).gid(1000), 1).contains("not permitted"));
    assert!(fail(Command::new(WEIR).args(["policy", "show", "--mount", "/proc"]), 1).contains("no Weir"));
    drop(file);
    place.unmount();
    drop(dir);
}

#[test]
fn the_kernel_reads_ahead_as_far_as_the_mount_sets() {
    let Some((_dir, _cluster, place)) = mounted(&["-o", "access=page,read_ahead=512K"]) else { return };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = place.at("");
    let at = at.to_str().unwrap().trim_end_matches('/');
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(at)).unwrap();
    let kernel = format!("/sys/class/bdi/{}/read_ahead_kb", line.split(' ').nth(2).unwrap());
    let far = || fs::read_to_string(&kernel).unwrap().trim().parse::<u32>().unwrap();
    let before = far();
    if fs::write(&kernel, before.to_string()).is_err() {
        eprintln!("NOT TESTED: {kernel} cannot be written");
        return place.unmount();
    }
    fs::write(place.at("f"), "x").unwrap();
    assert_eq!(far(), 512);
    set(&place.at("."), "mount.read_ahead", "256K").unwrap();
    assert_eq!(far(), 256);
    place.unmount();
}

#[test]
fn the_environment_overrides_the_options_of_the_mount() {
    let Some((dir, cluster, place)) = mounted(&["-o", "access=page"]) else { return };
    assert_eq!(effective(&place.at("."), "access"), counts("page", "mount"));
    let at = dir.path().join("other");
    fs::create_dir(&at).unwrap();
    let mount = |policy: &str| {
        let mut mount = Command::new(WEIR);
        mount.args(["mount", &cluster.url]).arg(&at).args(["-o", "access=page"]).env("WEIR_POLICY", policy);
        mount
    };
    assert!(
        fail(&mut mount("access=fast"), 2)
            .contains("WEIR_POLICY: access: \"fast\" is not valid; write page, direct or unbuffered")
    );
    succeed(&mut mount("access=unbuffered, gather_delay=5ms"));
    assert_eq!(effective(&at, "access"), counts("unbuffered", "environment"));
    assert_eq!(effective(&at, "gather_delay"), counts("5ms", "environment"));
    succeed(Command::new(WEIR).arg("umount").arg(&at));
    place.unmount();
}
