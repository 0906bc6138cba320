//! Servers that send false answers, and other users of the machine that change what a command works on.

use crate::cluster::fail;
use crate::lab::Lab;
use std::path::Path;

/// The names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_name_with_a_slash_from_the_mgr_leads_nowhere() {
    let home = tempfile::tempdir().unwrap();
    let lab = Lab::start(home.path(), 1);
    lab.run(["mkdir", "/tree"]);
    lab.put("/tree/qwertzuiopas", b"content");
    let target = home.path().join("outer/inner/copy");
    std::fs::create_dir_all(&target).unwrap();
    lab.mgr.proxy.alter_answers(b"qwertzuiopas", b"../../pwned_");
    let copy = ["cp", "-r", "weir:/tree", target.to_str().unwrap()];
    for args in [&copy[..], &["find", "/tree"], &["ls", "/tree"], &["du", "-a", "/tree"], &["rm", "-r", "/tree"]] {
        let before = lab.mgr.proxy.altered();
        let said = fail(&mut lab.weir(args), 1);
        assert!(lab.mgr.proxy.altered() > before, "{args:?}: nothing was altered");
        assert!(said.contains("a name that no file can have: \"../../pwned_\""), "{args:?}: {said}");
    }
    lab.mgr.proxy.leave_answers();
    assert_eq!(names(&home.path().join("outer")), ["inner"]);
    assert_eq!(names(&home.path().join("outer/inner")), ["copy"]);
    assert_eq!(lab.run(["cat", "/tree/qwertzuiopas"]), b"content");
}
