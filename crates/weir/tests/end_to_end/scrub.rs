//! Damage on the disks of a running cluster: a read of damaged bytes must fail instead of returning wrong bytes, and
//! a scrub must report the damaged bytes.

use crate::cluster::{Cluster, fail};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Size of the header in an object file in bytes. The bytes of the object follow the header.
const HEAD: u64 = 4096;
/// Stripe unit of the test files in bytes.
const UNIT: usize = 64 << 10;

/// Returns the object files of an inode on all iods below `home`.
fn objects(home: &Path, inode: u64) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![home.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.file_name().to_str() == Some(&format!("{inode:016x}")) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Flips one bit in the byte at `offset` of an object.
fn flip(object: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(object).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, HEAD + offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], HEAD + offset).unwrap();
}

fn content() -> Vec<u8> {
    (0..20 * UNIT).map(|i| (i * 7 + i / UNIT) as u8).collect()
}

fn cluster(home: &Path, options: &[&str]) -> Cluster {
    let cluster = Cluster::start_with(home, &[&["--iods", "3"], options].concat());
    cluster.run(["policy", "set", "/", "stripe_unit=64K"]);
    cluster
}

/// Runs a scrub, which must exit with `code`. Returns its report.
fn scrub(cluster: &Cluster, code: i32) -> Value {
    let output = cluster.weir(["scrub", "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(output.status.code(), Some(code), "{report} {said}");
    assert_eq!(report["state"], "done", "{report}");
    report
}

fn inode(cluster: &Cluster, path: &str) -> u64 {
    cluster.json(["stat", "--json", path]).remove(0)["inode"].as_u64().unwrap()
}

/// Returns the file offset of the byte at `offset` of the object number `index`. Files are striped over three iods.
fn offset_in_file(index: u64, offset: u64) -> u64 {
    let unit = UNIT as u64;
    (offset / unit * 3 + index) * unit + offset % unit
}

#[test]
fn a_flipped_bit_fails_reads_and_scrub_reports_file_and_range() {
    let home = tempfile::tempdir().unwrap();
    let cluster = cluster(home.path(), &["--block-checksums"]);
    cluster.run(["mkdir", "-p", "/some/where"]);
    cluster.put("/some/where/file", &content(), &[]);
    cluster.put("/sound", &content(), &[]);
    let report = scrub(&cluster, 0);
    assert_eq!((report["found"].as_u64(), report["objects"].as_u64()), (Some(0), Some(6)));
    assert_eq!(report["verified"].as_u64(), Some(2 * content().len() as u64), "{report}");

    let objects = objects(home.path(), inode(&cluster, "/some/where/file"));
    assert_eq!(objects.len(), 3);
    flip(&objects[1], 70_000);
    let said = fail(&mut cluster.weir(["cat", "/some/where/file"]), 1);
    let block = 70_000 / 4096 * 4096;
    let bytes = |index| format!("bytes {} to {}", offset_in_file(index, block), offset_in_file(index, block) + 4095);
    assert!(said.contains("/some/where/file") && (0..3).any(|index| said.contains(&bytes(index))), "{said}");
    for direct in [&[][..], &["--mgr-path"]] {
        let output = cluster.weir(["cat", "/some/where/file"]).args(direct).output().unwrap();
        assert!(!output.status.success());
        assert!(content().starts_with(&output.stdout), "a read returned wrong bytes ({direct:?})");
    }
    assert_eq!(cluster.run(["cat", "/sound"]), content());

    let report = scrub(&cluster, 1);
    assert_eq!(report["found"].as_u64(), Some(1), "{report}");
    let finding = &report["findings"][0];
    assert_eq!((&finding["paths"][0]["path"], &finding["damage"]), (&"/some/where/file".into(), &"checksum".into()));
    let start = finding["ranges"][0][0].as_u64().unwrap();
    assert!((0..3).any(|index| offset_in_file(index, block) == start), "{finding}");
    assert_eq!(finding["ranges"][0][1].as_u64(), Some(4096));
    // A read of the bytes before the damaged block must return all of these bytes.
    let rest = cluster.run(["get", "/some/where/file", "--offset", "0", "--length", &start.to_string()]);
    assert!(content().starts_with(&rest) && rest.len() as u64 == start);
    let told = cluster.weir(["scrub", "--status"]).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains(&format!("/some/where/file: bytes {start}-{}", start + 4095)), "{told}");

    // The scrub must report no damage of the new file under the same name. The damaged file may still exist without a
    // name.
    cluster.put("/some/where/file", &content(), &[]);
    assert_eq!(cluster.run(["cat", "/some/where/file"]), content());
    let output = cluster.weir(["scrub"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(": done\n") && !said.contains("/some/where"), "{said}");
}

#[test]
fn scrub_finds_a_damaged_object_header_without_checksums() {
    let home = tempfile::tempdir().unwrap();
    let cluster = cluster(home.path(), &[]);
    cluster.put("/file", &content(), &[]);
    let inode = inode(&cluster, "/file");
    let url = cluster.url.clone();
    cluster.stop();
    let file = File::options().write(true).open(&objects(home.path(), inode)[0]).unwrap();
    file.write_all_at(b"WEIRD", 0).unwrap();
    let cluster = Cluster::start_again(&url, home.path());
    let report = scrub(&cluster, 1);
    let finding = &report["findings"][0];
    assert_eq!((&finding["paths"][0]["path"], &finding["damage"]), (&"/file".into(), &"object".into()));
    assert_eq!(report["verified"].as_u64(), Some(0));
    fail(&mut cluster.weir(["cat", "/file"]), 1);
}

#[test]
fn a_slow_scrub_survives_a_restart_and_can_be_cancelled() {
    let home = tempfile::tempdir().unwrap();
    let cluster = cluster(home.path(), &[]);
    assert!(cluster.text(["scrub", "--status"]).contains("no scrub yet"));
    cluster.put("/file", &content(), &[]);
    // The rate is so low that the scrub still runs when the test cancels it.
    cluster.run(["scrub", "--rate", "64K", "--no-wait"]);
    fail(&mut cluster.weir(["scrub"]), 1);
    let status = |cluster: &Cluster| cluster.json(["scrub", "--status", "--json"]).remove(0);
    while status(&cluster)["bytes"].as_u64() == Some(0) {}
    let url = cluster.url.clone();
    cluster.stop();
    let cluster = Cluster::start_again(&url, home.path());
    let after = status(&cluster);
    assert_eq!((&after["state"], after["rate"].as_u64()), (&"running".into(), Some(64 << 10)));
    cluster.run(["scrub", "--cancel"]);
    assert_eq!(status(&cluster)["state"], "cancelled");
    let report = scrub(&cluster, 0);
    assert_eq!(report["bytes"].as_u64(), Some(content().len() as u64), "{report}");
}
