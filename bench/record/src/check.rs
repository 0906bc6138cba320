//! Reader of benchmark records, which checks that every record file is bounded, complete and free of unknown keys.

use crate::{Bound, Cell, Failure, Kind, Record};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest length of a record file in bytes.
const FILE_MAX: u64 = 64 << 10;
/// Largest number of records in a directory.
const RECORDS_MAX: usize = 200;
/// Largest number of rows of a record, and of targets of a record.
const ROWS_MAX: usize = 64;
/// Largest number of columns of a record.
const COLUMNS_MAX: usize = 16;
/// Largest length of a name in a record, in bytes.
pub(crate) const NAME_MAX: usize = 120;
/// Largest length of a question, a method, a verdict or a command in bytes.
const TEXT_MAX: usize = 700;

/// Reads and checks the record in a file.
///
/// # Errors
/// The file cannot be read, or the record in the file is not valid; the error names the file.
pub fn read(path: &Path) -> Result<Record, Failure> {
    let fail = |error: String| Failure::from(format!("{}: {error}", path.display()));
    let mut text = String::new();
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
    if text.len() as u64 > FILE_MAX {
        return Err(fail(format!("longer than {FILE_MAX} bytes")));
    }
    let record: Record = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
    record.check().map_err(fail)?;
    if path.file_stem().and_then(|stem| stem.to_str()) != Some(&record.name()) {
        return Err(fail(format!("is to be called {}.json", record.name())));
    }
    Ok(record)
}

/// Reads all records of a directory, sorted by benchmark and part.
///
/// # Errors
/// The directory cannot be read, the directory has too many records, or a record is not valid.
pub fn read_all(folder: &Path) -> Result<Vec<Record>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    if paths.len() > RECORDS_MAX {
        return Err(format!("{}: more than {RECORDS_MAX} records", folder.display()).into());
    }
    let mut records = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    records.sort_by_cached_key(|record| (record.bench.clone(), order(&record.part)));
    Ok(records)
}

/// Returns the sort key of a part: numbers in names sort by value, so `e2` comes before `e10`.
fn order(part: &str) -> Vec<(String, u32)> {
    let split = |word: &str| {
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        (letters.to_owned(), word[letters.len()..].parse().unwrap_or(0))
    };
    part.split('-').map(split).collect()
}

impl Record {
    /// Checks the rules of the record format that the Rust types do not enforce.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_texts()?;
        self.check_table()?;
        for target in &self.targets {
            name("a target", &target.what)?;
            target.found.check().map_err(|error| format!("target {:?}: {error}", target.what))?;
            let (Bound::AtLeast(bound) | Bound::AtMost(bound)) = target.bound;
            if !bound.is_finite() {
                return Err(format!("target {:?}: the bound is not finite", target.what));
            }
        }
        Ok(())
    }

    fn check_texts(&self) -> Result<(), String> {
        for (what, value) in [("bench", &self.bench), ("part", &self.part)] {
            let plain = value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            if value.is_empty() || value.len() > 40 || !plain {
                return Err(format!("{what} {value:?}: 1 to 40 of a-z, 0-9 and -"));
            }
        }
        for (what, value) in [
            ("title", &self.title),
            ("unit", &self.unit),
            ("machine.cpu", &self.machine.cpu),
            ("machine.memory", &self.machine.memory),
            ("machine.kernel", &self.machine.kernel),
            ("machine.disk", &self.machine.disk),
        ] {
            name(what, value)?;
        }
        for (what, value) in [
            ("question", &self.question),
            ("method", &self.method),
            ("verdict", &self.verdict),
            ("command", &self.command),
        ] {
            text(what, value, TEXT_MAX)?;
        }
        if self.rounds == 0 || self.machine.cpus == Some(0) {
            return Err("rounds and machine.cpus are to be at least 1".to_owned());
        }
        if !is_date(&self.date) {
            return Err(format!("date {:?}: not a day such as 2026-11-24", self.date));
        }
        let is_commit = |id: &String| (7..=40).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        match &self.commit {
            Some(id) if !is_commit(id) => Err(format!("commit {id:?}: not 7 to 40 hexadecimal digits")),
            _ => Ok(()),
        }
    }

    fn check_table(&self) -> Result<(), String> {
        if self.rows.is_empty() && self.targets.is_empty() {
            return Err("neither rows nor targets".to_owned());
        }
        if self.rows.len() > ROWS_MAX || self.targets.len() > ROWS_MAX || self.columns.len() > COLUMNS_MAX {
            return Err(format!("more than {ROWS_MAX} rows or targets, or {COLUMNS_MAX} columns"));
        }
        if self.columns.iter().filter(|column| column.kind == Kind::Floor).count() > 1 {
            return Err("more than one column is the floor".to_owned());
        }
        let mut names = BTreeSet::new();
        for column in &self.columns {
            name("a column", &column.name)?;
            if !names.insert(&column.name) {
                return Err(format!("two columns are called {:?}", column.name));
            }
        }
        for row in &self.rows {
            name("a row", &row.name)?;
            if row.cells.len() != self.columns.len() {
                let (cells, columns) = (row.cells.len(), self.columns.len());
                return Err(format!("row {:?}: {cells} cells for {columns} columns", row.name));
            }
            let cells = row.cells.iter().zip(&self.columns).filter_map(|(cell, column)| Some((cell.as_ref()?, column)));
            for (cell, column) in cells {
                cell.check().map_err(|error| format!("row {:?}, column {:?}: {error}", row.name, column.name))?;
            }
        }
        Ok(())
    }
}

impl Cell {
    fn check(&self) -> Result<(), String> {
        let (low, high) = (self.min.unwrap_or(self.median), self.max.unwrap_or(self.median));
        if [low, self.median, high, self.p99.unwrap_or(0.0)].iter().any(|value| !value.is_finite() || *value < 0.0) {
            return Err("a number is negative or not finite".to_owned());
        }
        if low > self.median || self.median > high {
            return Err(format!("the median {} is not between {low} and {high}", self.median));
        }
        Ok(())
    }
}

fn name(what: &str, value: &str) -> Result<(), String> {
    text(what, value, NAME_MAX)
}

/// Checks that a text fits into a cell of a Markdown table: it is not empty, is bounded, and has no line breaks and no
/// `|`.
fn text(what: &str, value: &str, most: usize) -> Result<(), String> {
    if value.trim().is_empty() || value.len() > most {
        return Err(format!("{what}: 1 to {most} bytes, not {}", value.len()));
    }
    match value.chars().find(|c| c.is_control() || *c == '|') {
        Some(c) => Err(format!("{what}: {c:?} cannot be shown in a table")),
        None => Ok(()),
    }
}

fn is_date(date: &str) -> bool {
    let parts: Vec<&str> = date.split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let number = |text: &str, digits: usize, low: u32, high: u32| {
        let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        plain && text.parse().is_ok_and(|value: u32| (low..=high).contains(&value))
    };
    number(year, 4, 2000, 9999) && number(month, 2, 1, 12) && number(day, 2, 1, 31)
}

#[cfg(test)]
mod tests {
    use crate::draft::tests::example;
    use crate::{Kind, Record, read, read_all};
    use std::fs;

    /// Returns the error that the reader reports for a changed example record.
    fn refused(change: impl FnOnce(&mut Record)) -> String {
        let mut record = example();
        change(&mut record);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("creates-rates.json");
        fs::write(&path, record.to_json().unwrap()).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("creates-rates.json: "), "{error}");
        error
    }

    #[test]
    fn a_record_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("creates-rates.json"), example().to_json().unwrap()).unwrap();
        fs::write(dir.path().join("README.md"), "not a record").unwrap();
        assert_eq!(read_all(dir.path()).unwrap(), [example()]);
        assert!(read_all(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn parts_are_sorted_by_their_numbers() {
        let mut parts = ["e10", "e7-fsync", "e2", "e7", "a"];
        parts.sort_by_key(|part| super::order(part));
        assert_eq!(parts, ["a", "e2", "e7", "e7-fsync", "e10"]);
    }

    #[test]
    fn unknown_and_missing_keys_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("creates-rates.json");
        let json = example().to_json().unwrap();
        for (from, to, says) in [
            ("\"unit\"", "\"units\"", "unknown field `units`"),
            ("\"median\"", "\"mean\"", "unknown field `mean`"),
            ("\"cpus\"", "\"processors\"", "unknown field `processors`"),
            ("  \"rounds\": 3,\n", "", "missing field `rounds`"),
            ("\"quiet\"", "\"calm\"", "unknown variant `calm`"),
        ] {
            fs::write(&path, json.replace(from, to)).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        fs::write(&path, " ".repeat(70_000)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("longer than 65536 bytes"));
    }

    #[test]
    fn impossible_records_are_refused() {
        for (error, says) in [
            (refused(|record| record.part = "other".into()), "is to be called creates-other.json"),
            (refused(|record| record.part = "../x".into()), "part"),
            (refused(|record| record.date = "24.11.2026".into()), "not a day"),
            (refused(|record| record.commit = Some("main".into())), "hexadecimal"),
            (refused(|record| record.verdict.clear()), "verdict"),
            (refused(|record| record.question = "a | b".into()), "cannot be shown"),
            (refused(|record| record.rounds = 0), "at least 1"),
            (refused(|record| record.columns[1].kind = Kind::Floor), "more than one column is the floor"),
            (refused(|record| record.columns[1].name = record.columns[0].name.clone()), "two columns"),
            (refused(|record| record.rows[0].cells.truncate(1)), "1 cells for 2 columns"),
            (refused(|record| record.rows[0].cells[1].as_mut().unwrap().median = 9.0), "not between"),
            (refused(|record| record.rows[0].cells[0].as_mut().unwrap().median = -1.0), "negative"),
            (refused(|record| record.rows = vec![record.rows[0].clone(); 65]), "more than 64 rows"),
            (refused(|record| (record.rows.clear(), record.targets.clear()).0), "neither rows nor targets"),
        ] {
            assert!(error.contains(says), "{says} is not in {error}");
        }
    }
}
