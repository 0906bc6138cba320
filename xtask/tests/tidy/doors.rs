//! Checks of I/O boundaries: pure crates use no I/O, clocks or randomness, and each restricted library is used in only
//! one folder.

use crate::tree::{code, report, rust_files};

/// Pure crates, which use no sockets, disks, clocks or random numbers.
const CORES: [&str; 8] = ["types", "xdr", "wire", "layout", "meta", "nfs", "trace", "chart"];

/// Names that a pure crate may not use: a pure crate receives files, times and random numbers as arguments.
const WORLD: [&str; 8] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "SystemTime::now",
    "Instant::now",
    "thread::sleep",
    "getrandom",
];

/// External libraries, each with the only folder whose files may name the library.
const DOORS: [(&str, &str); 2] = [("redb", "crates/meta/src/engines/"), ("plotters", "crates/chart/src/")];

#[test]
fn pure_cores_do_not_touch_the_world() {
    let mut problems = Vec::new();
    for source in rust_files() {
        let core = CORES.iter().any(|name| source.path.starts_with(&format!("crates/{name}/src/")));
        if !core || DOORS.iter().any(|(_, door)| source.path.starts_with(door)) {
            continue;
        }
        let code = code(&source.text);
        for name in WORLD.iter().filter(|name| code.contains(*name)) {
            problems.push(format!("{}: names {name}", source.path));
        }
    }
    report(problems);
}

#[test]
fn libraries_enter_through_their_doors() {
    let mut problems = Vec::new();
    for source in rust_files().iter().filter(|s| s.path.starts_with("crates/") && s.path.contains("/src/")) {
        for (library, door) in DOORS {
            let beside = format!("{}.rs", door.trim_end_matches('/'));
            if !source.path.starts_with(door) && source.path != beside {
                let named = code(&source.text).contains(&format!("{library}::"));
                problems.extend(named.then(|| format!("{}: names {library}, whose door is {door}", source.path)));
            }
        }
    }
    report(problems);
}
