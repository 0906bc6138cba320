//! The examples of docs/SEMANTICS.md, which the tests run unchanged.

use crate::cluster::{Cluster, WEIR};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A command line of a page in `docs/`, with the expected output and exit code.
struct Example {
    command: String,
    said: String,
}

/// Returns the examples in the fenced blocks of a page. A line that begins with `$ ` is a command, and its expected
/// output follows. A line `! N` gives an exit code other than 0.
fn examples(markdown: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let blocks = markdown.split("\n```\n").skip(1).step_by(2);
    for line in blocks.flat_map(str::lines) {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push(Example { command: command.to_owned(), said: String::new() }),
            (None, Some(example)) => example.said += &format!("{line}\n"),
            (None, None) => panic!("a block begins without a command: {line}"),
        }
    }
    found
}

/// A page may show commands after the prompt `$ ` only if a test runs these commands.
#[test]
fn tests_run_the_commands_of_every_page_with_a_prompt() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut with = pages(&docs);
    with.retain(|page| std::fs::read_to_string(page).unwrap().lines().any(|line| line.trim_start().starts_with("$ ")));
    let mut with: Vec<_> = with.iter().map(|page| page.strip_prefix(&docs).unwrap().to_str().unwrap()).collect();
    with.sort_unstable();
    // This file tests SEMANTICS.md, and `replaced_disk.rs` tests replacing-a-disk.md.
    assert_eq!(with, ["SEMANTICS.md", "replacing-a-disk.md"]);
}

/// Returns the Markdown files of a folder and of the folders below it.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path {
        path if path.is_dir() => pages(&path),
        path if path.extension().is_some_and(|end| end == "md") => vec![path],
        _ => Vec::new(),
    };
    entries.flat_map(below).collect()
}

#[test]
fn the_examples_of_the_semantics_page_give_their_output() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SEMANTICS.md")).unwrap();
    let examples = examples(&text);
    assert!(examples.len() >= 7, "examples are found");
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&home.path().join("store"));
    let host = cluster.url.trim_start_matches("weir://").trim_end_matches('/').to_owned();
    let path = format!("{}:/usr/bin:/bin", Path::new(WEIR).parent().unwrap().display());
    for Example { command, said } in examples {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("umask 022; exec 2>&1; {command}")).current_dir(home.path());
        let output = shell.env("PATH", &path).env("WEIR_URL", &cluster.url).output().unwrap();
        let mut found = String::from_utf8(output.stdout).unwrap().replace(&host, "HOST");
        if let Some(code) = output.status.code().filter(|code| *code != 0) {
            found += &format!("! {code}\n");
        }
        // Ignore the lines with advice on what to do next, because these lines may change.
        found = found.lines().filter(|line| !line.starts_with("      ")).map(|line| format!("{line}\n")).collect();
        assert_eq!(found, said, "$ {command}");
    }
    cluster.stop();
}
