//! A mount in the process of its cluster (`weir up --mount`), alone and together with a mount in a process of its own.
//!
//! A mount in the process of a cluster calls the mgr of this cluster without a socket.

use crate::cluster::{Cluster, WEIR, own_address, signal, succeed};
use crate::test_mount::{TestMount, can_mount, options};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Starts a cluster that mounts its file system at `at`; `more` are additional options for `weir up`.
fn mounted(listen: &str, data: &Path, at: &Path, more: &[&str]) -> Cluster {
    let how = options();
    let mut args = vec!["--mount", at.to_str().unwrap()];
    args.extend(how.iter().map(String::as_str));
    args.extend(more);
    Cluster::start_at(listen, data, &args)
}

/// Adds one to the number in a file. Locks the file, because several threads call this function at the same time.
fn count(path: PathBuf) {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.lock().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let number: u64 = if text.is_empty() { 0 } else { text.parse().unwrap() };
    file.rewind().unwrap();
    file.write_all((number + 1).to_string().as_bytes()).unwrap();
    file.unlock().unwrap();
}

/// Creates a file exclusively, so that only one thread can create it. Returns whether this call has created the file.
fn take(path: &Path, text: &str) -> bool {
    match File::create_new(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).is_ok(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{}: {error}", path.display());
            false
        }
    }
}

/// Returns all files below a directory, with their contents.
fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let content = fs::read(&path).unwrap();
                found.push((path.strip_prefix(dir).unwrap().to_owned(), content));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_mount_in_the_cluster_and_a_separate_mount_share_files() {
    const THREADS: usize = 3;
    const ROUNDS: usize = 40;
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("inside");
    let mut cluster = mounted(&format!("{}:0", own_address()), &dir.path().join("data"), &at, &[]);
    let other = TestMount::new(&cluster, &dir.path().join("outside"), &[]);
    for name in ["taken", "here", "there"] {
        fs::create_dir(at.join(name)).unwrap();
    }
    for token in 0..10 {
        fs::write(other.at(&format!("here/{token}")), token.to_string()).unwrap();
    }
    let begin = Barrier::new(2 * THREADS);
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 * THREADS {
            let (begin, taken) = (&begin, &taken);
            let root = if thread % 2 == 0 { at.clone() } else { other.at("") };
            scope.spawn(move || {
                begin.wait();
                for round in 0..ROUNDS {
                    count(root.join("counter"));
                    let name = root.join(format!("taken/{round}"));
                    if take(&name, &format!("round {round}")) {
                        taken.fetch_add(1, SeqCst);
                    }
                    // Move files between two directories, as tokens. At the end, no token may be lost or exist twice.
                    let (from, to) = if (round + thread) % 2 == 0 { ("here", "there") } else { ("there", "here") };
                    let token = (round * 7 + thread) % 10;
                    let path = |place: &str| root.join(format!("{place}/{token}"));
                    if let Err(error) = fs::rename(path(from), path(to)) {
                        assert_eq!(error.kind(), ErrorKind::NotFound, "token {token}: {error}");
                    }
                    let own = root.join(format!("own{thread}"));
                    let text = format!("{thread} {round}").repeat(1 + 997 * round % 3000);
                    fs::write(&own, &text).unwrap();
                    assert!(fs::read_to_string(&own).unwrap() == text);
                    if round % 3 == 0 {
                        fs::remove_file(&own).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(taken.into_inner(), ROUNDS, "each name is created by one process");
    let (inside, outside) = (tree(&at), tree(&other.at("")));
    let names = |tree: &[(PathBuf, Vec<u8>)]| tree.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
    assert_eq!(names(&inside), names(&outside));
    assert!(inside == outside, "both read the same");
    let content = |name: &str| String::from_utf8(fs::read(at.join(name)).unwrap()).unwrap();
    assert_eq!(content("counter"), (2 * THREADS * ROUNDS).to_string());
    for round in 0..ROUNDS {
        assert_eq!(content(&format!("taken/{round}")), format!("round {round}"));
    }
    let tokens: Vec<_> =
        inside.iter().filter(|(path, _)| path.starts_with("here") || path.starts_with("there")).collect();
    assert_eq!(tokens.len(), 10, "{tokens:?}");
    assert!(tokens.iter().all(|(path, text)| path.file_name().unwrap().as_encoded_bytes() == text));
    other.unmount();
    // SIGINT, which Ctrl-C sends, must unmount the file system.
    signal(&cluster.child, Signal::INT);
    assert!(cluster.child.wait().unwrap().success());
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0, "the mount has ended");
}

/// Kills the cluster while threads create and remove files. After a restart of the cluster, the closed files must
/// exist, and the removed files must not exist.
fn killed_while_files_are_made(more: &[&str]) {
    const THREADS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let (data, at) = (dir.path().join("data"), dir.path().join("mnt"));
    let mut cluster = mounted(&format!("{}:0", own_address()), &data, &at, more);
    let text = |thread: usize, n: usize| format!("file {n} of {thread} ").repeat(1 + n * 131 % 700);
    for round in 0..3 {
        let (closed, removed): ([AtomicUsize; THREADS], [AtomicUsize; THREADS]) = Default::default();
        let path = |thread: usize, n: usize| at.join(format!("{round} {thread} {n}"));
        let enough = 40;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (closed, removed) = (&closed[thread], &removed[thread]);
                scope.spawn(move || {
                    for n in 0.. {
                        // End the loop when the mount has died. Store `n` after file `n` exists, because this thread
                        // has then closed all files with smaller numbers while the mount was alive.
                        let Ok(mut file) = File::create(path(thread, n)) else { break };
                        closed.store(n, SeqCst);
                        if file.write_all(text(thread, n).as_bytes()).is_err() {
                            break;
                        }
                        drop(file);
                        if n % 4 == 3 && fs::remove_file(path(thread, n)).is_ok() {
                            removed.store(n + 1, SeqCst);
                        }
                    }
                });
            }
            while closed.iter().any(|closed| closed.load(SeqCst) < enough) {
                std::thread::yield_now();
            }
            cluster.child.kill().unwrap();
        });
        let url = cluster.url.clone();
        drop(cluster);
        let listen = url.trim_start_matches("weir://").trim_end_matches('/');
        cluster = mounted(listen, &data, &at, more);
        for thread in 0..THREADS {
            let (closed, removed) = (closed[thread].load(SeqCst), removed[thread].load(SeqCst));
            assert!(closed >= enough);
            for n in 0..closed {
                let found = fs::read_to_string(path(thread, n));
                if n < removed && n % 4 == 3 {
                    assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound, "{n} of {thread} was removed");
                } else if n % 4 != 3 {
                    assert!(found.unwrap() == text(thread, n), "{n} of {thread}");
                }
            }
        }
    }
    succeed(Command::new(WEIR).args(["fsck", &cluster.url]));
    cluster.stop();
}

#[test]
fn closed_files_survive_a_kill_with_durable_close() {
    if can_mount() {
        killed_while_files_are_made(&["--durable", "close"]);
    }
}

#[test]
fn closed_files_survive_a_kill_with_durable_fsync() {
    if can_mount() {
        killed_while_files_are_made(&[]);
    }
}
