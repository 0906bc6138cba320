//! Plural folders ("shelves"), such as `ops`: the parent module registers the files of the folder, and these files
//! never name one another.

use crate::tree::{Source, code, report, rust_files};
use std::collections::{BTreeMap, BTreeSet};

const SHELVES: [&str; 8] = ["ops", "kinds", "drivers", "engines", "attrs", "commands", "disks", "transports"];

/// Splits the path of a file in a plural folder. Returns the path of the plural folder, the name of the plural
/// folder, and the item of the folder (its file, or its subfolder) to which the path belongs.
fn place(path: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = path.split('/').collect();
    let at = parts[..parts.len() - 1].iter().position(|part| SHELVES.contains(part))?;
    let folder = path.find(&format!("/{}/", parts[at]))?;
    Some((&path[..folder + 1 + parts[at].len()], parts[at], parts[at + 1].trim_end_matches(".rs")))
}

/// Returns all names in `text` that may be modules of the plural folder `shelf`: names that follow the path `super::`
/// or `shelf::`, also in a group such as `super::{a, b}`. `deep` is set for a file in a subfolder of the plural folder.
fn named(text: &str, shelf: &str, deep: bool) -> BTreeSet<String> {
    let text = code(text);
    let beside = if deep { "super::super::" } else { "super::" };
    let mut found = BTreeSet::new();
    for prefix in [beside.to_string(), format!("{shelf}::")] {
        for (at, _) in text.match_indices(&prefix) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_') || text[..at].ends_with("super::") {
                continue;
            }
            let rest = &text[at + prefix.len()..];
            let group = rest.strip_prefix('{').map(|group| &group[..group.find("};").unwrap_or(group.len())]);
            let words = group.unwrap_or_else(|| rest.split(|c: char| !is_word(c)).next().unwrap_or_default());
            found.extend(words.split(|c: char| !is_word(c)).map(str::to_string));
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn files_on_a_shelf_do_not_know_each_other() {
    let files: Vec<Source> = rust_files();
    let mut items: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in &files {
        if let Some((folder, _, item)) = place(&source.path) {
            items.entry(folder).or_default().insert(item);
        }
    }
    let mut problems = Vec::new();
    for source in &files {
        let Some((folder, shelf, item)) = place(&source.path) else { continue };
        let deep = source.path[folder.len() + 1..].contains('/');
        for other in named(&source.text, shelf, deep) {
            if other != item && items[folder].contains(&other[..]) {
                problems.push(format!("{}: names {other}, which stands on the same shelf", source.path));
            }
        }
    }
    report(problems);
}

#[test]
fn neighbours_are_recognized() {
    assert_eq!(place("crates/nfs/src/server/ops/read.rs"), Some(("crates/nfs/src/server/ops", "ops", "read")));
    assert_eq!(place("crates/x/src/ops/read/inner.rs"), Some(("crates/x/src/ops", "ops", "read")));
    assert_eq!(place("crates/x/src/ops.rs"), None);
    let text = "use super::{a, b::C};\n// super::d\ncrate::ops::e::run(); super::super::f(); super::g";
    let found = named(text, "ops", false);
    for name in ["a", "b", "e", "g"] {
        assert!(found.contains(name), "{name} in {found:?}");
    }
    assert!(!found.contains("d") && !found.contains("f"), "{found:?}");
    assert!(named("super::super::f()", "ops", true).contains("f"));
}
