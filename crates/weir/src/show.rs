//! Output formats of names, sizes, times and modes, as text and as JSON.

use serde::{Serialize, Serializer};
use std::fmt::Write as _;
use types::{Attrs, FileKind, Timestamp};

/// Formats a path for a terminal. If the path has control characters or invalid UTF-8, quotes it with C escapes, so
/// that no name can break a line or control the terminal.
pub fn path(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
        _ => {
            let mut out = String::from("\"");
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '"' | '\\' => out.extend(['\\', c]),
                        c if c.is_control() => out.extend(c.escape_default()),
                        c => out.push(c),
                    }
                }
                for b in chunk.invalid() {
                    let _ = write!(out, "\\x{b:02x}");
                }
            }
            out.push('"');
            out
        }
    }
}

/// The name of a file in JSON. Bytes that are not UTF-8 are replaced in the text, and then the exact bytes follow in
/// hexadecimal.
#[derive(Serialize)]
pub struct JsonName {
    /// The name as text, with a replacement character for each invalid byte.
    pub name: String,
    /// The exact bytes of the name in hexadecimal; `None` if `name` represents all bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
}

impl From<&[u8]> for JsonName {
    fn from(bytes: &[u8]) -> Self {
        let exact = std::str::from_utf8(bytes).is_ok();
        JsonName { name: String::from_utf8_lossy(bytes).into_owned(), name_hex: (!exact).then(|| hex(bytes)) }
    }
}

/// The path of a file in JSON, in the same form as [`JsonName`].
#[derive(Serialize)]
pub struct JsonPath {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

impl From<&[u8]> for JsonPath {
    fn from(bytes: &[u8]) -> Self {
        let JsonName { name: path, name_hex: path_hex } = bytes.into();
        JsonPath { path, path_hex }
    }
}

/// Joins path components into an absolute path.
pub fn absolute(components: &[Vec<u8>]) -> Vec<u8> {
    let mut path = vec![b'/'];
    path.extend(components.join(&b'/'));
    path
}

/// Formats bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// Formats a number of bytes with a unit: `812 B`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

/// Formats the file type and the permission bits as `ls -l` does.
pub fn mode(kind: FileKind, mode: u32) -> String {
    let mut out = String::from(letter(kind));
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift & 7;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (bits & 1 != 0, mode & special != 0) {
            (true, false) => 'x',
            (false, false) => '-',
            (true, true) => set,
            (false, true) => unset,
        });
    }
    out
}

/// Returns the letter of a file type in `ls -l` and `find -type`; `-` for a regular file.
pub fn letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Block => 'b',
        FileKind::Char => 'c',
        FileKind::Symlink => 'l',
        FileKind::Socket => 's',
        FileKind::Fifo => 'p',
    }
}

/// Returns the word for a file type in JSON and in the output of `weir stat`.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Block => "block device",
        FileKind::Char => "character device",
        FileKind::Symlink => "symlink",
        FileKind::Socket => "socket",
        FileKind::Fifo => "fifo",
    }
}

/// Formats a time in UTC with whole seconds: `2026-03-01 07:05:09`.
pub fn time(t: Timestamp) -> String {
    let (days, second) = (t.secs.div_euclid(86_400), t.secs.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Formats a time in UTC in RFC 3339 form with nanoseconds: `2026-03-01T07:05:09.000000000Z`.
pub fn time_exact(t: Timestamp) -> String {
    let text = time(t).replacen(' ', "T", 1);
    format!("{text}.{:09}Z", t.nanos)
}

/// Returns year, month and day in the proleptic Gregorian calendar. `days` counts from 1970-01-01.
///
/// The computation begins each year in March, so that the leap day is the last day of its year. 400 years have 146,097
/// days.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days.saturating_add(719_468);
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The attributes of a file in JSON.
#[derive(Serialize)]
pub struct JsonAttrs {
    kind: &'static str,
    inode: u64,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    used: u64,
    #[serde(serialize_with = "exact")]
    atime: Timestamp,
    #[serde(serialize_with = "exact")]
    mtime: Timestamp,
    #[serde(serialize_with = "exact")]
    ctime: Timestamp,
    #[serde(serialize_with = "exact")]
    btime: Timestamp,
    change: u64,
}

fn exact<S: Serializer>(t: &Timestamp, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&time_exact(*t))
}

impl From<&Attrs> for JsonAttrs {
    fn from(a: &Attrs) -> Self {
        JsonAttrs {
            kind: kind(a.kind),
            inode: a.id.0,
            mode: format!("{:04o}", a.mode),
            links: a.nlink,
            uid: a.uid,
            gid: a.gid,
            size: a.size,
            used: a.used,
            atime: a.atime,
            mtime: a.mtime,
            ctime: a.ctime,
            btime: a.btime,
            change: a.change,
        }
    }
}

/// Prints a value as one line of JSON on standard output.
pub fn json(value: &impl Serialize) -> Result<(), crate::failure::Failure> {
    let text = serde_json::to_string(value).map_err(crate::failure::Failure::new)?;
    line(&text)
}

/// Prints a line on standard output.
pub fn line(text: &str) -> Result<(), crate::failure::Failure> {
    raw(text.as_bytes())?;
    raw(b"\n")
}

/// Writes bytes to standard output.
///
/// If the reader has closed the pipe (`weir ls -R | head`), ends the process with the exit code of SIGPIPE.
pub fn raw(bytes: &[u8]) -> Result<(), crate::failure::Failure> {
    use std::io::Write;
    match std::io::stdout().lock().write_all(bytes) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(141),
        other => other.map_err(|e| crate::failure::Failure::from(e).about("standard output")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_line() {
        assert_eq!(path("/a b/ü".as_bytes()), "/a b/ü");
        assert_eq!(path(b"/a\nb\xff\"\x1b"), r#""/a\nb\xff\"\u{1b}""#);
        assert_eq!(path(b""), "\"\"");
        let name = JsonName::from(&b"\xff"[..]);
        assert_eq!((name.name.as_str(), name.name_hex.as_deref()), ("\u{fffd}", Some("ff")));
    }

    #[test]
    fn modes_are_printed_as_by_ls() {
        assert_eq!(mode(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(mode(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(FileKind::Regular, 0o6711), "-rws--s--x");
        assert_eq!(mode(FileKind::Regular, 0o7600), "-rwS--S--T");
    }

    #[test]
    fn times_are_utc() {
        for (secs, want) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_164_799, "2024-02-28 23:59:59"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(time(Timestamp { secs, nanos: 5 }), want);
        }
        assert_eq!(time_exact(Timestamp { secs: 1, nanos: 20 }), "1970-01-01T00:00:01.000000020Z");
        assert!(!time(Timestamp { secs: i64::MAX, nanos: 0 }).is_empty());
        assert!(!time(Timestamp { secs: i64::MIN, nanos: 0 }).is_empty());
    }
}
