//! Import cycles: the largest set of files of a crate that import each other, directly or through other files.
//!
//! Imports between a module and its submodules do not count: in a module `a`, the file `a.rs` typically has types,
//! and the files `a/*.rs` have the operations on these types.

use crate::tree::{Source, code, rust_files};
use std::collections::{BTreeMap, BTreeSet};

/// A module, as the list of names on the path from the root of its crate.
type Module = Vec<String>;
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Maximum number of files in an import cycle.
const MOST: usize = 3;

/// Returns the crate and the module of a file below `crates/*/src/`; `None` for other files and for tests.
fn module(path: &str) -> Option<(String, Module)> {
    let (krate, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let names: Module = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    let is_root = matches!(&names[..], [only] if only == "lib" || only == "main");
    let is_test = names.iter().any(|name| name == "tests");
    (!is_test).then(|| (krate.to_owned(), if is_root { Module::new() } else { names }))
}

/// Returns the Rust paths in `text` that begin with `crate`, `super` or `self`. Splits a group such as
/// `crate::{a, b::c}` into single paths.
fn paths(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut found = Vec::new();
    for word in text.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c))) {
        if ["crate::", "super::", "self::"].iter().any(|start| word.starts_with(start)) {
            found.push(word.to_owned());
        }
    }
    for start in ["crate::{", "super::{"] {
        for group in text.split(start).skip(1) {
            let inside = group.split(';').next().unwrap_or_default();
            let base = start.trim_end_matches('{');
            found.extend(inside.split([',', '{', '}']).map(|item| format!("{base}{}", item.trim())));
        }
    }
    found
}

/// Returns the module to which a Rust path in the module `from` leads: the longest prefix of the path that names a
/// module.
fn target(path: &str, from: &Module, modules: &BTreeSet<Module>) -> Module {
    let mut at = if path.starts_with("crate") { Module::new() } else { from.clone() };
    for name in path.split("::") {
        match name {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            name => {
                at.push(name.to_owned());
                if !modules.contains(&at) {
                    at.pop();
                    break;
                }
            }
        }
    }
    at
}

/// Returns the modules that each module of a crate imports, except the ancestors and descendants of the importing
/// module.
fn imports(files: &[(Module, String)]) -> Imports {
    let modules: BTreeSet<Module> = files.iter().map(|(module, _)| module.clone()).collect();
    let of_one = |(module, text): &(Module, String)| {
        let targets = paths(text).into_iter().map(|path| target(&path, module, &modules));
        let apart = targets.filter(|other| !other.starts_with(module) && !module.starts_with(other));
        (module.clone(), apart.collect())
    };
    files.iter().map(of_one).collect()
}

/// Returns all modules that a module imports, directly or through other modules.
fn reached(from: &Module, imports: &Imports) -> BTreeSet<Module> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = open.pop() {
        for next in imports.get(&module).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    found
}

/// Returns the import cycles of a crate, each as a set of modules.
fn circles(imports: &Imports) -> BTreeSet<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|module| (module, reached(module, imports))).collect();
    let circle = |(module, found): (&&Module, &BTreeSet<Module>)| -> BTreeSet<Module> {
        found.iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(*module))).cloned().collect()
    };
    reached.iter().map(circle).filter(|circle| circle.len() > 1).collect()
}

fn crates() -> BTreeMap<String, Vec<(Module, String)>> {
    let mut crates = BTreeMap::<String, Vec<_>>::new();
    for source in rust_files().iter().filter(|source: &&Source| !source.is_generated()) {
        if let Some((krate, module)) = module(&source.path) {
            crates.entry(krate).or_default().push((module, code(&source.text)));
        }
    }
    crates
}

#[test]
fn import_circles_are_small() {
    let mut problems = Vec::new();
    for (krate, files) in crates() {
        for circle in circles(&imports(&files)).iter().filter(|circle| circle.len() > MOST) {
            let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
            problems.push(format!("{krate}: {} files import each other: {}", circle.len(), names.join(", ")));
        }
    }
    crate::tree::report(problems);
}

#[test]
fn circles_are_found() {
    let file = |name: &str, text: &str| (name.split('/').map(str::to_owned).collect::<Module>(), text.to_owned());
    let files = [
        file("a", "use crate::{b::B, x};\nmod below;"),
        file("a/below", "use super::A;\nuse crate::c;"),
        file("b", "fn f() -> crate::c::C"),
        file("c", "use super::a::A;\n#[cfg(test)]\nmod tests { use crate::d; }"),
        file("d", "use crate::a;"),
    ];
    let found = circles(&imports(&files));
    let names: Vec<Vec<String>> = found.iter().map(|c| c.iter().map(|m| m.join("/")).collect()).collect();
    assert_eq!(names, [["a", "b", "c"]]);
}
