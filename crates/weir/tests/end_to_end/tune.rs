//! Tests of `weir tune threshold`: of the measurements, the files that it makes, and the recommended threshold.

use crate::cluster::{Cluster, fail};

#[test]
fn tune_threshold_writes_curves_and_recommends_a_threshold() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&home.path().join("up"));
    let (svg, csv) = (home.path().join("t.svg"), home.path().join("t.csv"));
    let few = ["--rounds", "2", "--count", "5", "--from", "4K", "--to", "64K"];
    let mut args = vec!["tune", "threshold", "--json", "--svg", svg.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
    args.extend(few);
    let found = cluster.json(&args).remove(0);
    let sizes: Vec<_> = found["points"].as_array().unwrap().iter().map(|p| p["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [4096, 8192, 16384, 32768, 65536]);
    let threshold = found["threshold"].as_u64().unwrap();
    assert!(threshold == 0 || threshold == u64::MAX || sizes.contains(&threshold), "{threshold}");
    let option = format!("write_threshold={}", found["option"].as_str().unwrap());
    assert!(found["command"].as_str().unwrap().contains(&option));
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 1 + 5 * 2 * 2);
    for more in [&["--read"][..], &["--sequential", "--clients", "2"]] {
        let said = String::from_utf8(cluster.run(["tune", "threshold"].iter().chain(&few).chain(more))).unwrap();
        assert!(said.contains("Recommended: ") && said.contains("weir mount -o "), "{said}");
    }
    assert_eq!(cluster.json(["ls", "-a", "--json", "/"]).len(), 0, "tune removes its files");
    fail(&mut cluster.weir(["tune", "threshold", "--from", "8K", "--to", "4K"]), 2);
    cluster.stop();
}
