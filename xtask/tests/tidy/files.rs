//! Checks of source files: module documentation, lengths of files and functions, and absolute paths that exist on one
//! machine only.

use crate::tree::{Source, files_with, report, rust_files};

/// Maximum number of lines of a file.
const FILE_MAX: usize = 800;
/// Maximum number of lines of a function.
const FUNCTION_MAX: usize = 70;
/// Prefixes of absolute paths that exist on one machine only.
const MACHINE_PATHS: [&str; 3] = ["/work/", "/home/", "/root/"];

#[test]
fn files_say_what_they_are() {
    let silent = |source: &Source| !source.text.starts_with("//! ");
    let files = rust_files().into_iter().filter(silent);
    report(files.map(|s| format!("{}: does not begin with a `//!` sentence", s.path)).collect());
}

#[test]
fn files_are_short() {
    let long = rust_files().into_iter().filter(|s| !s.is_generated() && s.text.lines().count() > FILE_MAX);
    report(long.map(|s| format!("{}: {} lines, at most {FILE_MAX}", s.path, s.text.lines().count())).collect());
}

#[test]
fn functions_are_short() {
    let mut problems = Vec::new();
    for source in rust_files().into_iter().filter(|s| !s.is_generated()) {
        for (line, name, len) in functions(&source.text) {
            if len > FUNCTION_MAX {
                problems.push(format!("{}:{line}: {name} has {len} lines, at most {FUNCTION_MAX}", source.path));
            }
        }
    }
    report(problems);
}

/// Returns the line number, the name and the length in lines of every function with a body.
///
/// All files are formatted by rustfmt, so a function ends at the first closing brace with the indentation of the
/// function.
fn functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let words = line.trim_start().split(' ').skip_while(|word| {
            matches!(*word, "const" | "async" | "unsafe" | "extern") || word.starts_with("pub") || word.starts_with('"')
        });
        let [Some("fn"), Some(name)] = [words.clone().next(), words.clone().nth(1)] else { continue };
        if line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        let mut rest = lines[at + 1..].iter().filter(|l| !l.is_empty() && indent(l) <= indent(line));
        let end = rest.find(|l| l.trim_start().starts_with('}') || l.ends_with(';'));
        if let Some(end) = end.filter(|l| l.trim_start().starts_with('}')) {
            let len = (end.as_ptr() as usize - line.as_ptr() as usize).min(text.len());
            let start = line.as_ptr() as usize - text.as_ptr() as usize;
            let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.push((at + 1, name, text[start..start + len].lines().count() + 1));
        }
    }
    found
}

#[test]
fn folders_have_no_mod_file() {
    let mods = rust_files().into_iter().filter(|s| s.path.ends_with("/mod.rs"));
    report(mods.map(|s| format!("{}: is to be a file beside its folder", s.path)).collect());
}

#[test]
fn no_path_of_one_machine() {
    let mut problems = Vec::new();
    for source in files_with(&["rs", "md", "toml", "sh", "py", "hex", "x", "yml"]) {
        // Skip this file, because it contains the prefixes for which the check searches.
        if source.path.ends_with("tests/tidy/files.rs") {
            continue;
        }
        for (at, line) in source.text.lines().enumerate() {
            let begins = |path: &str| line.match_indices(path).any(|(i, _)| !ends_in_word(&line[..i]));
            if MACHINE_PATHS.iter().any(|path| begins(path)) {
                problems.push(format!("{}:{}: {}", source.path, at + 1, line.trim()));
            }
        }
    }
    report(problems);
}

/// Returns whether a path that follows the text `before` is only the end of a longer path.
fn ends_in_word(before: &str) -> bool {
    before.ends_with(|c: char| c.is_alphanumeric() || "._-~$}".contains(c))
}

#[test]
fn functions_are_measured() {
    let text = "impl A {\n    pub fn one(\n        a: u8,\n    ) -> u8 {\n        a\n    }\n\n    fn none();\n    fn x() {}\n}\n\
                trait B {\n    fn long(\n        a: u8,\n    );\n}\nasync fn two() {\n    if x {\n    }\n}\n";
    let found = functions(text);
    assert_eq!(found, [(2, "one".to_string(), 5), (16, "two".to_string(), 4)]);
}
