//! Parser and printer of text traces: a header line, then one operation per line; docs/FORMATS.md describes the format.

use crate::{Action, CLIENTS_MAX, END_MAX, FILES_MAX, LEN_MAX, Op, Trace};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The first line of every trace.
pub const HEADER: &str = "weir-trace 1";
/// Longest line of a text trace in bytes.
const LINE_MAX: usize = 256;

/// The reason why a text is not a valid trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ParseError {
    /// The number of the invalid line, counted from 1.
    pub line: usize,
    /// The reason why the line is invalid.
    pub why: String,
}

/// Parses a trace. The result takes at most a small multiple of the size of `text`.
///
/// # Errors
/// Describes the first invalid line.
pub fn parse(text: &[u8]) -> Result<Trace, ParseError> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut lines = text.split(|byte| *byte == b'\n').enumerate();
    let header = lines.next().map_or(&b""[..], |(_, line)| line);
    if header.trim_ascii_end() != HEADER.as_bytes() {
        return Err(ParseError { line: 1, why: format!("a trace begins with the line \"{HEADER}\"") });
    }
    let mut reader = Reader::default();
    for (at, line) in lines {
        reader.line(line).map_err(|why| ParseError { line: at + 1, why })?;
    }
    Ok(reader.trace)
}

/// Returns the text of a trace. [`parse`] returns the same trace for this text.
pub fn print(trace: &Trace) -> String {
    let mut out = format!("{HEADER}\n");
    for (client, ops) in trace.clients.iter().enumerate() {
        let _ = writeln!(out, "client {client}");
        for op in ops {
            let _ = match op.action.has_range() {
                true => writeln!(out, "{} {} {} {}", op.action.word(), op.file, op.offset, op.len),
                false => writeln!(out, "{} {}", op.action.word(), op.file),
            };
        }
    }
    out
}

/// The state of the parser: the trace of the parsed lines, and the files in use.
#[derive(Default)]
struct Reader {
    trace: Trace,
    /// The client that executes the operations on the next lines.
    client: usize,
    /// The open files, as pairs of client number and file number.
    open: HashSet<(usize, u32)>,
    /// For each file: its first client, whether another client uses the file too, and whether an operation removes it.
    users: HashMap<u32, User>,
}

struct User {
    client: usize,
    shared: bool,
    removed: bool,
}

impl Reader {
    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        if line.len() > LINE_MAX {
            return Err(format!("it is longer than {LINE_MAX} bytes"));
        }
        let line = str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [] => Ok(()),
            ["client", number] => self.client(number),
            [word, ref rest @ ..] => {
                let action = Action::ALL.into_iter().find(|action| action.word() == word);
                let action = action.ok_or_else(|| format!("unknown operation {word:?}"))?;
                self.operation(action, rest)
            }
        }
    }

    fn client(&mut self, number: &str) -> Result<(), String> {
        let number = within(number, "client", CLIENTS_MAX as u64)?;
        self.client = number as usize;
        self.reach();
        Ok(())
    }

    /// Returns the operations of the current client. If the trace does not contain this client yet, first adds clients
    /// up to its number.
    fn reach(&mut self) -> &mut Vec<Op> {
        if self.trace.clients.len() <= self.client {
            self.trace.clients.resize_with(self.client + 1, Vec::new);
        }
        &mut self.trace.clients[self.client]
    }

    fn operation(&mut self, action: Action, words: &[&str]) -> Result<(), String> {
        let op = match (action.has_range(), words) {
            (false, [file]) => Op::of(action, file_of(file)?),
            (true, [file, offset, len]) => {
                let len = within(len, "length", u64::from(LEN_MAX) + 1)? as u32;
                let offset = within(offset, "offset", END_MAX + 1 - u64::from(len))?;
                Op { action, file: file_of(file)?, offset, len }
            }
            (false, _) => return Err(format!("{} needs a file and nothing else", action.word())),
            (true, _) => return Err(format!("{} needs a file, an offset and a length", action.word())),
        };
        self.allow(&op)?;
        self.reach().push(op);
        Ok(())
    }

    /// Checks that the format allows this operation after the preceding operations.
    fn allow(&mut self, op: &Op) -> Result<(), String> {
        let who = (self.client, op.file);
        let user = self.users.entry(op.file).or_insert(User { client: self.client, shared: false, removed: false });
        user.shared |= user.client != self.client;
        user.removed |= op.action == Action::Remove;
        if user.shared && user.removed {
            return Err(format!("the trace removes file {}, so only one client may use it", op.file));
        }
        let open = match op.action {
            Action::Open => !self.open.insert(who),
            Action::Close => self.open.remove(&who),
            _ => self.open.contains(&who),
        };
        match (op.action, open) {
            (Action::Open | Action::Remove, true) => Err(format!("file {} is open", op.file)),
            (Action::Open | Action::Remove, false) | (_, true) => Ok(()),
            (_, false) => Err(format!("file {} is not open", op.file)),
        }
    }
}

fn file_of(word: &str) -> Result<u32, String> {
    within(word, "file", u64::from(FILES_MAX)).map(|number| number as u32)
}

/// Parses a number below `end` that consists only of decimal digits.
fn within(word: &str, what: &str, end: u64) -> Result<u64, String> {
    let number = word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse::<u64>().ok()).flatten();
    match number {
        Some(number) if number < end => Ok(number),
        Some(number) => Err(format!("{what} {number}: at most {}", end - 1)),
        None => Err(format!("{what} {word:?} is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> (usize, String) {
        let bad = parse(text.as_bytes()).unwrap_err();
        (bad.line, bad.why)
    }

    #[test]
    fn a_printed_trace_parses_to_the_same_trace() {
        let text = "weir-trace 1\n# two clients\nopen 0\nwrite 0 10 4096 # a comment\n\nfsync 0\nclient 2\nopen 0\n\
                    read 0 0 5\nclose 0\nclient 0\nclose 0\n";
        let trace = parse(text.as_bytes()).unwrap();
        assert_eq!(trace.clients.iter().map(Vec::len).collect::<Vec<_>>(), [4, 0, 3]);
        assert_eq!(trace.clients[0][1], Op::write(0, 10, 4096));
        assert_eq!((trace.len(), trace.bytes(Action::Write), trace.bytes(Action::Read)), (7, 4096, 5));
        assert_eq!(parse(print(&trace).as_bytes()).unwrap(), trace);
        assert!(parse(b"weir-trace 1").unwrap().is_empty());
    }

    #[test]
    fn parse_reports_the_first_invalid_line() {
        assert_eq!(why("").0, 1);
        assert_eq!(why("weir-trace 2\n").0, 1);
        for (line, part) in [
            ("jump 0", "unknown operation"),
            ("open", "a file and nothing else"),
            ("open 1 2 3", "a file and nothing else"),
            ("open -1", "is not a number"),
            ("open +1", "is not a number"),
            ("open 16777216", "at most 16777215"),
            ("open 99999999999999999999999", "is not a number"),
            ("client 1024", "at most 1023"),
            ("write 0 0", "an offset and a length"),
            ("write 0 0 67108865", "at most 67108864"),
            ("write 0 9223372036854775807 1", "at most 9223372036854775806"),
            ("write 1 0 1", "file 1 is not open"),
            ("open 0", "file 0 is open"),
            ("remove 0", "file 0 is open"),
            ("\u{fc}", "unknown operation"),
        ] {
            let (at, why) = why(&format!("weir-trace 1\nopen 0\n{line}\n"));
            assert!(at == 3 && why.contains(part), "{line}: {at}: {why}");
        }
        let far = format!("weir-trace 1\nopen 0\n{}", "x".repeat(LINE_MAX + 1));
        assert!(why(&far).1.contains("longer"));
        assert!(parse(b"weir-trace 1\nopen 0\nwrite 0 9223372036854775806 1\n").is_ok());
        let shared = "weir-trace 1\nopen 0\nclose 0\nclient 1\nopen 0\nclose 0\nremove 0\n";
        assert!(why(shared).1.contains("only one client may use it"));
    }
}
