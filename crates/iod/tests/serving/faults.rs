//! Tests of an iod whose disk is full or read-only.

use std::path::{Path, PathBuf};
use std::process::Command;

use iod::{Iod, Store};
use types::Status;

use crate::cluster::{FSID, Server, config, pattern};

/// A small file system (tmpfs) in a temporary directory. Dropping this value unmounts it.
struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    /// Mounts a small file system; returns `None` if the test process may not mount.
    fn mount(bytes: usize) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        if run("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"], dir.path()) {
            return Some(Small { dir });
        }
        println!("skipped: cannot mount a small file system here");
        None
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        assert!(run("umount", &["-l"], self.dir.path()));
    }
}

/// Runs a command with `dir` as its last argument; returns whether the command succeeded.
fn run(command: &str, args: &[&str], dir: &Path) -> bool {
    Command::new(command).args(args).arg(dir).status().is_ok_and(|status| status.success())
}

fn start(dir: &Path) -> Server {
    Server { running: Some(Iod::start(config(dir)).unwrap()), dir: tempfile::tempdir().unwrap() }
}

#[test]
fn a_full_disk_returns_nospc_and_keeps_all_data() {
    let Some(small) = Small::mount(4 << 20) else { return };
    Store::format(&small.path(), FSID).unwrap();
    let server = start(&small.path());
    let mut client = server.client();
    let data = pattern(1 << 20, 1);
    let mut written = 0;
    let error = loop {
        match client.write(1, written, &data) {
            Ok(reply) => written = reply.size,
            Err(error) => break error,
        }
    };
    assert_eq!(error.status(), Status::NoSpc);
    assert!((2 << 20..4 << 20).contains(&written), "{written}");
    // The iod also refuses to create an object, because the disk has no space for the header of the object file. The
    // iod leaves no object file behind.
    let room = pattern(4096, 2);
    let filled = (0..2000).find_map(|i| client.write(1, (1 << 30) + i * 4096, &room).err());
    assert_eq!(filled.expect("the last block is taken at some time").status(), Status::NoSpc);
    assert_eq!(client.write(2, 0, b"x").unwrap_err().status(), Status::NoSpc);
    assert_eq!(client.size(2).unwrap().size, 0);
    let stats = client.stats().unwrap();
    assert!(stats.free < 4096, "{} free", stats.free);
    let (reserve, disk) = (stats.capacity / 16, rustix::fs::statvfs(small.dir.path()).unwrap());
    let left = disk.f_bavail * disk.f_frsize;
    assert!((reserve..reserve + 4096).contains(&left), "{left} left");
    // After another program has filled the rest of the disk, the iod can still overwrite allocated blocks.
    client.write(1, 0, &data).unwrap();
    let filler = small.dir.path().join("filler");
    std::fs::write(&filler, vec![1; 1 << 20]).unwrap_err();
    assert_eq!(client.stats().unwrap().free, 0);
    assert_eq!(client.write(2, 0, b"x").unwrap_err().status(), Status::NoSpc);
    client.write(1, 0, &data).unwrap();

    // All data that the iod has written are intact, also after a restart on the full disk.
    for _ in 0..2 {
        let mut client = server.client();
        for block in 0..written >> 20 {
            assert_eq!(client.read(1, block << 20, 1 << 20).unwrap(), data);
        }
    }
    drop(server);
    let server = start(&small.path());
    let mut client = server.client();
    assert_eq!(client.read(1, 0, 1 << 20).unwrap(), data);
    client.remove(1).unwrap();
    client.write(2, 0, &data).unwrap();
    assert_eq!(client.commit(2).unwrap().size, 1 << 20);
}

#[test]
fn formatting_a_full_disk_leaves_no_store() {
    let Some(small) = Small::mount(64 << 10) else { return };
    let filler = small.dir.path().join("filler");
    let full = std::fs::write(&filler, vec![1; 128 << 10]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let error = Store::format(&small.path(), FSID).unwrap_err();
    assert!(error.to_string().contains("no space left"), "{error}");
    std::fs::remove_file(filler).unwrap();
    Store::format(&small.path(), FSID).unwrap();
}

#[test]
fn a_read_only_disk_is_reported_at_start() {
    let Some(small) = Small::mount(1 << 20) else { return };
    Store::format(&small.path(), FSID).unwrap();
    assert!(run("mount", &["-o", "remount,ro"], small.dir.path()));
    let error = Iod::start(config(&small.path())).err().unwrap().to_string();
    assert!(error.contains("cannot write") && error.contains("mount options"), "{error}");
}
