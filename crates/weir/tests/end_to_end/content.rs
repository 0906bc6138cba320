//! Tests of the bytes of single files: put, get, cat, ranges, copies, and reads and writes on the direct path and the
//! mgr path.

use crate::cluster::{Cluster, fail};
use crate::tree::bytes;

#[test]
fn put_then_get_and_cat_return_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(home.path(), &["--iods", "3"]);
    let content = bytes(1, 9_999_999);
    cluster.put("/a", &content, &["--mode", "640"]);
    assert!(cluster.run(["cat", "/a"]) == content);
    assert!(cluster.run(["get", "/a"]) == content);
    assert!(cluster.run(["get", "--offset", "3M", "--length", "2M", "/a"]) == content[3 << 20..5 << 20]);
    assert!(cluster.run(["get", "--offset", "9999990", "--length", "1G", "/a"]) == content[9_999_990..]);
    assert!(cluster.run(["get", "--offset", "1T", "/a"]).is_empty());
    assert_eq!(cluster.json(["stat", "--json", "/a"])[0]["mode"], "0640");
    cluster.put("/b", b"", &[]);
    assert!(cluster.run(["cat", "/b"]).is_empty());
    // Replacing a file with `weir put` must preserve its mode. No read may return a mixture of old and new bytes.
    cluster.put("/a", b"short", &[]);
    assert_eq!(cluster.run(["cat", "/a", "/b", "/a"]), b"shortshort");
    assert_eq!(cluster.json(["stat", "--json", "/a"])[0]["mode"], "0640");
    assert_eq!(cluster.json(["ls", "-a", "--json", "/"]).len(), 2, "no temporary names are left");
    let said = fail(&mut cluster.weir(["cat", "/", "/a"]), 1);
    assert!(said.contains("is a directory"), "{said}");
    cluster.stop();
}

#[test]
fn direct_path_and_mgr_path_access_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    let content = bytes(2, 6_543_210);
    let payload = || cluster.proxied_bytes();
    cluster.put("/direct", &content, &[]);
    assert_eq!(payload(), 0);
    assert!(cluster.run(["cat", "--mgr-path", "/direct"]) == content);
    let read = payload();
    assert_eq!(read, content.len() as u64);
    cluster.put("/proxied", &content, &["--mgr-path"]);
    assert_eq!(payload(), read + content.len() as u64);
    assert!(cluster.run(["cat", "/proxied"]) == content);
    assert!(cluster.run(["cat", "--no-checksums", "/proxied"]) == content);
    assert_eq!(payload(), read + content.len() as u64);
    let objects = |name| cluster.json(["stat", "--json", name])[0]["placement"]["objects"].as_array().unwrap().len();
    assert_eq!((objects("/direct"), objects("/proxied")), (4, 4));
    cluster.stop();
}

#[test]
fn copies_within_the_file_system_are_made_by_the_iods() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.run(["mkdir", "/narrow"]);
    cluster.run(["policy", "set", "/narrow", "stripe_unit=192K", "stripe_count=3"]);
    let content = bytes(4, 40_000_001);
    cluster.put("/a", &content, &[]);
    let counted = |name: &str| {
        let status = cluster.json(["status", "--json"]).remove(0);
        let groups = status.as_array().unwrap();
        groups.iter().find(|g| g["group"] == "counters").unwrap()["values"][name].as_u64().unwrap()
    };
    cluster.run(["cp", "weir:/a", "weir:/narrow/b"]);
    assert!(cluster.run(["cat", "/narrow/b"]) == content);
    assert_eq!((cluster.proxied_bytes(), counted("iod_copied_bytes")), (0, content.len() as u64));
    // The client copies small files itself, so the counter of bytes that iods copied must not change.
    cluster.put("/c", &content[..100_000], &[]);
    cluster.run(["cp", "weir:/c", "weir:/narrow/"]);
    assert!(cluster.run(["cat", "/narrow/c"]) == content[..100_000]);
    assert_eq!((cluster.proxied_bytes(), counted("iod_copied_bytes")), (0, content.len() as u64));
    cluster.run(["fsck"]);
    cluster.stop();
}

#[test]
fn new_files_get_the_layout_of_their_directory_policy() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.run(["mkdir", "/wide", "/narrow"]);
    cluster.run(["policy", "set", "/narrow", "stripe_unit=64K", "stripe_count=2"]);
    cluster.run(["mkdir", "/narrow/below"]);
    let content = bytes(3, 1 << 20);
    for name in ["/wide/f", "/narrow/f", "/narrow/below/f"] {
        cluster.put(name, &content, &[]);
        assert!(cluster.run(["cat", name]) == content);
    }
    let placement = |name| cluster.json(["stat", "--json", name])[0]["placement"].clone();
    let shape = |name| {
        let placement = placement(name);
        (placement["stripe_unit"].as_u64().unwrap(), placement["objects"].as_array().unwrap().len())
    };
    assert_eq!(shape("/wide/f"), (1 << 20, 4));
    assert_eq!(shape("/narrow/f"), (64 << 10, 2));
    assert_eq!(shape("/narrow/below/f"), (64 << 10, 2));
    let policy = cluster.json(["policy", "show", "--json", "/narrow/below"]).remove(0);
    let part = |name: &str| (policy[name]["value"].as_str(), policy[name]["origin"].as_str());
    assert_eq!(part("stripe_unit"), (Some("64K"), Some("directory")));
    assert_eq!(part("stripe_count"), (Some("2"), Some("directory")));
    assert_eq!(part("write_threshold"), (Some("64K"), Some("driver")));
    cluster.run(["policy", "unset", "/narrow", "stripe_count"]);
    cluster.put("/narrow/g", &content, &[]);
    assert_eq!(shape("/narrow/g"), (64 << 10, 4));
    assert_eq!(shape("/narrow/f"), (64 << 10, 2), "a file keeps its layout");
    for (args, part) in [
        (["policy", "set", "/narrow", "stripe_unit=100"], "a multiple of 64"),
        (["policy", "set", "/narrow", "stripes=2"], "stripe_count"),
        (["policy", "set", "/narrow/f", "stripe_unit=1M"], "keeps the value from its creation"),
    ] {
        let said = fail(&mut cluster.weir(args), 2);
        assert!(said.contains(part), "{said}");
    }
    cluster.stop();
}
