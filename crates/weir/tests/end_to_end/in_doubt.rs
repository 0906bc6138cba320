//! Kills of the mgr after it has committed a change and before its reply arrives: the command must report the true
//! outcome of the change.
//!
//! The tests run each command repeatedly, and kill the mgr at a different reply each time.

use crate::lab::Lab;
use crate::tree::bytes;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::io::Write;
use std::process::{Output, Stdio};

/// Runs a command with `input` on standard input. Kills the mgr when the mgr has sent its reply number `at`, before
/// this reply reaches the command. Returns `false` if the command ended before this reply.
fn run_with_kill_at(lab: &mut Lab, args: &[&str], input: &[u8], at: u64) -> (Output, bool) {
    lab.mgr.proxy.hold_answers_after(at);
    let mut command = lab.weir(args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let (mut stdin, input) = (child.stdin.take().expect("piped"), input.to_vec());
    // Ignore errors: the command may end without reading its standard input.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let met = lab.mgr.proxy.wait_for_held_answer(|| child.try_wait().expect("a child").is_some());
    if met {
        lab.mgr.kill();
        lab.mgr.proxy.drop_answers();
        lab.mgr.restart();
    }
    let output = child.wait_with_output().expect("it ends");
    feeder.join().expect("it ends with its reader");
    lab.mgr.proxy.drop_answers();
    (output, met)
}

/// Runs a command once for each reply that the mgr sends to the command, and kills the mgr at this reply. `prepare`
/// returns the command's arguments for the run with a given reply number. The command must exit with `code`, and then
/// `check` verifies the result.
fn kill_at_each_answer(
    lab: &mut Lab,
    code: i32,
    input: &[u8],
    mut prepare: impl FnMut(&Lab, u64) -> Vec<String>,
    mut check: impl FnMut(&Lab, u64),
) {
    for at in 0.. {
        let args = prepare(lab, at);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (output, met) = run_with_kill_at(lab, &args, input, at);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?} over answer {at}: {said}");
        check(lab, at);
        if !met {
            assert!(at > 3, "a command needs several replies, but only {at} were seen");
            return;
        }
    }
}

fn words(words: &[&str], last: String) -> Vec<String> {
    words.iter().map(|word| word.to_string()).chain([last]).collect()
}

fn exists(lab: &Lab, path: &str) -> bool {
    lab.weir(["stat", "--json", path]).output().expect("the binary starts").status.success()
}

fn links(lab: &Lab, path: &str) -> u64 {
    lab.json(["stat", "--json", path])[0]["links"].as_u64().expect("a number")
}

#[test]
fn creating_names_reports_the_true_outcome_after_a_lost_answer() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start_with(home.path(), 1, &["--lease-secs", "2"]);
    let made = |lab: &Lab, path: String| assert!(exists(lab, &path), "{path}");
    let new = |at| format!("/dir-{at}");
    kill_at_each_answer(&mut lab, 0, b"", |_, at| words(&["mkdir"], new(at)), |lab, at| made(lab, new(at)));
    // The command must fail if another command has already made the name, even if the mgr's reply was lost.
    kill_at_each_answer(&mut lab, 1, b"", |_, _| words(&["mkdir"], new(0)), |_, _| {});
    let new = |at| format!("/symlink-{at}");
    kill_at_each_answer(&mut lab, 0, b"", |_, at| words(&["ln", "-s", "text"], new(at)), |lab, at| made(lab, new(at)));
    kill_at_each_answer(&mut lab, 1, b"", |_, _| words(&["ln", "-s", "text"], new(0)), |_, _| {});
    lab.put("/file", b"content");
    let new = |at| format!("/link-{at}");
    let counted = |lab: &Lab, at| assert_eq!(links(lab, "/file"), at + 2);
    kill_at_each_answer(&mut lab, 0, b"", |_, at| words(&["ln", "/file"], new(at)), counted);
    lab.fsck();
}

#[test]
fn moving_and_removing_report_the_true_outcome_after_a_lost_answer() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start_with(home.path(), 1, &["--lease-secs", "2"]);
    let prepare = |lab: &Lab, at| {
        lab.put(&format!("/old-{at}"), b"content");
        words(&["mv", &format!("/old-{at}")], format!("/new-{at}"))
    };
    let check = |lab: &Lab, at| {
        assert!(!exists(lab, &format!("/old-{at}")));
        assert_eq!(lab.run(["cat", &format!("/new-{at}")]), b"content");
    };
    kill_at_each_answer(&mut lab, 0, b"", prepare, check);
    kill_at_each_answer(&mut lab, 1, b"", |_, _| words(&["mv", "/nowhere"], "/new-0".into()), |_, _| {});
    kill_at_each_answer(&mut lab, 1, b"", |_, _| words(&["mv", "-n", "/new-0"], "/new-1".into()), |_, _| {});
    let prepare = |lab: &Lab, at| {
        lab.put(&format!("/old-{at}"), b"other");
        lab.put(&format!("/new-{at}"), b"content");
        words(&["mv", "--exchange", &format!("/old-{at}")], format!("/new-{at}"))
    };
    let check = |lab: &Lab, at| {
        assert_eq!(lab.run(["cat", &format!("/old-{at}")]), b"content");
        assert_eq!(lab.run(["cat", &format!("/new-{at}")]), b"other");
    };
    kill_at_each_answer(&mut lab, 0, b"", prepare, check);
    let prepare = |lab: &Lab, at| {
        lab.put("/file", b"content");
        lab.run(["ln", "/file", &format!("/second-{at}")]);
        words(&["rm"], "/file".into())
    };
    // The command must have removed only one of the two names of the file.
    let check = |lab: &Lab, at| {
        assert!(!exists(lab, "/file"));
        assert_eq!(links(lab, &format!("/second-{at}")), 1);
    };
    kill_at_each_answer(&mut lab, 0, b"", prepare, check);
    kill_at_each_answer(&mut lab, 1, b"", |_, _| words(&["rm"], "/nowhere".into()), |_, _| {});
    lab.fsck();
}

#[test]
fn storing_files_reports_the_true_outcome_after_a_lost_answer() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start_with(home.path(), 2, &["--lease-secs", "2"]);
    let content = bytes(1, 3_000_000);
    let check = |lab: &Lab, at| {
        assert!(lab.run(["cat", &format!("/file-{at}")]) == content);
        assert!(lab.json(["find", "/", "-name", ".weir-cp-*", "--json"]).is_empty());
    };
    kill_at_each_answer(&mut lab, 0, &content, |_, at| words(&["put"], format!("/file-{at}")), check);
    // The copy must have the times of its source file, even if the client sent a request twice.
    let local = home.path().join("local");
    std::fs::write(&local, &content).unwrap();
    let old = Timespec { tv_sec: 1_000_000_000, tv_nsec: 7 };
    let times = Timestamps { last_access: old, last_modification: old };
    rustix::fs::utimensat(CWD, &local, &times, AtFlags::empty()).unwrap();
    let local = local.to_str().unwrap().to_owned();
    let check = |lab: &Lab, at| {
        let shown = lab.run(["stat", &format!("/copy-{at}")]);
        assert!(String::from_utf8(shown).unwrap().contains("modified 2001-09-09"), "{at}");
        assert!(lab.run(["cat", &format!("/copy-{at}")]) == content);
    };
    kill_at_each_answer(&mut lab, 0, b"", |_, at| words(&["cp", "--quiet", &local], format!("weir:/copy-{at}")), check);
    lab.fsck();
}
