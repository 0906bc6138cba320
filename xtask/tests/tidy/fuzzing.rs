//! Every fuzz target is built by cargo-fuzz and also run by an ordinary test.

use crate::tree::{report, root, rust_files};
use std::fs;

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
