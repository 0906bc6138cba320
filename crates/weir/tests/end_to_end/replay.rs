//! `weir replay`: generated traces, replayed in Weir and in a local directory, with verified content.

use crate::cluster::{Cluster, WEIR, fail, succeed};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn replay(cluster: &Cluster, on: &str, args: &[&str]) -> Value {
    cluster.json(["replay", "--json", "--verify", "--on", on].iter().chain(args)).remove(0)
}

fn make(file: &Path, args: &[&str]) {
    succeed(Command::new(WEIR).args(["replay", "--generate"]).args(args).arg("-o").arg(file));
}

#[test]
fn replay_gives_the_same_result_on_weir_and_a_local_directory() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&home.path().join("up"));
    let trace = home.path().join("trace");
    let (name, local) = (trace.to_str().unwrap(), home.path().to_str().unwrap());
    make(&trace, &["postmark", "--files", "5", "--transactions", "20"]);
    let (weir, here) = (replay(&cluster, "weir:/", &[name]), replay(&cluster, local, &[name]));
    assert_eq!(weir["by_operation"], here["by_operation"]);
    assert_eq!((weir["operations"].as_u64(), &here["counters"]), (here["operations"].as_u64(), &Value::Null));
    make(&trace, &["digitisation", "--events", "2"]);
    let both = replay(&cluster, "weir:/", &[name, "--clients", "2", "--write-threshold", "32K"]);
    assert_eq!((both["clients"].as_u64(), both["verified_bytes"].as_u64()), (Some(2), both["written_bytes"].as_u64()));
    assert_eq!(cluster.json(["ls", "-a", "--json", "/"]).len(), 0, "replay removes its files");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 2);
    cluster.run(["fsck"]);
    cluster.stop();
}

#[test]
fn replay_counts_bytes_on_the_direct_path_and_the_mgr_path() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    let strided = ["--generate", "strided", "--clients", "4", "--count", "64"];
    let bytes = 4 * 64 * 4096;
    let ways = |found: &Value| {
        let counted = |name: &str| found["counters"][name].as_u64().unwrap();
        (counted("written_via_mgr"), counted("written_direct"))
    };
    let through = [&strided[..], &["--write-threshold", "max"]].concat();
    assert_eq!(ways(&replay(&cluster, "weir:/", &through)), (bytes, 0));
    let straight = [&strided[..], &["--each", "--write-threshold", "0"]].concat();
    let found = replay(&cluster, "weir:/", &straight);
    assert_eq!(ways(&found), (0, bytes));
    assert_eq!(found["counters"]["rpcs"]["WRITE"].as_u64(), Some(4 * 64), "one for each write");
    assert_eq!(
        found["latencies"].as_array().unwrap().iter().map(|l| l["count"].as_u64().unwrap()).sum::<u64>(),
        4 * 67
    );
    let reads = ["--generate", "random", "--read", "--fill", "--size", "1M", "--count", "50"];
    let found = replay(&cluster, "weir:/", &[&reads[..], &["--read-threshold", "max"]].concat());
    assert_eq!(found["counters"]["read_via_mgr"].as_u64(), Some(50 * 4096));
    cluster.stop();
}

#[test]
fn replay_refuses_a_malformed_trace_and_names_the_line() {
    let home = tempfile::tempdir().unwrap();
    let trace = home.path().join("trace");
    let on = home.path().to_str().unwrap();
    std::fs::write(&trace, "weir-trace 1\nopen 0\nwrite 0 0\n").unwrap();
    let said = fail(Command::new(WEIR).args(["replay", "--on", on]).arg(&trace), 2);
    assert!(said.contains("line 3"), "{said}");
    for wrong in [&["--generate", "strided", "--each"][..], &["--generate", "sequential", "--request", "1G"]] {
        fail(Command::new(WEIR).args(["replay", "--on", on]).args(wrong), 2);
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
}
