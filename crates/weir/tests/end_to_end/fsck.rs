//! Checks with `weir fsck`. Before each check, the test damages the disks of a stopped cluster.

use crate::cluster::{Cluster, WEIR};
use crate::tree::bytes;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `weir fsck`. Returns its exit code, its findings and its summary.
fn fsck(cluster: &Cluster, options: &[&str]) -> (i32, Vec<Value>, Value) {
    let out = cluster.weir(["fsck", "--json"].iter().chain(options)).output().expect("it runs");
    let text = String::from_utf8(out.stdout).expect("text");
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let summary = lines.pop().unwrap_or_else(|| panic!("no summary: {}", String::from_utf8_lossy(&out.stderr)));
    assert_eq!(summary["summary"], true);
    (out.status.code().expect("an exit code"), lines, summary)
}

fn codes(findings: &[Value]) -> Vec<&str> {
    findings.iter().map(|finding| finding["code"].as_str().expect("a code")).collect()
}

/// Waits until no file has a write intent, because fsck corrects the size of a file with a write intent instead of
/// reporting it.
fn settled(cluster: &Cluster) {
    while cluster.counter("work", "intents_written") > 0 {}
}

/// Returns the paths of all object files below a directory.
fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
            match (entry.is_dir(), entry.file_name().is_some_and(|name| name.len() == 16)) {
                (true, _) => dirs.push(entry),
                (false, true) => found.push(entry),
                (false, false) => {}
            }
        }
    }
    found
}

#[test]
fn fsck_reports_damage_by_exit_code_and_repairs_it() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("cluster");
    let cluster = Cluster::start(&dir);
    let url = cluster.url.clone();
    cluster.run(["mkdir", "/d"]);
    cluster.put("/d/long", &bytes(1, 300_000), &[]);
    cluster.put("/gone", &bytes(2, 200_000), &[]);
    let inode = |name: &str| cluster.json(["stat", "--json", name])[0]["inode"].as_u64().expect("an inode");
    let (long, gone) = (inode("/d/long"), inode("/gone"));
    let (code, findings, summary) = fsck(&cluster, &[]);
    assert_eq!((code, codes(&findings)), (0, vec![]), "{findings:?}");
    assert!(summary["counts"]["files"].as_u64() >= Some(2) && summary["counts"]["objects"].as_u64() >= Some(2));
    let text = cluster.text(["fsck"]);
    assert!(text.contains("clean"), "{text}");
    settled(&cluster);
    cluster.stop();

    let file_of = |number: u64| {
        let name = format!("{number:016x}");
        let all = objects(&dir);
        all.into_iter().find(|path| path.file_name().is_some_and(|n| n == name.as_str())).expect("an object")
    };
    // Append bytes to one object and remove another object, both without the knowledge of the mgr.
    let mut object = std::fs::File::options().append(true).open(file_of(long)).unwrap();
    std::io::Write::write_all(&mut object, b"more").unwrap();
    drop(object);
    std::fs::remove_file(file_of(gone)).unwrap();

    let cluster = Cluster::start_again(&url, &dir);
    let (code, findings, summary) = fsck(&cluster, &[]);
    let mut found = codes(&findings);
    found.sort_unstable();
    assert_eq!((code, &found[..]), (4, &["object-beyond", "object-missing"][..]), "{findings:?}");
    assert_eq!((summary["left"].as_u64(), summary["repaired"].as_u64()), (Some(2), Some(0)));
    let lost = findings.iter().find(|finding| finding["code"] == "object-missing").unwrap();
    assert_eq!((lost["severity"].as_str(), lost["inode"].as_u64()), (Some("loss"), Some(gone)));
    assert_eq!((lost["paths"][0]["path"].as_str(), lost["range"][1].as_u64()), (Some("/gone"), Some(200_000)));
    let text = String::from_utf8(cluster.weir(["fsck"]).output().unwrap().stdout).unwrap();
    assert!(text.contains("/d/long") && text.contains("2 found, 0 repaired, 2 left"), "{text}");

    // fsck must report the lost object until its file is removed.
    let (code, findings, _) = fsck(&cluster, &["--repair"]);
    assert_eq!(code, 4, "{findings:?}");
    assert!(findings.iter().any(|f| f["code"] == "object-beyond" && f["outcome"] == "repaired"), "{findings:?}");
    assert!(findings.iter().any(|f| f["code"] == "object-missing" && f["outcome"] == "left"), "{findings:?}");
    assert_eq!(cluster.run(["cat", "/d/long"])[300_000..], b"more"[..]);
    cluster.run(["rm", "/gone"]);
    let (code, findings, _) = fsck(&cluster, &[]);
    assert_eq!((code, codes(&findings)), (0, vec![]));

    // Append bytes to the object of /d/long again. This is the only damage, so fsck can repair the file system
    // completely.
    settled(&cluster);
    cluster.stop();
    let mut object = std::fs::File::options().append(true).open(file_of(long)).unwrap();
    std::io::Write::write_all(&mut object, b"and more").unwrap();
    drop(object);
    let cluster = Cluster::start_again(&url, &dir);
    let (code, findings, _) = fsck(&cluster, &["--repair"]);
    assert_eq!((code, codes(&findings)), (1, vec!["object-beyond"]));
    assert_eq!(fsck(&cluster, &["--repair"]).0, 0);
}

#[test]
fn fsck_fails_if_the_mgr_is_unreachable() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = Command::new(WEIR);
    command.args(["fsck", "--connect-timeout", "1", &format!("weir://{nobody}")]);
    let out = command.output().unwrap();
    assert_eq!(out.status.code(), Some(8), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Removes or truncates one object of a file at a time. A read of the file must return the right bytes or an error.
#[test]
fn a_lost_or_truncated_object_does_not_read_as_zeros() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("cluster");
    let mut cluster = Cluster::start_with(&dir, &["--iods", "3"]);
    let url = cluster.url.clone();
    let (first, second) = (bytes(3, 5_000_000), bytes(4, 2_500_000));
    for round in 0..6 {
        let name = format!("/f{round}");
        cluster.put(&name, &first, &[]);
        // In every second round, replace the file by a shorter file. A read of the shorter file must also return the
        // right bytes or an error.
        let content = if round % 2 == 0 { &first } else { &second };
        cluster.put(&name, content, &[]);
        settled(&cluster);
        let inode = cluster.json(["stat", "--json", &name])[0]["inode"].as_u64().expect("an inode");
        cluster.stop();
        let number = format!("{inode:016x}");
        let is_of = |path: &PathBuf| path.file_name().is_some_and(|name| name == number.as_str());
        let mut objects: Vec<_> = objects(&dir).into_iter().filter(is_of).collect();
        objects.sort();
        assert_eq!(objects.len(), 3);
        let object = &objects[round % 3];
        match round < 3 {
            true => std::fs::remove_file(object).unwrap(),
            false => std::fs::File::options().write(true).open(object).unwrap().set_len(4096 + 70_000).unwrap(),
        }
        cluster = Cluster::start_again(&url, &dir);
        let out = cluster.weir(["cat", &name]).output().expect("it runs");
        assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(content.starts_with(&out.stdout), "other bytes than were written");
        let (code, findings, _) = fsck(&cluster, &[]);
        let wanted = if round < 3 { "object-missing" } else { "object-short" };
        assert_eq!((code, codes(&findings)), (4, vec![wanted]), "{findings:?}");
        assert_eq!(findings[0]["paths"][0]["path"], name.as_str());
        cluster.run(["rm", &name]);
        let clean = || fsck(&cluster, &[]).1;
        assert_eq!(clean(), Vec::<Value>::new());
    }
    cluster.stop();
}
