//! Deliberate bugs: for each bug, some seeds must fail, and the same seeds must pass without the bug.

use std::process::Command;

/// The range of seeds to run. At least one of them must fail for each bug.
const SEEDS: &str = "1..31";

/// Runs the seeds with the bug (`--plant`) or without the bug (`--focus`). Returns the seeds that failed.
fn failed(option: &str, mistake: &str) -> Vec<u64> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sim"));
    let run = command.args(["--json", "--seeds", SEEDS, option, mistake]).output().unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let verdicts = summary["failed"].as_array().unwrap();
    let failed: Vec<u64> = verdicts.iter().map(|verdict| verdict["seed"].as_u64().unwrap()).collect();
    assert_eq!(run.status.success(), failed.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
    failed
}

fn is_found(mistake: &str) {
    let found = failed("--plant", mistake);
    assert!(!found.is_empty(), "no seed of {SEEDS} finds {mistake}");
    assert_eq!(failed("--focus", mistake), Vec::<u64>::new(), "the same seeds without {mistake}");
}

#[test]
fn a_reply_cache_that_does_not_find_replies_is_found() {
    is_found("reply-cache");
}

#[test]
fn a_commit_that_ignores_the_verifier_is_found() {
    is_found("commit-verifier");
}

#[test]
fn a_lock_table_that_forgets_is_found() {
    is_found("lock-table");
}

#[test]
fn a_swap_before_the_new_objects_are_durable_is_found() {
    is_found("early-swap");
}

#[test]
fn a_move_that_keeps_the_stream_is_found() {
    is_found("same-stream");
}
