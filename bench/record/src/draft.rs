//! Writer of benchmark records: a benchmark supplies the numbers, and the writer keeps the texts of the previous
//! record.

use crate::check::NAME_MAX;
use crate::{Better, Bound, Cell, Column, Failure, Kind, Load, Machine, Record, Row, Target, other_work, read};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest share of the processors that other programs use on a machine with the load `quiet`.
const QUIET: f64 = 0.1;

/// The fields that all records of one benchmark run share. Create this value before the benchmark loads the machine:
/// [`Draft::new`] measures the load that other programs cause.
pub struct Draft {
    bench: String,
    machine: Machine,
    commit: Option<String>,
    load: Load,
    rounds: u32,
    command: String,
    folder: PathBuf,
}

impl Draft {
    /// Measures the load of this machine for a second; `dir` is the directory with the stores of the benchmark.
    pub fn new(bench: &str, rounds: u32, dir: &Path) -> Draft {
        let quoted = |word: String| if word.contains(' ') { format!("\"{word}\"") } else { word };
        let words = std::env::args().skip(1).filter(|word| !word.starts_with("--record")).map(quoted);
        let command = ["cargo", "xtask", "bench", bench].into_iter().map(str::to_owned).chain(words);
        Draft {
            bench: bench.to_owned(),
            machine: Machine::here(dir),
            commit: commit(),
            load: if other_work() < QUIET { Load::Quiet } else { Load::Busy },
            rounds,
            command: command.collect::<Vec<_>>().join(" "),
            folder: crate::results(),
        }
    }

    /// Returns a new record of a part of the benchmark, without numbers. Copies the title, question and method from
    /// the previous record of this part, if there is one.
    ///
    /// # Errors
    /// The previous record cannot be read.
    pub fn part(&self, part: &str, title: &str, unit: &str, better: Better) -> Result<Record, Failure> {
        let path = self.folder.join(format!("{}-{part}.json", self.bench));
        let known = if path.exists() { Some(read(&path)?) } else { None };
        let text = |known: Option<String>| known.unwrap_or_else(|| fitting(title));
        Ok(Record {
            bench: self.bench.clone(),
            part: part.to_owned(),
            title: text(known.as_ref().map(|record| record.title.clone())),
            question: text(known.as_ref().map(|record| record.question.clone())),
            method: text(known.map(|record| record.method)),
            verdict: String::new(),
            command: self.command.clone(),
            machine: self.machine.clone(),
            commit: self.commit.clone(),
            date: today(),
            rounds: self.rounds,
            load: self.load,
            unit: unit.to_owned(),
            better,
            columns: Vec::new(),
            rows: Vec::new(),
            targets: Vec::new(),
        })
    }

    /// Writes a record to its file. Replaces an empty verdict by a sentence that says how many targets are met.
    ///
    /// # Errors
    /// The record is not valid, or its file cannot be written.
    pub fn write(&self, mut record: Record) -> Result<(), Failure> {
        if record.verdict.is_empty() {
            record.verdict = verdict(&record.targets);
        }
        record.check().map_err(|error| format!("the record {}: {error}", record.name()))?;
        fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(format!("{}.json", record.name()));
        fs::write(&path, record.to_json()?).map_err(|error| format!("{}: {error}", path.display()))?;
        eprintln!("recorded {}; `cargo xtask bench --page` shows it", record.name());
        Ok(())
    }
}

impl Record {
    /// Adds a column to the record.
    pub fn column(&mut self, name: impl AsRef<str>, kind: Kind) {
        self.columns.push(Column { name: fitting(name.as_ref()), kind });
    }

    /// Adds a row to the record; `cells` has a cell for each column.
    pub fn row(&mut self, name: impl AsRef<str>, cells: Vec<Option<Cell>>) {
        self.rows.push(Row { name: fitting(name.as_ref()), cells });
    }

    /// Adds a target to the record. The target is met if the median of `found` meets the bound. If `found` is `None`,
    /// adds nothing.
    pub fn target(&mut self, what: impl AsRef<str>, bound: Bound, found: Option<Cell>) {
        let Some(found) = found else { return };
        let met = match bound {
            Bound::AtLeast(bound) => found.median >= bound,
            Bound::AtMost(bound) => found.median <= bound,
        };
        self.targets.push(Target { what: fitting(what.as_ref()), bound, found, met });
    }
}

/// Returns `name` with spaces for the characters that a record may not contain, truncated to [`NAME_MAX`] bytes. So an
/// invalid name does not make a benchmark run fail.
fn fitting(name: &str) -> String {
    let plain = |c: char| if c == '|' || c.is_control() { ' ' } else { c };
    let mut name: String = name.chars().map(plain).collect();
    name.truncate(name.floor_char_boundary(NAME_MAX));
    name
}

/// Returns a verdict that says how many of the targets are met.
fn verdict(targets: &[Target]) -> String {
    let missed: Vec<&str> = targets.iter().filter(|target| !target.met).map(|target| &target.what[..]).collect();
    match (targets.len(), missed.len()) {
        (0, _) => "This part has no target.".to_owned(),
        (1, 0) => "The target is met.".to_owned(),
        (all, 0) => format!("All {all} targets are met."),
        (all, few @ 1..=4) => format!("{} of {all} targets are met. Missed: {}.", all - few, missed.join("; ")),
        (all, many) => format!("{} of {all} targets are met.", all - many),
    }
}

/// Returns the commit of the source tree; `None` if git reports no commit.
fn commit() -> Option<String> {
    let output =
        Command::new("git").args(["rev-parse", "--short=7", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let id = String::from_utf8(output.ok()?.stdout).ok()?.trim().to_owned();
    (!id.is_empty()).then_some(id)
}

/// Returns the current date in UTC.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / 86400)
}

/// Returns the Gregorian date of a day, given in days since 1970-01-01. The computation uses years that begin in March,
/// so that a leap day is the last day of its year.
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + next)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn draft(folder: &Path) -> Draft {
        Draft {
            bench: "creates".to_owned(),
            machine: Machine::here(Path::new("/")),
            commit: Some("0123abc".to_owned()),
            load: Load::Quiet,
            rounds: 3,
            command: "cargo xtask bench creates".to_owned(),
            folder: folder.to_owned(),
        }
    }

    /// Returns a record with one row and one target.
    pub fn example() -> Record {
        let mut record = draft(Path::new("/absent")).part("rates", "Creates", "creates/s", Better::Higher).unwrap();
        record.machine.cpu = "a model".to_owned();
        record.date = "2026-11-24".to_owned();
        record.verdict = "Met.".to_owned();
        record.column("fdatasync", Kind::Floor);
        record.column("log", Kind::Result);
        record.row("1 in flight", vec![Cell::of(&[2.0]), Cell::of(&[1.0, 3.0, 2.0])]);
        record.target("log over floor", Bound::AtLeast(0.5), Cell::of(&[1.0, 0.5, 1.5]));
        record
    }

    #[test]
    fn a_new_record_keeps_the_text_of_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let draft = draft(dir.path());
        let mut first = example();
        (first.question, first.title) = ("How fast?".to_owned(), "Rates".to_owned());
        first.verdict.clear();
        draft.write(first.clone()).unwrap();
        let second = draft.part("rates", "Creates", "creates/s", Better::Higher).unwrap();
        assert_eq!((&second.question, &second.title), (&first.question, &first.title));
        assert!(second.rows.is_empty());
        assert!(draft.write(second).unwrap_err().to_string().contains("neither rows nor targets"));
        assert_eq!(read(&dir.path().join("creates-rates.json")).unwrap().verdict, "The target is met.");
    }

    #[test]
    fn the_median_decides_and_missed_targets_are_named() {
        let mut record = example();
        record.target("cost", Bound::AtMost(1.0), Cell::of(&[2.0, 0.5, 3.0]));
        record.target("nothing", Bound::AtMost(1.0), Cell::of(&[]));
        assert_eq!(verdict(&record.targets), "1 of 2 targets are met. Missed: cost.");
        assert_eq!(record.targets[1].found, Cell { median: 2.0, min: Some(0.5), max: Some(3.0), p99: None });
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!(Cell::of(&[1234.56]).map(|cell| cell.median), Some(1235.0));
        assert_eq!(
            Cell::of(&[0.00123456, 0.00123456]),
            Some(Cell { median: 0.001235, min: None, max: None, p99: None })
        );
        assert_eq!(Cell::of(&[1.0, 2.0]).map(|cell| cell.median), Some(1.5));
        assert_eq!([&[][..], &[f64::NAN], &[-1.0, 1.0]].map(Cell::of), [None; 3]);
        assert_eq!((fitting("a|b"), fitting(&"é".repeat(100)).len()), ("a b".to_owned(), NAME_MAX));
    }

    #[test]
    fn days_are_dates() {
        assert_eq!([0, 59, 11_016, 20_781].map(date), ["1970-01-01", "1970-03-01", "2000-02-29", "2026-11-24"]);
    }
}
