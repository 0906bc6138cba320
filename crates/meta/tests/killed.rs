//! Crash test with a real process: the test kills a process that creates files. Every file whose create had returned
//! must exist afterwards.

#[path = "common/block.rs"]
mod block;

use block::block;
use meta::{CreateMode, Embedded, Format, Namespace, merge};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use types::{Cred, FileId, Fsid, SetAttrs, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };
/// Environment variable with the path of the store. If the variable is set, this program runs as the child process
/// that the test kills.
const STORE: &str = "WEIR_TEST_KILLED_STORE";
/// Environment variable that enables `Embedded::led_by_callers` (threads that submit batches commit them) in the child
/// process.
const LED: &str = "WEIR_TEST_KILLED_LED";

fn open(path: &Path) -> Namespace<Embedded> {
    Namespace::open(Embedded::open(path, merge).expect("store")).expect("open")
}

/// The main loop of the child process: creates files until the test kills the process, and prints the name of each
/// created file.
fn make_files(path: &Path) {
    let store = Embedded::open(path, merge).expect("store");
    let store = if std::env::var_os(LED).is_some() { store.led_by_callers() } else { store };
    let fs = Namespace::open(store).expect("open");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &fs;
            scope.spawn(move || {
                for n in 0.. {
                    let name = format!("{}-{thread}-{n}", std::process::id());
                    let how = CreateMode::Guarded(SetAttrs { mode: Some(0o644), ..SetAttrs::default() });
                    block(fs.create(&Cred::root(), NOW, FileId::ROOT, name.as_bytes(), &how, None)).expect("create");
                    // The child process flushes each line of its standard output at once, because the parent process
                    // reads the line. If the parent process has ended, the write fails and this thread returns.
                    let mut out = std::io::stdout().lock();
                    if writeln!(out, "promised {name}").and_then(|()| out.flush()).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn created_files_survive_a_kill_of_the_process() {
    if let Some(path) = std::env::var_os(STORE) {
        return make_files(Path::new(&path));
    }
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("meta.redb");
    let format =
        Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: [3; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
    drop(block(Namespace::format(Embedded::create(&path, [9; 16], merge).expect("store"), format)).expect("format"));
    let full = std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let mut promised = Vec::new();
    for round in 0..if full { 60 } else { 4 } {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        if round % 2 == 0 {
            child.env(LED, "1");
        }
        let mut child = child
            .args(["--exact", "created_files_survive_a_kill_of_the_process", "--nocapture"])
            .env(STORE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("child");
        // The test kills the child after a number of output lines that varies between rounds. So the test kills some
        // children before the store's first checkpoint, and some after it.
        let longest = 20 + round % 7 * 130;
        let lines = BufReader::new(child.stdout.take().expect("output")).lines();
        let name = |line: std::io::Result<String>| line.ok()?.strip_prefix("promised ").map(str::to_owned);
        let mut names = lines.filter_map(name);
        promised.extend(names.by_ref().take(longest));
        child.kill().expect("kill");
        child.wait().expect("wait");
        // The pipe may still contain names that the child process printed before the test killed it. The last line may
        // be incomplete.
        let mut rest: Vec<_> = names.collect();
        rest.pop();
        promised.extend(rest);
        let fs = open(&path);
        for name in &promised {
            assert!(fs.lookup(&Cred::root(), FileId::ROOT, name.as_bytes()).is_ok(), "round {round}: {name} is lost");
        }
        assert_eq!(fs.check(), Ok(Vec::new()), "round {round}");
        let there = fs.getattr(FileId::ROOT).expect("root").size;
        assert!(there >= promised.len() as u64, "round {round}: {there} names, {} promised", promised.len());
    }
    assert!(promised.len() >= 60);
}
