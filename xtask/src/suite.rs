//! `cargo xtask test`: every check of the project, with the time each takes and the sum of all tests at the end.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

const STEPS: [(&str, &[&str]); 4] = [
    ("formatting", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ("tests", &["test", "--workspace", "--no-fail-fast"]),
    ("simulator", &["run", "--quiet", "--package", "sim", "--", "--seeds", "1..1001"]),
];

/// Programs that tests start, with their packages: guests with stock kernels.
const NEEDS: &str = "qemu-system-x86_64 qemu-system-x86\ncpio cpio\n";

/// Runs every step even if one fails, so that one run shows everything there is to mend.
pub fn run(root: &Path) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    crate::apt::ensure(NEEDS)?;
    let mut sum = Summary::default();
    let mut failed = Vec::new();
    for (name, args) in STEPS {
        let step = Instant::now();
        println!("==> {name}: cargo {}", args.join(" "));
        let passed = step_passes(root, args, &mut sum)?;
        let verdict = if passed { "passed" } else { "FAILED" };
        println!("==> {name} {verdict} after {:.1} s", step.elapsed().as_secs_f64());
        if !passed {
            failed.push(name);
        }
    }
    println!("==> all steps took {:.1} s", start.elapsed().as_secs_f64());
    if !failed.is_empty() {
        println!("==> FAILED: {}", failed.join(", "));
    }
    println!("{} passed, {} failed", sum.passed, sum.failed);
    match (&failed[..], sum.failed) {
        ([], 0) if sum.passed > 0 => Ok(()),
        ([], 0) => Err("no test was run".into()),
        _ => Err("not everything passed".into()),
    }
}

/// Runs one cargo command, passes its output on and counts the test results in it.
fn step_passes(root: &Path, args: &[&str], sum: &mut Summary) -> Result<bool, Box<dyn Error>> {
    let mut command = crate::cargo();
    command.current_dir(root).args(args).env("WEIR_COMMIT", crate::sim::commit(root)).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("cannot start cargo: {e}"))?;
    let mut output = BufReader::new(child.stdout.take().ok_or("cargo has no output")?);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        std::io::stdout().write_all(&line)?;
        sum.count(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(child.wait()?.success())
}

/// Tests over all test programs.
#[derive(Default, PartialEq, Debug)]
struct Summary {
    passed: u64,
    failed: u64,
}

impl Summary {
    /// Adds the result of a test program, if `line` tells one: `test result: ok. 4 passed; 0 failed; ...`.
    fn count(&mut self, line: &str) {
        let Some(result) = line.trim().strip_prefix("test result: ") else { return };
        let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
        for item in counts.split("; ") {
            match item.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn results_are_summed() {
        let mut sum = Summary::default();
        for line in [
            "running 4 tests",
            "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s",
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n",
            "a test said: 7 passed; 7 failed",
        ] {
            sum.count(line);
        }
        assert_eq!(sum, Summary { passed: 16, failed: 3 });
    }
}
