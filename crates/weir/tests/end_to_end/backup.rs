//! Backups (`weir dump`, `weir restore`), and metadata stores that do not match the state of the iods.

use crate::cluster::{WEIR, fail, succeed};
use crate::lab::Lab;
use crate::tree::bytes;
use mgr::ClusterFile;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the path and the content of every file below a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
            match entry.file_type().expect("a kind") {
                kind if kind.is_dir() => dirs.push(entry.path()),
                kind if kind.is_file() => drop(found.insert(entry.path(), fs::read(entry.path()).expect("readable"))),
                _ => {}
            }
        }
    }
    found
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a new directory");
    for (path, content) in contents(from) {
        fs::write(to.join(path.file_name().expect("a name")), content).expect("written");
    }
}

/// Runs `weir fsck` repeatedly until the mgr has connected to its iods. Returns the exit code and the findings.
fn fsck(lab: &Lab) -> (i32, Vec<Value>) {
    loop {
        let out = lab.weir(["fsck", "--json"]).output().expect("it runs");
        let text = String::from_utf8(out.stdout).expect("text");
        let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        lines.pop();
        match out.status.code() {
            // Exit code 8 means that the mgr has not yet connected to its iods again. So repeat the command.
            Some(8) => {}
            code => return (code.expect("an exit code"), lines),
        }
    }
}

fn codes(findings: &[Value]) -> BTreeSet<&str> {
    findings.iter().map(|finding| finding["code"].as_str().expect("a code")).collect()
}

fn inode(lab: &Lab, name: &str) -> u64 {
    lab.json(["stat", "--json", name])[0]["inode"].as_u64().expect("an inode")
}

/// Waits until the mgr has no intents, doomed files and orphans. Until then, the file sizes on the mgr may differ from
/// the sizes on the iods.
fn settled(lab: &Lab) {
    let pending = || {
        let status = lab.json(["status", "--json"]).remove(0);
        let groups = status.as_array().expect("groups").clone();
        let work = groups.iter().find(|group| group["group"] == "work").expect("work")["values"].clone();
        ["intents_written", "doomed", "orphans"].iter().map(|name| work[name].as_u64().expect("a number")).sum::<u64>()
    };
    while pending() > 0 {}
}

/// Builds the command of a second mgr, which uses its own store directory and the iods of the first mgr.
fn other_mgr(lab: &Lab, dir: &Path, cluster_file: &Path, iods: &[String]) -> Command {
    let mut command = Command::new(WEIR);
    command.args(["mgr", "--listen", "127.0.0.1:0", "--dir"]).arg(dir).arg("--cluster-file").arg(cluster_file);
    let own = lab.iods.iter().map(|iod| iod.proxy.address().to_string());
    own.chain(iods.iter().cloned()).for_each(|iod| {
        command.args(["--iod", &iod]);
    });
    command
}

#[test]
fn mkfs_and_mgr_refuse_a_second_metadata_store() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 1);
    let (file, second) = (home.path().join("cluster.toml"), home.path().join("second"));
    let content = bytes(1, 300_000);
    lab.put("/file", &content);
    settled(&lab);
    let mkfs = || {
        let mut command = Command::new(WEIR);
        command.args(["mkfs", "mgr", "--dir"]).arg(&second).arg("--cluster-file").arg(&file);
        command
    };
    let said = fail(&mut mkfs(), 1);
    let store = ClusterFile::load(&file).unwrap().store.expect("mkfs names the store");
    for part in ["already", &store.to_string(), "weir restore", "does not exist yet"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!second.exists());
    lab.mgr.stop();

    // Create a second metadata store without mkfs, as an earlier version of Weir did. The mgr must refuse this store if
    // the cluster file names the first store. If the cluster file names no store, the iods must refuse the second
    // store.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = ClusterFile { store: None, ..ClusterFile::load(&file).unwrap() };
    let made = runtime.block_on(mgr::format(&second, &cluster)).unwrap();
    let before = contents(&home.path().join("iod-0"));
    let said = fail(&mut other_mgr(&lab, &second, &file, &[]), 1);
    assert!(said.contains(&made.to_string()) && said.contains(&store.to_string()), "{said}");
    let unnamed = home.path().join("unnamed.toml");
    let text = fs::read_to_string(&file).unwrap();
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("store")).collect();
    fs::copy(&file, &unnamed).unwrap();
    fs::write(&unnamed, without.join("\n")).unwrap();
    for _ in 0..2 {
        let said = fail(&mut other_mgr(&lab, &second, &unnamed, &[]), 1);
        for part in ["is used by the metadata store", &store.to_string(), &made.to_string(), "nothing was changed"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // The option `--recover-old-store` must not make the iods accept a metadata store other than the recorded one.
        let said = fail(other_mgr(&lab, &second, &unnamed, &[]).arg("--recover-old-store"), 1);
        assert!(said.contains("is used by the metadata store"), "{said}");
    }
    assert!(contents(&home.path().join("iod-0")) == before, "an iod was changed");
    lab.mgr.restart();
    assert!(lab.run(["cat", "/file"]) == content);
    lab.fsck();
}

/// Starts an mgr with an older copy of its store while one iod or both iods are down.
fn start_copy_without_iods(lab: &mut Lab, home: &Path) {
    // The recovery must fail while an iod is down: the recovered mgr must assign only inode numbers above those of all
    // objects, so the mgr needs a reply from every iod.
    lab.iods[1].kill();
    let mut command = other_mgr(lab, &home.join("mgr"), &home.join("cluster.toml"), &[]);
    let said = fail(command.arg("--recover-old-store"), 1);
    assert!(said.contains("needs every iod"), "{said}");
    // While both iods are down, the mgr cannot detect that its store is an older copy, so it must not assign inode
    // numbers. When an iod replies, the mgr must exit.
    lab.iods[0].kill();
    lab.mgr.restart();
    let made = lab.weir(["mkdir", "/early", "--retry-timeout", "1"]).output().unwrap();
    assert!(!made.status.success(), "an object number was allocated");
    lab.iods.iter_mut().for_each(|iod| iod.restart());
    assert_eq!(lab.mgr.wait().code(), Some(1));
    assert!(lab.mgr.said().contains("older copy"), "{}", lab.mgr.said());
}

#[test]
fn the_mgr_refuses_an_older_store_without_recover_old_store() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 2);
    let (dir, backup) = (home.path().join("mgr"), home.path().join("backup"));
    let (kept, late) = (bytes(1, 300_000), bytes(2, 300_000));
    lab.put("/kept", &kept);
    lab.put("/removed", &bytes(3, 200_000));
    let removed = inode(&lab, "/removed");
    settled(&lab);
    lab.mgr.stop();
    copy_dir(&dir, &backup);
    lab.mgr.restart();
    lab.put("/late", &late);
    let unknown = inode(&lab, "/late");
    lab.run(["rm", "/removed"]);
    settled(&lab);
    lab.mgr.stop();

    fs::rename(&dir, home.path().join("newest")).unwrap();
    copy_dir(&backup, &dir);
    let before: Vec<_> = lab.iods.iter().map(|iod| contents(&home.path().join(iod.name()))).collect();
    for _ in 0..3 {
        let said = lab.mgr.fail_to_restart();
        for part in ["older copy", "nothing was changed", "--recover-old-store"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    let after: Vec<_> = lab.iods.iter().map(|iod| contents(&home.path().join(iod.name()))).collect();
    assert!(before == after, "an iod was changed");

    start_copy_without_iods(&mut lab, home.path());

    lab.mgr.restart_with(&["--recover-old-store"]);
    assert!(lab.run(["cat", "/kept"]) == kept);
    lab.put("/new", &bytes(4, 300_000));
    assert!(inode(&lab, "/new") > unknown, "no object number is allocated twice");
    // The mgr must not delete objects that its older store does not know, neither after the recovery nor after a later
    // restart.
    for restarted in [false, true] {
        if restarted {
            settled(&lab);
            lab.mgr.stop();
            lab.mgr.restart();
        }
        let (code, findings) = fsck(&lab);
        assert_eq!((code, codes(&findings)), (4, BTreeSet::from(["object-missing", "object-unknown"])), "{findings:?}");
        for finding in &findings {
            let about = if finding["code"] == "object-missing" { removed } else { unknown };
            assert_eq!(finding["inode"].as_u64(), Some(about), "{finding}");
        }
        assert!(lab.run(["cat", "/new"]) == bytes(4, 300_000));
    }
    let name = format!("{unknown:016x}");
    let objects: Vec<_> = lab.iods.iter().flat_map(|iod| contents(&home.path().join(iod.name()))).collect();
    let object = objects.iter().find(|(path, _)| path.ends_with(&name)).expect("the object of the lost file");
    assert!(object.1[4096..] == late, "the bytes of the object can be read");

    // After the recovery, the mgr must refuse the store that was the newest copy before the recovery, because the
    // recovered store is newer now.
    lab.mgr.stop();
    fs::rename(&dir, home.path().join("recovered")).unwrap();
    fs::rename(home.path().join("newest"), &dir).unwrap();
    assert!(lab.mgr.fail_to_restart().contains("older copy"));
}

#[test]
fn an_offline_dump_restored_elsewhere_needs_no_recovery() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 1);
    let (dir, file, dump) = (home.path().join("mgr"), home.path().join("cluster.toml"), home.path().join("weir.dump"));
    let content = bytes(1, 300_000);
    lab.put("/file", &content);
    settled(&lab);
    let offline = || {
        let mut command = Command::new(WEIR);
        command.arg("dump").arg(&dump).arg("--dir").arg(&dir).arg("--cluster-file").arg(&file);
        command
    };
    assert!(fail(&mut offline(), 1).contains("another mgr is using"));
    assert!(!dump.exists() && !home.path().join("weir.dump.new").exists());
    lab.mgr.stop();
    succeed(&mut offline());
    let mode = fs::metadata(&dump).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);

    let restore = |from: &Path, to: &Path, file: &Path| {
        let mut command = Command::new(WEIR);
        command.arg("restore").arg(from).arg("--dir").arg(to).arg("--cluster-file").arg(file);
        command
    };
    assert!(fail(&mut restore(&dump, &dir, &file), 1).contains("empty"));
    // `weir restore` must verify the checksums of the whole dump before it creates a file.
    let (damaged, elsewhere) = (home.path().join("damaged"), home.path().join("elsewhere"));
    let good = fs::read(&dump).unwrap();
    let middle = good.len() / 2;
    let mut flipped = good.clone();
    flipped[middle] ^= 1;
    for bad in [&flipped[..], &good[..middle], &good[..good.len() - 1], b"", &[&good[..], b"x"].concat()] {
        fs::write(&damaged, bad).unwrap();
        let said = fail(&mut restore(&damaged, &elsewhere, &file), 1);
        assert!(said.contains("nothing was restored") && !elsewhere.exists(), "{said}");
    }
    let other = home.path().join("other.toml");
    ClusterFile::create(&other).unwrap();
    assert!(fail(&mut restore(&dump, &elsewhere, &other), 1).contains("is of file system"));
    fs::rename(&dir, home.path().join("old")).unwrap();
    let told: Value = serde_json::from_slice(&succeed(restore(&dump, &dir, &file).arg("--json"))).unwrap();
    assert!(told["records"].as_u64() > Some(3), "{told}");
    lab.mgr.restart();
    assert!(lab.run(["cat", "/file"]) == content);
    lab.fsck();
    // An mgr has used the restored store. From now on, the mgr must refuse the old store directory as an older copy.
    lab.mgr.stop();
    fs::rename(&dir, home.path().join("moved")).unwrap();
    fs::rename(home.path().join("old"), &dir).unwrap();
    assert!(lab.mgr.fail_to_restart().contains("older copy"));
}

/// Returns the path and size of every file, by inode number. Every file that `weir cp` has copied has objects, unless
/// it is empty.
fn files(lab: &Lab) -> BTreeMap<u64, (String, u64)> {
    let found = lab.json(["find", "/", "--type", "f", "--json"]);
    let number = |file: &Value, name: &str| file[name].as_u64().expect("a number");
    let path = |file: &Value| file["path"].as_str().expect("a path").to_owned();
    found.iter().map(|file| (number(file, "inode"), (path(file), number(file, "size")))).collect()
}

/// Copies a local tree into Weir with `weir cp`.
fn copy(lab: &Lab, from: &Path, to: &str) {
    lab.run([OsStr::new("cp"), "--quiet".as_ref(), "-r".as_ref(), from.as_ref(), to.as_ref()]);
}

fn make_files(top: &Path, count: u64) {
    for n in 0..count {
        let dir = top.join((n / 100).to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("file {n}")), bytes(n, if n % 10 == 0 { 9000 } else { 500 })).unwrap();
    }
}

/// Takes a dump while a thread copies and removes trees before, during and after the dump. Returns the number of
/// records in the dump.
fn dump_while_changing(lab: &Lab, moving: &Path, dump: &Path) -> u64 {
    let (stop, rounds) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut told = Value::Null;
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for round in 0.. {
                let name = format!("/moving {round}");
                copy(lab, moving, &format!("weir:{name}"));
                if round % 2 == 0 {
                    lab.run(["rm", "-r", &name]);
                }
                rounds.store(true, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        while !rounds.load(Ordering::SeqCst) {
            assert!(!changing.is_finished());
            std::thread::yield_now();
        }
        told = lab.json([OsStr::new("dump"), dump.as_ref(), "--json".as_ref()]).remove(0);
        rounds.store(false, Ordering::SeqCst);
        while !rounds.load(Ordering::SeqCst) {
            assert!(!changing.is_finished());
            std::thread::yield_now();
        }
        stop.store(true, Ordering::SeqCst);
    });
    told["records"].as_u64().expect("a number")
}

/// Asserts the findings of `weir fsck` after a restore. The objects of files that were created after the dump are
/// unknown to the mgr, and the objects of files that were removed after the dump are missing.
fn assert_fsck_reports_the_changes(
    lab: &Lab,
    newest: &BTreeMap<u64, (String, u64)>,
    restored: &BTreeMap<u64, (String, u64)>,
) {
    let (code, findings) = fsck(lab);
    let named = |code: &str| -> BTreeSet<u64> {
        let found = findings.iter().filter(|finding| finding["code"] == code);
        found.filter_map(|finding| finding["inode"].as_u64()).collect()
    };
    assert_eq!(codes(&findings), BTreeSet::from(["object-missing", "object-unknown"]), "{findings:?}");
    assert_eq!(code, 4);
    let made = newest.keys().filter(|inode| !restored.contains_key(inode)).copied().collect();
    assert_eq!(named("object-unknown"), made);
    // A file can be empty in the dump because a copy was writing it when the dump was made. Such a file has lost no
    // data, so fsck does not report it.
    let full = restored.iter().filter(|(_, (_, size))| *size > 0).map(|(inode, _)| *inode);
    assert_eq!(named("object-missing"), full.filter(|inode| !newest.contains_key(inode)).collect());
}

#[test]
fn fsck_after_a_restore_reports_what_changed_since_the_dump() {
    let count = if std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full") { 20_000 } else { 3000 };
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 2);
    let (still, moving, dump) = (home.path().join("still"), home.path().join("moving"), home.path().join("weir.dump"));
    make_files(&still, count);
    make_files(&moving, 100);
    copy(&lab, &still, "weir:/still");
    copy(&lab, &moving, "weir:/before");
    let records = dump_while_changing(&lab, &moving, &dump);
    assert!(records > 3 * count, "{records}");
    copy(&lab, &moving, "weir:/after");
    lab.run(["rm", "-r", "/before"]);
    settled(&lab);
    let newest = files(&lab);
    lab.mgr.stop();

    let dir = home.path().join("mgr");
    fs::rename(&dir, home.path().join("lost")).unwrap();
    let file = home.path().join("cluster.toml");
    succeed(Command::new(WEIR).arg("restore").arg(&dump).arg("--dir").arg(&dir).arg("--cluster-file").arg(&file));
    assert!(lab.mgr.args().contains(&dir.to_str().unwrap().to_owned()));
    assert!(lab.mgr.fail_to_restart().contains("older copy"));
    lab.mgr.restart_with(&["--recover-old-store"]);
    let restored = files(&lab);
    let back = home.path().join("back");
    lab.run([OsStr::new("cp"), "--quiet".as_ref(), "-r".as_ref(), "weir:/still".as_ref(), back.as_ref()]);
    let relative = |top: &Path| -> BTreeMap<PathBuf, Vec<u8>> {
        let all = contents(top).into_iter();
        all.map(|(path, content)| (path.strip_prefix(top).expect("below").to_owned(), content)).collect()
    };
    assert!(relative(&still) == relative(&back), "the tree is unchanged");
    assert!(!restored.values().any(|(path, _)| path.starts_with("/after")));
    settled(&lab);
    assert_fsck_reports_the_changes(&lab, &newest, &restored);
}
