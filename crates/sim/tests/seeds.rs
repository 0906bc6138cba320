//! Runs of some seeds, each seed twice: all checks must pass, and both runs must have the same events.

use std::process::Command;

#[test]
fn seeds_pass_and_two_runs_are_identical() {
    let seeds = if std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full") { "1..3001" } else { "1..41" };
    let run = Command::new(env!("CARGO_BIN_EXE_sim")).args(["--seeds", seeds, "--twice"]).output().unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{told}\n{}", String::from_utf8_lossy(&run.stdout));
}
