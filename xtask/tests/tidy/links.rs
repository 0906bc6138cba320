//! Links in Markdown files: each relative link leads to a file of the project and, with `#`, to a heading in that file.

use crate::tree::{Source, files_with, report, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Returns the targets of the links `[text](target)` in `text`, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        // Skip every second piece of the line: such a piece is between backquotes, so it is code.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for part in plain.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// Returns the anchors of the headings in `text`, formed by the rules of GitHub.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Returns the path to which `target` leads from the file at `from`, relative to the root of the project.
fn resolve(from: &str, target: &str) -> PathBuf {
    let mut path = Path::new(from).parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

fn problem(from: &Source, target: &str, pages: &BTreeMap<PathBuf, BTreeSet<String>>) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { PathBuf::from(&from.path) } else { resolve(&from.path, file) };
    if !root().join(&path).exists() {
        return Some(format!("{}: the link {target} leads to no file", from.path));
    }
    let anchor = anchor?;
    let has = pages.get(&path).is_some_and(|anchors| anchors.contains(anchor));
    (!has).then(|| format!("{}: the link {target} leads to no heading", from.path))
}

#[test]
fn links_lead_somewhere() {
    let pages = files_with(&["md"]);
    let known = pages.iter().map(|page| (PathBuf::from(&page.path), anchors(&page.text))).collect();
    let count: usize = pages.iter().map(|page| links(&page.text).len()).sum();
    assert!(count > 20, "only {count} links found");
    let targets = pages.iter().flat_map(|page| links(&page.text).into_iter().map(move |target| (page, target)));
    report(targets.filter_map(|(page, target)| problem(page, &target, &known)).collect());
}

#[test]
fn what_leads_nowhere_is_found() {
    let text =
        "# A page (of two)\n[a](#a-page-of-two) [b](#b) `[c](none.md)`\n```\n[d](none.md)\n```\n![e](../none.svg)";
    let page = Source { path: "docs/page.md".to_owned(), text: text.to_owned() };
    let known = BTreeMap::from([(PathBuf::from("docs/SEMANTICS.md"), BTreeSet::new())]);
    assert_eq!(links(&page.text), ["#a-page-of-two", "#b", "../none.svg"]);
    assert!(anchors(&page.text).contains("a-page-of-two"));
    assert!(problem(&page, "../none.svg", &known).is_some() && problem(&page, "SEMANTICS.md", &known).is_none());
    assert!(problem(&page, "SEMANTICS.md#none", &known).is_some() && problem(&page, "../README.md", &known).is_none());
    assert!(problem(&page, "https://www.rfc-editor.org/rfc/rfc8881", &known).is_none());
}

#[test]
fn the_readme_is_short() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md is there");
    assert!(readme.lines().count() <= 150, "README.md is for newcomers: move the rest to docs/");
}
