//! Checks that cargo-fuzz builds every fuzz target, that an ordinary test also runs every fuzz target, and that every
//! decoder has a fuzz target.

use crate::tree::{Source, report, root, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Decoders that need no fuzz target, each with the reason.
const ELSEWHERE: [(&str, &str); 3] = [
    ("Registered", "of the mgr alone, read from its own store; its tests damage it"),
    ("Void", "reads nothing"),
    ("XattrValue", "a string of bytes"),
];

#[test]
fn targets_are_registered_and_tested() {
    let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("fuzz/Cargo.toml is there");
    let sources = rust_files();
    let mut problems = Vec::new();
    let mut targets = 0;
    for source in &sources {
        let Some(file) = source.path.strip_prefix("fuzz/fuzz_targets/") else { continue };
        targets += 1;
        if !manifest.contains(&format!("path = \"fuzz_targets/{file}\"")) {
            problems.push(format!("fuzz/Cargo.toml: no [[bin]] for {file}"));
        }
        let caller = format!("fuzz/fuzz_targets/{file}\"");
        if !sources.iter().any(|s| s.path.starts_with("crates/") && s.text.contains(&caller)) {
            problems.push(format!("{}: no test of a crate runs it", source.path));
        }
    }
    assert!(targets > 0, "there are no fuzz targets");
    report(problems);
}

/// Returns the name and the source text of every top-level item in `text` that begins with `head`, such as `fn ` or
/// `impl `. The name is the identifier after `head`.
fn blocks<'a>(text: &'a str, head: &str) -> Vec<(&'a str, &'a str)> {
    let starts = text.match_indices(head).filter(|(at, _)| *at == 0 || text[..*at].ends_with('\n'));
    let block = |at: usize| {
        let rest = &text[at + head.len()..];
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        (name, rest.split("\n}").next().unwrap_or(rest))
    };
    starts.map(|(at, _)| block(at)).filter(|(name, _)| !name.is_empty()).collect()
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect()
}

/// Returns all types with a decoder, each with the path of its source file. Also returns an approximate call graph: a
/// map from the name of each function or `impl` to all identifiers in its source text.
fn mentions(sources: &[Source]) -> (BTreeMap<&str, &str>, BTreeMap<&str, BTreeSet<&str>>) {
    let mut decoders = BTreeMap::new();
    let mut mentioned: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let ours = |s: &&Source| s.path.starts_with("crates/") && s.path.contains("/src/") && !s.is_generated();
    for source in sources.iter().filter(ours) {
        for head in ["impl Xdr for ", "impl Record for ", "impl ", "pub fn ", "fn "] {
            for (name, text) in blocks(&source.text, head) {
                mentioned.entry(name).or_default().extend(words(text));
                if head.ends_with(" for ") {
                    decoders.insert(name, source.path.as_str());
                }
            }
        }
    }
    (decoders, mentioned)
}

#[test]
fn every_decoder_is_fuzzed() {
    let sources = rust_files();
    let (decoders, mentioned) = mentions(&sources);
    assert!(decoders.len() > 40, "only {} decoders found", decoders.len());
    let targets = sources.iter().filter(|s| s.path.starts_with("fuzz/fuzz_targets/"));
    let mut reached: BTreeSet<&str> = targets.flat_map(|s| words(&s.text)).collect();
    let mut next: Vec<&str> = reached.iter().copied().collect();
    while let Some(name) = next.pop() {
        let more = mentioned.get(name).into_iter().flatten().copied();
        next.extend(more.filter(|word| reached.insert(*word)).collect::<Vec<_>>());
    }
    let elsewhere = |name: &str| ELSEWHERE.iter().any(|(known, _)| *known == name);
    let missing = decoders.iter().filter(|(name, _)| !reached.contains(*name) && !elsewhere(name));
    report(missing.map(|(name, path)| format!("{path}: no fuzz target reaches the decoder of {name}")).collect());
}
