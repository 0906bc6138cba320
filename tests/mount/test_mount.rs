//! A mount for a test, which the test unmounts at its end.

use crate::cluster::{Cluster, WEIR, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that selects the transport of FUSE requests for the mounts of all tests. If the variable is
/// not set, the mounts use `device`.
pub const TRANSPORT: &str = "WEIR_TEST_TRANSPORT";

/// The environment variable with options for the mounts of all tests: names of long options without leading dashes,
/// separated by commas.
pub const OPTIONS: &str = "WEIR_TEST_MOUNT";

/// Returns whether tests run in their long form (`WEIR_TEST_SCALE=full`).
pub fn full() -> bool {
    std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// Runs tests of this binary again in a process of their own. Asserts that they pass, and that at least one test ran.
pub fn rerun_passes(command: &mut Command) {
    let said = command.stderr(std::process::Stdio::inherit()).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    println!("{text}");
    assert!(said.status.success(), "again: {}", said.status);
    let passed = |line: &str| line.strip_prefix("test result: ok. ")?.split_once(" passed")?.0.parse::<u32>().ok();
    assert!(text.lines().find_map(passed).is_some_and(|passed| passed > 0), "no test ran again");
}

/// Returns the options that the mounts of all tests share.
pub fn options() -> Vec<String> {
    let transport = std::env::var(TRANSPORT).unwrap_or_else(|_| "device".to_owned());
    let mut options = vec!["--transport".to_owned(), transport];
    if let Ok(more) = std::env::var(OPTIONS) {
        options.extend(more.split(',').map(|option| format!("--{option}")));
    }
    options
}

/// A mount whose process runs in the background.
pub struct TestMount {
    dir: PathBuf,
}

/// Returns whether this process can mount file systems. Prints the reason if it cannot.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("NOT TESTED: mounting needs root and /dev/fuse");
    }
    can
}

impl TestMount {
    /// Mounts the file system of a cluster at the directory `dir`, and creates the directory.
    pub fn new(cluster: &Cluster, dir: &Path, options: &[&str]) -> TestMount {
        TestMount::at_url(&cluster.url, dir, options)
    }

    /// Mounts the file system at `url` at the directory `dir`, and creates the directory.
    pub fn at_url(url: &str, dir: &Path, options: &[&str]) -> TestMount {
        if let Err(error) = std::fs::create_dir_all(dir) {
            // `create_dir_all` fails at the mount point of a killed mount, although the directory exists. So accept the
            // error `AlreadyExists`.
            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
        }
        let mut command = Command::new(WEIR);
        command.args(["mount", url]).arg(dir).args(self::options()).args(options);
        succeed(&mut command);
        TestMount { dir: dir.to_owned() }
    }

    /// Returns a `TestMount` for a mount at `dir` that another process serves. When that process ends, it unmounts the
    /// file system.
    pub fn there(dir: &Path) -> TestMount {
        TestMount { dir: dir.to_owned() }
    }

    /// Returns the path of the entry `name` of the mount's root.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the id of the process that serves the mount.
    pub fn daemon(&self) -> rustix::process::Pid {
        let dir = self.dir.to_str().unwrap();
        let serves = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let args: Vec<&[u8]> = line.split(|b| *b == 0).collect();
            args.contains(&dir.as_bytes()) && args.contains(&&b"--background"[..])
        };
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let pid = pids.find(serves).expect("a mount has a process");
        rustix::process::Pid::from_raw(pid).unwrap()
    }

    /// Unmounts the file system, which must succeed. Tries again while the mount is busy. A child process that
    /// another test has just started still has the open files of this process, until the child calls `execve`.
    pub fn unmount(self) {
        let umount = || Command::new(WEIR).arg("umount").arg(&self.dir).output().unwrap();
        let mut done = umount();
        for _ in 0..100 {
            if done.status.success() || !String::from_utf8_lossy(&done.stderr).contains("busy") {
                break;
            }
            done = umount();
        }
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(std::fs::read_dir(&self.dir).unwrap().count(), 0, "the mount has ended");
        std::mem::forget(self);
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        // Unmount lazily, because a failed test may leave open files.
        let _ = Command::new(WEIR).args(["umount", "--lazy"]).arg(&self.dir).output();
    }
}
