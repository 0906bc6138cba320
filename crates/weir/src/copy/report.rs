//! Report of a copy: counters, the progress bar, the error of each file, and the summary.

use crate::failure::{Exit, Failure};
use crate::show;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of errors in the JSON summary. The report prints and counts all errors.
const ERRORS_KEPT: usize = 1000;

/// Weight of one name in the progress bar, in bytes: making a small file takes about as long as copying this many
/// bytes.
const NAME_WEIGHT: u64 = 64 << 10;
/// Minimum interval between two updates of the text beside the progress bar, in milliseconds.
const TEXT_EVERY: u64 = 200;

/// What a copy prints. The options of the command select the mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputMode {
    /// A progress bar on a terminal, and one summary line at the end.
    Normal,
    /// Only errors, on standard error.
    Quiet,
    /// Errors on standard error, and one JSON object on standard output at the end.
    Json,
}

/// The counters and the output of one copy.
pub struct Report {
    command: &'static str,
    output: OutputMode,
    start: Instant,
    bar: ProgressBar,
    counts: Counts,
    /// Number of names and number of bytes that the copy has found in the source.
    found: (AtomicU64, AtomicU64),
    /// Number of bytes that the copy has processed, including holes.
    passed: AtomicU64,
    /// When the text beside the progress bar was last updated, in milliseconds after the start of the copy.
    texted: AtomicU64,
    errors: Mutex<Vec<JsonError>>,
}

/// Counters of the items and bytes that the copy has completed.
#[derive(Default)]
pub struct Counts {
    /// Regular files whose bytes the copy has written.
    pub files: AtomicU64,
    /// Directories copied.
    pub directories: AtomicU64,
    /// Symbolic links copied.
    pub symlinks: AtomicU64,
    /// Hard links made. Each is a further name of a file that the copy has already made.
    pub hard_links: AtomicU64,
    /// Fifos, sockets and device nodes copied.
    pub special: AtomicU64,
    /// Bytes copied, without holes.
    pub bytes: AtomicU64,
    /// Names that the copy could not make.
    pub failed: AtomicU64,
}

#[derive(Serialize)]
struct JsonError {
    #[serde(flatten)]
    name: show::JsonName,
    error: String,
}

#[derive(Serialize)]
struct Summary<'a> {
    files: u64,
    directories: u64,
    symlinks: u64,
    hard_links: u64,
    special: u64,
    bytes: u64,
    failed: u64,
    seconds: f64,
    interrupted: bool,
    errors: &'a [JsonError],
}

impl Report {
    /// Returns the report of the command `command`.
    pub fn new(command: &'static str, output: OutputMode) -> Self {
        let bar = match output == OutputMode::Normal && std::io::stderr().is_terminal() {
            true => ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8)),
            false => ProgressBar::hidden(),
        };
        let template = "{bar:24} {msg} ETA {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Report {
            command,
            output,
            start: Instant::now(),
            bar,
            counts: Counts::default(),
            found: Default::default(),
            passed: AtomicU64::new(0),
            texted: AtomicU64::new(0),
            errors: Mutex::default(),
        }
    }

    /// Returns the counters of the copy.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Records that the copy has found `names` names that are not directories, with `bytes` bytes in total.
    pub fn found(&self, names: u64, bytes: u64) {
        self.found.0.fetch_add(names, Relaxed);
        self.found.1.fetch_add(bytes, Relaxed);
        self.bar.inc_length(names * NAME_WEIGHT + bytes);
    }

    /// Records that the copy has written `bytes` bytes and skipped a hole of `skipped` bytes.
    pub fn moved(&self, bytes: u64, skipped: u64) {
        self.counts.bytes.fetch_add(bytes, Relaxed);
        self.passed.fetch_add(bytes + skipped, Relaxed);
        self.bar.inc(bytes + skipped);
        self.refresh();
    }

    /// Adds 1 to the counter `which` of completed items.
    pub fn finished(&self, which: &AtomicU64) {
        which.fetch_add(1, Relaxed);
        if !std::ptr::eq(which, &self.counts.directories) {
            self.bar.inc(NAME_WEIGHT);
        }
        self.refresh();
    }

    /// Updates the text beside the progress bar, at most once per [`TEXT_EVERY`].
    fn refresh(&self) {
        let now = self.start.elapsed().as_millis() as u64;
        let last = self.texted.load(Relaxed);
        if self.bar.is_hidden() || (now < last + TEXT_EVERY && last > 0) {
            return;
        }
        self.texted.store(now.max(1), Relaxed);
        let get = |n: &AtomicU64| n.load(Relaxed);
        let counts = &self.counts;
        let names = [&counts.files, &counts.symlinks, &counts.hard_links, &counts.special].map(get).iter().sum::<u64>();
        let rate = get(&counts.bytes) as f64 / (now.max(1) as f64 / 1000.0);
        self.bar.set_message(format!(
            "{names}/{} files, {}/{}, {}/s",
            get(&self.found.0),
            show::size(get(&self.passed)),
            show::size(get(&self.found.1)),
            show::size(rate as u64),
        ));
    }

    /// Prints and counts the failure to copy the file at `path`.
    pub fn fail(&self, path: &[u8], failure: &Failure) {
        self.counts.failed.fetch_add(1, Relaxed);
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let hint = match (errors.len(), &failure.next) {
            (0, Some(next)) => format!("\n      {next}"),
            _ => String::new(),
        };
        self.bar.suspend(|| {
            let name = failure.subject.clone().unwrap_or_else(|| show::path(path));
            eprintln!("weir {}: {name}: {}{hint}", self.command, failure.what);
        });
        if errors.len() < ERRORS_KEPT {
            errors.push(JsonError { name: path.into(), error: failure.what.clone() });
        }
    }

    /// Removes the progress bar, prints the summary, and returns the exit code.
    pub fn end(&self, interrupted: bool) -> Result<Exit, Failure> {
        self.bar.finish_and_clear();
        let get = |n: &AtomicU64| n.load(Relaxed);
        let (counts, seconds) = (&self.counts, self.start.elapsed().as_secs_f64());
        let failed = get(&counts.failed);
        match self.output {
            OutputMode::Quiet => {}
            OutputMode::Json => show::json(&Summary {
                files: get(&counts.files),
                directories: get(&counts.directories),
                symlinks: get(&counts.symlinks),
                hard_links: get(&counts.hard_links),
                special: get(&counts.special),
                bytes: get(&counts.bytes),
                failed,
                seconds,
                interrupted,
                errors: &self.errors.lock().unwrap_or_else(PoisonError::into_inner),
            })?,
            OutputMode::Normal => {
                let rate = get(&counts.bytes) as f64 / seconds.max(0.001);
                let mut text = format!("copied {}", many(get(&counts.files), "file"));
                for (n, what) in [
                    (get(&counts.directories), "directory"),
                    (get(&counts.symlinks), "symlink"),
                    (get(&counts.hard_links), "hard link"),
                    (get(&counts.special), "special file"),
                ] {
                    if n > 0 {
                        text += &format!(", {}", many(n, what));
                    }
                }
                text +=
                    &format!(": {} in {seconds:.1} s, {}/s", show::size(get(&counts.bytes)), show::size(rate as u64));
                show::line(&text)?;
            }
        }
        if interrupted {
            return Err(Failure::interrupted()
                .next("every file under its final name is complete; run the same command to copy the rest"));
        }
        if failed > 0 {
            return Err(Failure::new(format!("cannot copy {} (listed above)", many(failed, "name")))
                .next("everything else was copied; remove the cause, then run the same command again"));
        }
        Ok(Exit::Done)
    }
}

fn many(n: u64, what: &str) -> String {
    match (n, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (n, Some(stem)) => format!("{n} {stem}ies"),
        (n, None) => format!("{n} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_reports_failures() {
        let report = Report::new("cp", OutputMode::Quiet);
        report.finished(&report.counts().files);
        report.moved(10, 5);
        assert_eq!(report.end(false), Ok(Exit::Done));
        report.fail(b"/x", &Failure::new("broken"));
        assert_eq!(report.end(false).unwrap_err().code, Exit::Failed);
        assert_eq!(report.end(true).unwrap_err().code, Exit::Interrupted);
        assert_eq!(report.counts().bytes.load(Relaxed), 10);
    }

    #[test]
    fn many_forms_plurals() {
        assert_eq!(many(1, "directory"), "1 directory");
        assert_eq!(many(2, "directory"), "2 directories");
        assert_eq!(many(0, "file"), "0 files");
    }
}
