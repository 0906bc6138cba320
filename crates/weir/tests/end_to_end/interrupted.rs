//! Copies that a test stops or kills: no partial file may get its final name, and existing files must keep their data.

use crate::cluster::{Cluster, signal, stderr_of};
use crate::tree::bytes;
use rustix::process::Signal;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};

const BIG: u64 = 512 << 20;

/// Makes a file that is so large that a test can interrupt its copy.
fn big_file(dir: &Path) {
    let piece = bytes(1, 1 << 20);
    let mut file = std::fs::File::create(dir.join("big")).unwrap();
    for _ in 0..BIG >> 20 {
        std::io::Write::write_all(&mut file, &piece).unwrap();
    }
}

fn temporaries(cluster: &Cluster) -> usize {
    cluster.json(["find", "/", "-name", ".weir-cp-*", "--json"]).len()
}

/// Starts `weir put /file` with an input that stays open, so that the transfer does not end.
///
/// Returns the input separately from the child, because waiting for a child closes an input that the child object owns.
fn endless_put(cluster: &Cluster) -> (Child, ChildStdin) {
    let mut child =
        cluster.weir(["put", "/file"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut input = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, &bytes(2, 8 << 20)).expect("it reads");
    while temporaries(cluster) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "put waits for its input");
    }
    (child, input)
}

#[test]
fn an_interrupted_put_removes_its_temporary_file_and_keeps_the_old_file() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.put("/file", b"old", &[]);
    let (mut child, _input) = endless_put(&cluster);
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{}", stderr_of(&mut child));
    assert_eq!(temporaries(&cluster), 0);
    assert_eq!(cluster.run(["cat", "/file"]), b"old");
    cluster.stop();
}

#[test]
fn a_killed_put_leaves_a_temporary_file_and_keeps_the_old_file() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.put("/file", b"old", &[]);
    let (mut child, _input) = endless_put(&cluster);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(cluster.run(["cat", "/file"]), b"old");
    assert_eq!(temporaries(&cluster), 1);
    let left = cluster.json(["find", "/", "-name", ".weir-cp-*", "--json"]).remove(0);
    cluster.run(["rm", left["path"].as_str().unwrap()]);
    assert_eq!(temporaries(&cluster), 0);
    cluster.put("/file", b"new", &[]);
    assert_eq!(cluster.run(["cat", "/file"]), b"new");
    cluster.stop();
}

#[test]
fn a_killed_cluster_keeps_acknowledged_changes() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    let content = bytes(4, 3_000_000);
    cluster.run(["mkdir", "/dir"]);
    cluster.put("/dir/file", &content, &[]);
    cluster.kill();
    let cluster = Cluster::start(home.path());
    assert!(cluster.run(["cat", "/dir/file"]) == content);
    cluster.stop();
}

#[test]
fn put_continues_after_the_cluster_is_killed_and_restarted() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    let (mut child, mut input) = endless_put(&cluster);
    let url = cluster.url.clone();
    cluster.kill();
    let cluster = Cluster::start_again(&url, home.path());
    let more = bytes(5, 3_000_000);
    std::io::Write::write_all(&mut input, &more).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success(), "{}", stderr_of(&mut child));
    assert!(cluster.run(["cat", "/file"]) == [bytes(2, 8 << 20), more].concat());
    assert_eq!(temporaries(&cluster), 0);
    cluster.stop();
}

/// Starts a copy of a large file into or out of the cluster, and sends a signal while the temporary name exists.
///
/// The copy must exit with `code`. If the copy was complete before the signal, `undo` removes the file from its final
/// name and returns `true`, and the function starts another copy.
fn stop_copy(
    cluster: &Cluster,
    (from, to): (&str, &str),
    (kill, code): (Signal, Option<i32>),
    begun: impl Fn() -> bool,
    undo: impl Fn() -> bool,
) {
    for _ in 0..100 {
        let mut command = cluster.weir(["cp", "--jobs", "1", "--quiet", from, to]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
        while child.try_wait().unwrap().is_none() {
            if begun() {
                signal(&child, kill);
                break;
            }
        }
        let ended = child.wait().unwrap();
        if !undo() {
            assert_eq!(ended.code(), code, "{}", stderr_of(&mut child));
            return;
        }
    }
    panic!("no copy was caught in the middle");
}

fn local_temporaries(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
    names.filter(|name| name.as_encoded_bytes().starts_with(b".weir-cp-")).count()
}

#[test]
fn interrupted_copies_leave_no_partial_files() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&home.path().join("store"));
    let out = home.path().join("out");
    std::fs::create_dir(&out).unwrap();
    big_file(home.path());
    let local = home.path().join("big").to_str().unwrap().to_owned();
    cluster.run(["cp", "--quiet", &local, "weir:/whole"]);
    let into = format!("{}/big", out.to_str().unwrap());
    for (kill, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(130)), (Signal::KILL, None)] {
        let remove = || {
            let found = !cluster.json(["find", "/", "-name", "big", "--json"]).is_empty();
            if found {
                assert_eq!(cluster.json(["stat", "--json", "/big"])[0]["size"], BIG, "no partial file");
                cluster.run(["rm", "/big"]);
            }
            found
        };
        stop_copy(&cluster, (&local, "weir:/big"), (kill, code), || temporaries(&cluster) > 0, remove);
        assert_eq!(temporaries(&cluster), usize::from(code.is_none()));

        let remove = || {
            let found = out.join("big").exists();
            if found {
                assert_eq!(std::fs::metadata(out.join("big")).unwrap().len(), BIG, "no partial file");
                std::fs::remove_file(out.join("big")).unwrap();
            }
            found
        };
        stop_copy(&cluster, ("weir:/whole", &into), (kill, code), || local_temporaries(&out) > 0, remove);
        assert_eq!(local_temporaries(&out), usize::from(code.is_none()));
    }
    // A second run of the interrupted command must complete the copy.
    cluster.run(["cp", "--quiet", &local, "weir:/big"]);
    assert_eq!(cluster.json(["stat", "--json", "/big"])[0]["size"], BIG);
    cluster.stop();
}
