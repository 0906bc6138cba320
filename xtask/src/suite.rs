//! `cargo xtask test`: runs every check of the project (rustfmt, clippy, rustdoc, tests, simulator), then lists the
//! slowest test programs and checks, and the number of all tests.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Instant;

const STEPS: [(&str, &[&str]); 5] = [
    ("formatting", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ("documentation", &["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]),
    ("tests", &["test", "--workspace", "--no-fail-fast"]),
    ("simulator", &["run", "--quiet", "--package", "sim", "--", "--seeds", "1..1001"]),
];

/// Number of slowest test programs and checks that the command lists.
const SLOWEST: usize = 10;

/// Programs that tests need to run guests with stock kernels, with the Debian packages that contain these programs.
const NEEDS: &str = "qemu-system-x86_64 qemu-system-x86\ncpio cpio\n";

/// Runs all cargo commands of [`STEPS`], even after one has failed, so that one run shows all failures.
pub fn run(root: &Path) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    crate::apt::ensure(NEEDS)?;
    let mut sum = Summary::default();
    let mut failed = Vec::new();
    for (name, args) in STEPS {
        let step = Instant::now();
        println!("==> {name}: cargo {}", args.join(" "));
        let passed = step_passes(root, args, &mut sum)?;
        let (verdict, secs) = (if passed { "passed" } else { "FAILED" }, step.elapsed().as_secs_f64());
        println!("==> {name} {verdict} after {secs:.1} s");
        sum.end_step(name, secs);
        if !passed {
            failed.push(name);
        }
    }
    println!("==> all steps took {:.1} s; the slowest parts:", start.elapsed().as_secs_f64());
    for (name, secs) in sum.slowest() {
        println!("{secs:8.1} s  {name}");
    }
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

/// Runs one cargo command, prints its output and counts the test results in the output. Standard output and standard
/// error share a pipe, so that their lines stay in order: cargo prints the name of a test program to standard error,
/// and the test program prints its result to standard output.
fn step_passes(root: &Path, args: &[&str], sum: &mut Summary) -> Result<bool, Box<dyn Error>> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = {
        let mut command = crate::cargo();
        command.current_dir(root).args(args).env("WEIR_COMMIT", crate::sim::commit(root));
        command.env("RUSTDOCFLAGS", "-D warnings").stdout(writer.try_clone()?).stderr(writer);
        command.spawn().map_err(|e| format!("cannot start cargo: {e}"))?
    };
    let mut output = BufReader::new(reader);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        std::io::stdout().write_all(&line)?;
        sum.count(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(child.wait()?.success())
}

/// The number of tests in all test programs, and the time of each test program and each other check.
#[derive(Default, PartialEq, Debug)]
struct Summary {
    passed: u64,
    failed: u64,
    /// The name of the test program that is running.
    program: String,
    /// The names and durations in seconds of all test programs, and of all cargo commands that ran no test program.
    parts: Vec<(String, f64)>,
    /// Length of `parts` before the current cargo command.
    before: usize,
}

impl Summary {
    /// Records the end of the cargo command `name`. If the command ran no test program, adds the command itself to
    /// `parts`.
    fn end_step(&mut self, name: &str, secs: f64) {
        if self.parts.len() == self.before {
            self.parts.push((name.to_owned(), secs));
        }
        self.before = self.parts.len();
    }

    /// Returns the slowest entries of `parts` in descending order of their durations.
    fn slowest(&self) -> Vec<(String, f64)> {
        let mut parts = self.parts.clone();
        parts.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        parts.truncate(SLOWEST);
        parts
    }

    /// Parses a line of output. Records which test program runs (`Running tests/a.rs (target/debug/deps/a-0123)`,
    /// `Doc-tests a`), and the result of the test program
    /// (`test result: ok. 4 passed; 0 failed; ...; finished in 0.05s`).
    fn count(&mut self, line: &str) {
        let line = line.trim();
        if let Some(program) = line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests ")) {
            let file = program.rsplit('/').next().unwrap_or(program).trim_end_matches(')');
            let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
            self.program = format!("{name}: {}", program.split(" (").next().unwrap_or(program));
        }
        let Some(result) = line.strip_prefix("test result: ") else { return };
        if let Some(secs) =
            result.rsplit_once("finished in ").and_then(|(_, secs)| secs.strip_suffix('s')?.parse().ok())
        {
            self.parts.push((self.program.clone(), secs));
        }
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
            "     Running unittests src/lib.rs (target/debug/deps/xdr-0123456789abcdef)",
            "running 4 tests",
            "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s",
            "   Doc-tests xdr",
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n",
            "a test said: 7 passed; 7 failed",
        ] {
            sum.count(line);
        }
        assert_eq!((sum.passed, sum.failed), (16, 3));
        sum.end_step("tests", 9.0);
        sum.end_step("clippy", 0.07);
        let parts = [("xdr: xdr", 0.1), ("clippy", 0.07), ("xdr: unittests src/lib.rs", 0.05)];
        assert_eq!(sum.slowest(), parts.map(|(name, secs)| (name.to_owned(), secs)));
    }
}
