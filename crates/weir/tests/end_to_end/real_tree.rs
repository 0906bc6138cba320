//! Copies of real directory trees and one large file into Weir and back, run by `cargo xtask bench tree`.

use crate::cluster::Cluster;
use crate::tree;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const FILES_MIN: usize = 20_000;
const BYTES_MIN: u64 = 1 << 30;
const LARGE: u64 = 4 << 30;

/// Returns the trees to copy, from the environment variable `WEIR_TREES`, where colons separate them.
fn sources() -> Vec<PathBuf> {
    let named = std::env::var_os("WEIR_TREES").unwrap_or_else(|| "/usr/lib:/usr/share".into());
    std::env::split_paths(&named).collect()
}

fn cp(cluster: &Cluster, what: &str, from: &OsStr, to: &OsStr) {
    let start = Instant::now();
    let args = [OsStr::new("cp"), OsStr::new("-r"), OsStr::new("--json"), from, to];
    let summary = cluster.json(args).remove(0);
    eprintln!("{what}: {:.1} s: {summary}", start.elapsed().as_secs_f64());
    assert_eq!(summary["failed"], 0, "{summary}");
}

fn large_file(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    for i in 0..LARGE >> 24 {
        file.write_all(&tree::bytes(i, 16 << 20)).unwrap();
    }
}

#[test]
#[ignore = "moves gigabytes; cargo xtask bench tree runs it"]
fn real_trees_and_a_large_file_survive_a_round_trip() {
    let home = tempfile::tempdir().unwrap();
    let (store, back) = (home.path().join("store"), home.path().join("back"));
    std::fs::create_dir(&back).unwrap();
    let sources = sources();
    let all: Vec<PathBuf> = sources.iter().flat_map(|source| tree::paths(source)).collect();
    let meta: Vec<_> = all.iter().map(|path| path.symlink_metadata().unwrap()).collect();
    let bytes: u64 = meta.iter().filter(|meta| meta.is_file()).map(MetadataExt::size).sum();
    let links = meta.iter().filter(|meta| meta.is_file() && meta.nlink() > 1).count();
    eprintln!("{} names, {} MiB, {links} of them further hard links: {sources:?}", all.len(), bytes >> 20);
    assert!(all.len() >= FILES_MIN && bytes >= BYTES_MIN, "too little: name larger trees in WEIR_TREES");
    large_file(&home.path().join("large"));

    let cluster = Cluster::start(&store);
    for source in &sources {
        cp(&cluster, "in", source.as_os_str(), OsStr::new("weir:/"));
    }
    cp(&cluster, "in", home.path().join("large").as_os_str(), OsStr::new("weir:/"));
    assert_eq!(cluster.proxied_bytes(), 0, "the mgr moves no file data");
    cluster.stop();

    let cluster = Cluster::start(&store);
    let names = cluster.json(["find", "/", "-mindepth", "1", "--json"]).len();
    assert_eq!(names, all.len() + 1);
    cp(&cluster, "out", OsStr::new("weir:/."), back.as_os_str());
    assert_eq!(cluster.proxied_bytes(), 0, "the mgr moves no file data");
    for source in &sources {
        tree::assert_same(source, &back.join(source.file_name().unwrap()));
    }
    tree::assert_same(&home.path().join("large"), &back.join("large"));
    let start = Instant::now();
    for source in &sources {
        let name = source.file_name().unwrap().to_str().unwrap();
        cluster.run(["rm", "-r", &format!("/{name}")]);
    }
    eprintln!("rm -r: {:.1} s", start.elapsed().as_secs_f64());
    cluster.stop();
}
