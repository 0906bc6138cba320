//! Round trips of a directory tree: copy into Weir, restart of the cluster, copy out of Weir, and comparison.

use crate::cluster::Cluster;
use crate::tree;
use std::ffi::OsStr;
use std::path::Path;

fn cp(cluster: &Cluster, args: &[&OsStr]) -> serde_json::Value {
    let mut all = vec![OsStr::new("cp"), OsStr::new("-r"), OsStr::new("--json")];
    all.extend(args);
    cluster.json(all).remove(0)
}

#[test]
fn a_tree_is_unchanged_after_cp_in_a_restart_and_cp_out() {
    let home = tempfile::tempdir().unwrap();
    let (source, back) = (home.path().join("source"), home.path().join("back"));
    tree::make(&source);
    let store = home.path().join("store");
    let cluster = Cluster::start(&store);
    let before = cluster.proxied_bytes();
    let summary = cp(&cluster, &[source.as_os_str(), OsStr::new("weir:/")]);
    assert_eq!((summary["failed"].as_u64(), summary["interrupted"].as_bool()), (Some(0), Some(false)), "{summary}");
    assert_eq!(summary["hard_links"], 23, "{summary}");
    assert_eq!(cluster.proxied_bytes(), before, "the mgr moves no file data");
    cluster.stop();

    let cluster = Cluster::start(&store);
    looks_like(&cluster, &source);
    let summary = cp(&cluster, &[OsStr::new("weir:/source"), back.as_os_str()]);
    assert_eq!(summary["failed"], 0, "{summary}");
    tree::assert_same(&source, &back);
    assert_eq!(cluster.proxied_bytes(), 0, "the mgr moves no file data");

    let summary = cp(&cluster, &[OsStr::new("weir:/source"), OsStr::new("weir:/copy")]);
    assert_eq!(summary["failed"], 0, "{summary}");
    let again = home.path().join("again");
    cp(&cluster, &[OsStr::new("weir:/copy"), again.as_os_str()]);
    tree::assert_same(&source, &again);
    // A copy over an existing tree must give the same tree and leave no temporary names.
    cp(&cluster, &[source.as_os_str(), OsStr::new("weir:/")]);
    assert!(cluster.json(["find", "/", "-name", ".weir-cp-*", "--json"]).is_empty());
    cp(&cluster, &[OsStr::new("-T"), OsStr::new("weir:/source"), again.as_os_str()]);
    tree::assert_same(&source, &again);
    cluster.stop();
}

/// Asserts that ls, find, du and stat agree with the tree that was copied.
fn looks_like(cluster: &Cluster, source: &Path) {
    let all = tree::paths(source);
    let found = cluster.json(["find", "/source", "--json"]);
    assert_eq!(found.len(), all.len());
    let listed = cluster.json(["ls", "-aR", "--json", "/source"]);
    assert_eq!(listed.len() + 1, all.len());
    let files = all.iter().filter(|path| path.symlink_metadata().unwrap().is_file()).count();
    assert_eq!(cluster.run(["find", "/source", "-type", "f", "-print0"]).split(|b| *b == 0).count() - 1, files);
    let odd = cluster.json(["find", "/source", "-name", "*\\xff*", "--json"]);
    assert!(odd.is_empty(), "a pattern is bytes, not escapes: {odd:?}");
    let big = cluster.json(["find", "/source", "-type", "f", "-size", "+30M", "--json"]);
    assert_eq!(big.len(), 3, "{big:?}");
    let sum = cluster.json(["du", "-s", "--apparent-size", "--json", "/source/deep/er"]).remove(0);
    let expected: u64 = (0..150u64).map(|i| i * 37 % 9000).sum();
    assert_eq!((sum["bytes"].as_u64(), sum["files"].as_u64()), (Some(expected), Some(150)), "{sum}");
    let stat = cluster.json(["stat", "--json", "/source/file-5000000"]).remove(0);
    assert_eq!((stat["size"].as_u64(), stat["links"].as_u64()), (Some(5_000_000), Some(3)), "{stat}");
    let objects = stat["placement"]["objects"].as_array().unwrap();
    let sizes: Vec<u64> = objects.iter().map(|o| o["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [5_000_000 - (3 << 20), 1 << 20, 1 << 20, 1 << 20], "{stat}");
    assert_eq!(objects[0]["ranges"], serde_json::json!([[0, 1 << 20], [4 << 20, 5_000_000 - (4 << 20)]]), "{stat}");
    let human = cluster.text(["stat", "/source/file-5000000", "/source/links/relative"]);
    assert!(human.contains("over 4 iods") && human.contains("-> ../file-4096"), "{human}");
}
