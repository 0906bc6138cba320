//! Source files of the project, and their code without comments and strings.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file of the project.
pub struct Source {
    /// The path of the file, relative to the root of the project.
    pub path: String,
    /// The text of the file.
    pub text: String,
}

impl Source {
    /// Returns whether `cargo xtask xdr` generated the file.
    pub fn is_generated(&self) -> bool {
        self.path.contains("/nfs4/generated/")
    }
}

/// Returns the root of the project.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent folder").to_path_buf()
}

/// Returns every Rust file of the project, sorted by path.
pub fn rust_files() -> Vec<Source> {
    let mut found = files_with(&["rs"]);
    found.retain(|source| !source.path.starts_with("target/"));
    assert!(found.len() > 20, "only {} Rust files found", found.len());
    found
}

/// Returns every file of the project with one of these extensions, sorted by path.
pub fn files_with(extensions: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    walk(&root(), extensions, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn walk(folder: &Path, extensions: &[&str], found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("folder of the project is readable") {
        let path = entry.expect("entry of a folder is readable").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            let skipped = ["target", ".git", "corpus", "artifacts", "node_modules", "__pycache__"];
            if !skipped.contains(&&name[..]) {
                walk(&path, extensions, found);
            }
        } else if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)) {
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let path = path.strip_prefix(root()).expect("found below the root").to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}

/// Panics with one line per problem, unless the list of problems is empty.
pub fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// Returns `text` without line comments and string literals. Line numbers stay the same.
///
/// The result is good enough to search for names, although this function handles neither multi-line strings nor raw
/// strings.
pub fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let (mut in_string, mut escaped, mut last) = (false, false, ' ');
        for c in line.chars() {
            if !in_string && c == '/' && last == '/' {
                out.pop();
                break;
            }
            if c == '"' && !escaped && last != '\'' {
                in_string = !in_string;
            }
            escaped = c == '\\' && !escaped;
            if !in_string {
                out.push(c);
            }
            last = c;
        }
        out.push('\n');
    }
    out
}

#[test]
fn names_in_comments_and_strings_are_not_code() {
    assert_eq!(code("a \"b\\\"c\" d // e\n\"f\" '\"' g"), "a \" d \n\" '\"' g\n");
}
