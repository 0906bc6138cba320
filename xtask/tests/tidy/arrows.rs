//! Checks of dependencies between crates: every `Cargo.toml` must agree with the table in ARCHITECTURE.md.

use crate::tree::{report, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Crates that may depend on tokio.
const ASYNC: [&str; 7] = ["client", "ds", "fuse", "mgr", "net", "sim", "weir"];

/// Returns the names between backticks in a table cell.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// Returns the crates and their allowed dependencies, from a Markdown table with the columns "crate", "what it is" and
/// "may depend on".
fn arrows(markdown: &str) -> BTreeMap<String, BTreeSet<String>> {
    let rows = markdown.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let mut table = rows.skip_while(|cells| cells[..] != ["", "crate", "what it is", "may depend on", ""]).skip(2);
    let rows = table.by_ref().take_while(|cells| cells.len() == 5);
    rows.map(|cells| (cells[1].trim_matches('`').to_string(), quoted(cells[3]))).collect()
}

/// Returns the parsed `Cargo.toml` of every crate in `crates/` and of xtask, by crate name.
fn manifests() -> BTreeMap<String, toml::Table> {
    let read = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path.join("Cargo.toml")).ok()?;
        let manifest: toml::Table = text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        assert_eq!(manifest["package"]["name"].as_str(), Some(&name[..]), "a crate has the name of its folder");
        Some((name, manifest))
    };
    let crates = fs::read_dir(root().join("crates")).expect("there are crates");
    let mut all: BTreeMap<_, _> = crates.filter_map(|entry| read(entry.expect("readable").path())).collect();
    all.extend(read(root().join("xtask")));
    all
}

fn names(manifest: &toml::Table, section: &str) -> BTreeSet<String> {
    manifest.get(section).and_then(|s| s.as_table()).map(|s| s.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn crates_depend_on_what_the_table_allows() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    let (table, manifests) = (arrows(&text), manifests());
    let mut problems = Vec::new();
    for name in manifests.keys().filter(|name| !table.contains_key(*name)) {
        problems.push(format!("ARCHITECTURE.md: no row for {name}"));
    }
    for (name, allowed) in &table {
        let Some(manifest) = manifests.get(name) else {
            problems.push(format!("ARCHITECTURE.md: a row for {name}, which is no crate"));
            continue;
        };
        let ours: BTreeSet<String> =
            names(manifest, "dependencies").into_iter().filter(|d| manifests.contains_key(d)).collect();
        if ours != *allowed {
            problems.push(format!("{name} depends on {ours:?}, ARCHITECTURE.md says {allowed:?}"));
        }
    }
    report(problems);
}

#[test]
fn tokio_stays_in_few_crates() {
    let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
    let named = |manifest: &toml::Table| sections.iter().any(|s| names(manifest, s).contains("tokio"));
    let crates: Vec<String> = manifests().into_iter().filter(|(_, m)| named(m)).map(|(name, _)| name).collect();
    report(crates.into_iter().filter(|c| !ASYNC.contains(&&c[..])).map(|c| format!("{c} names tokio")).collect());
}

/// No crate has a build script: the generated types are committed, so that a build does not need the RFC texts.
#[test]
fn no_crate_runs_code_to_be_built() {
    let with_script = manifests().into_keys().filter(|name| root().join("crates").join(name).join("build.rs").exists());
    report(with_script.map(|name| format!("crates/{name} has a build.rs")).collect());
}

#[test]
fn the_table_is_read() {
    let table = "text\n| crate | what it is | may depend on |\n| --- | --- | --- |\n| `a` | x `y` | nothing |\n\
                 | `b` | z | `a` `c` |\n\n| `d` | not | `here` |\n";
    let read = arrows(table);
    assert_eq!(read.len(), 2);
    assert_eq!((read["a"].len(), &read["b"]), (0, &quoted("`a` `c`")));
}
