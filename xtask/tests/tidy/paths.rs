//! Source paths in Markdown files: each path in backquotes that begins with a folder of the project exists.

use crate::tree::{files_with, report, root};

/// Folders below which this test checks that a path exists.
const FOLDERS: [&str; 7] = ["crates/", "tests/mount/", "tests/kernel-client/", "bench/", "xtask/", "fuzz/", "docs/"];

/// Returns the paths in `text` to check, with groups such as `{a,b}` expanded.
fn paths(text: &str) -> Vec<String> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = quoted.filter(|quoted| FOLDERS.iter().any(|folder| quoted.starts_with(folder)));
    let plain = |path: &&str| path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-{,}".contains(c));
    paths.filter(plain).flat_map(expanded).collect()
}

fn expanded(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(front, rest)| Some((front, rest.split_once('}')?))) {
        Some((front, (group, back))) => {
            group.split(',').flat_map(|one| expanded(&format!("{front}{one}{back}"))).collect()
        }
        None => vec![path.to_owned()],
    }
}

#[test]
fn named_paths_exist() {
    let pages = files_with(&["md"]);
    let named = |text: &str| paths(text).into_iter().filter(|path| !root().join(path).exists()).collect::<Vec<_>>();
    let count: usize = pages.iter().map(|page| paths(&page.text).len()).sum();
    assert!(count > 100, "only {count} paths found");
    let missing = pages.iter().flat_map(|page| named(&page.text).into_iter().map(|path| (page.path.clone(), path)));
    report(missing.map(|(page, path)| format!("{page}: {path} does not exist")).collect());
}

#[test]
fn groups_are_expanded() {
    let text = "See `crates/a/{b,c}.rs`, `not/this`, `crates/<name>` and `crates/d`.";
    assert_eq!(paths(text), ["crates/a/b.rs", "crates/a/c.rs", "crates/d"]);
}
