//! Tests of administration: status, error messages, logs, mounts, exports, and common option spellings.

use crate::cluster::{Cluster, WEIR, fail, signal, succeed};
use crate::lab::Lab;
use crate::tree::bytes;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

fn weir(args: &[&str]) -> Command {
    let mut command = Command::new(WEIR);
    command.args(args).env_remove("WEIR_URL");
    command
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Runs a command repeatedly until its exit code is `code`. Returns the standard output and standard error of the last
/// run.
fn run_until_exit_code(command: impl Fn() -> Command, code: i32) -> (String, String) {
    loop {
        let output = command().output().unwrap();
        if output.status.code() == Some(code) {
            return (text(&output.stdout), text(&output.stderr));
        }
    }
}

#[test]
fn status_reports_an_iod_that_is_down() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 2);
    let said = text(&lab.run(["status"]));
    assert!(said.starts_with("health    healthy\n") && said.lines().count() <= 10, "{said}");
    assert!(said.contains("2 of 2 up") && said.contains("nothing pending"), "{said}");
    let all = text(&lab.run(["status", "-v"]));
    assert!(all.starts_with(&said[..20]) && all.contains("requests.read") && all.lines().count() > 50, "{all}");
    let address = lab.iods[1].proxy.address().to_string();
    lab.iods[1].kill();
    let (said, _) = run_until_exit_code(|| lab.weir(["status"]), 1);
    assert!(said.starts_with("health    degraded\n") && said.contains("1 of 2 up"), "{said}");
    assert!(said.lines().any(|line| line.contains("problem") && line.contains(&address)), "{said}");
    let (json, _) = run_until_exit_code(|| lab.weir(["status", "--json"]), 1);
    let groups: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(groups[0]["group"], "health");
    assert_eq!(groups[0]["values"]["verdict"], "degraded");
    lab.iods[1].restart();
    run_until_exit_code(|| lab.weir(["status"]), 0);
    // The mgr can reply to `weir status` before its log file contains the lines about the iods, so wait for these
    // lines.
    let said = loop {
        let said = lab.mgr.said();
        if said.matches("iod is up").count() >= 3 {
            break said;
        }
        std::thread::yield_now();
    };
    assert!(said.contains("iod is down") && said.matches("iod is up").count() == 3, "{said}");
}

#[test]
fn an_error_names_the_unreachable_iod() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start_with(home.path(), 1, &["--inline-max", "0"]);
    lab.put("/file", &bytes(1, 100_000));
    let iod = lab.json(["stat", "--json", "/file"])[0]["placement"]["objects"][0]["iod"].as_str().unwrap().to_owned();
    lab.iods[0].kill();
    let said = fail(&mut lab.weir(["cat", "--connect-timeout", "4", "--retry-timeout", "4", "/file"]), 1);
    assert!(said.contains(&format!("waiting for iod {iod} at ")) && said.contains("trying for up to 4 s"), "{said}");
    assert!(said.contains("weir status") && !said.contains("weir up"), "{said}");
    lab.iods[0].restart();
}

#[test]
fn commands_fail_for_missing_paths() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.run(["mkdir", "/dir"]);
    for command in ["df", "status", "fsck", "scrub"] {
        let said = fail(&mut cluster.weir([command, "/nowhere"]), 1);
        assert!(said.contains("nowhere") && said.contains("no such file"), "{command}: {said}");
        cluster.run([command, "/dir"]);
    }
    let said = fail(&mut cluster.weir(["mkdir"]), 2);
    assert!(said.contains("Usage:") && !said.contains("--url"), "{said}");
    cluster.stop();
}

#[test]
fn options_of_coreutils_are_accepted() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&home.path().join("up"));
    let tree = home.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), b"12345").unwrap();
    cluster.run(["cp", "-p", "-R", "-f", tree.to_str().unwrap(), "weir:/"]);
    let listed = cluster.text(["ls", "-lh", "/"]);
    assert!(listed.contains(" - ") && !listed.contains(" B "), "{listed}");
    assert!(cluster.text(["ls", "-lh", "/tree"]).contains("5 B"));
    assert!(cluster.text(["du", "-sh", "/tree"]).contains("/tree"));
    assert!(cluster.text(["df", "-h"]).contains("available"));
    assert!(cluster.text(["stat", "/tree"]).contains("directory, 1 names"));
    for command in ["ls", "du", "df"] {
        assert!(text(&succeed(&mut weir(&[command, "--help"]))).contains("Examples:"));
    }
    cluster.stop();
}

#[test]
fn cp_names_the_failed_path_and_refuses_to_copy_into_itself() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&home.path().join("up"));
    cluster.run(["mkdir", "-p", "/tree/below"]);
    cluster.put("/tree/file", b"content", &[]);
    for to in ["weir:/tree", "weir:/tree/below", "weir:/tree/new"] {
        let said = fail(&mut cluster.weir(["cp", "-r", "weir:/tree", to]), 1);
        assert!(said.contains("into itself"), "{to}: {said}");
    }
    fail(&mut cluster.weir(["cp", "-r", "weir:/tree/.", "weir:/tree/below"]), 1);
    assert_eq!(cluster.json(["find", "--json", "/tree"]).len(), 3, "nothing was copied");
    cluster.run(["cp", "-r", "weir:/tree", "weir:/tree2"]);
    // The destination already has a directory with the name of the file to copy. The error message must name this
    // directory.
    let target = home.path().join("target");
    std::fs::create_dir_all(target.join("file/in the way")).unwrap();
    let said = fail(&mut cluster.weir(["cp", "weir:/tree/file", target.to_str().unwrap()]), 1);
    let named = target.join("file").to_str().unwrap().to_owned();
    assert!(said.contains(&named) && !said.contains(".weir-cp-"), "{said}");
    cluster.run(["mkdir", "/taken"]);
    let local = home.path().join("taken");
    std::fs::write(&local, b"x").unwrap();
    let said = fail(&mut cluster.weir(["cp", "-T", local.to_str().unwrap(), "weir:/taken"]), 1);
    assert!(said.contains("weir cp: /taken: ") && !said.contains(".weir-cp-"), "{said}");
    cluster.stop();
}

#[test]
fn stat_shows_the_copies_of_a_mirrored_file() {
    let home = tempfile::tempdir().unwrap();
    let lab = Lab::start_with(home.path(), 2, &["--mirrors", "2", "--inline-max", "0"]);
    lab.put("/file", &bytes(1, 10_000));
    let said = text(&lab.run(["stat", "/file"]));
    for iod in &lab.iods {
        assert!(said.contains(&format!("at {}, up", iod.proxy.address())), "{said}");
    }
    let copies = lab.json(["stat", "--json", "/file"])[0]["copies"].as_array().unwrap().len();
    assert!(copies >= 2, "{copies}");
}

/// Replaces the lost store of an iod by an empty store with the same identity. The mgr then rebuilds the second copies
/// of the mirrored files.
#[test]
fn a_replaced_iod_gets_its_copies_of_mirrored_files_again() {
    let full = std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let files = if full { 5000 } else { 500 };
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start_with(home.path(), 2, &["--mirrors", "2", "--inline-max", "0", "--lease-secs", "20"]);
    let tree = home.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("long"), bytes(1, 3_000_000)).unwrap();
    (0..files).for_each(|i| std::fs::write(tree.join(format!("{i}")), bytes(i, 100 + i as usize % 7)).unwrap());
    lab.run(["cp", "-r", tree.to_str().unwrap(), "weir:/tree"]);
    let address = lab.iods[1].proxy.address().to_string();
    let placement = lab.json(["stat", "--json", "/tree/long"])[0]["copies"].clone();
    let copies = placement.as_array().unwrap().iter();
    let lost = copies.clone().find(|copy| copy["address"] == address.as_str()).expect("a copy there");
    let lost = lost["iod"].as_str().unwrap().to_owned();

    lab.iods[1].kill();
    let dir = home.path().join("iod-1");
    std::fs::remove_dir_all(&dir).unwrap();
    let cluster_file = home.path().join("cluster.toml");
    let mkfs = |identity: &str| {
        let place = ["mkfs", "iod", "--dir", dir.to_str().unwrap(), "--cluster-file", cluster_file.to_str().unwrap()];
        weir(&[&place[..], &["--replace", identity]].concat())
    };
    let said = fail(&mut mkfs("iod-1"), 2);
    assert!(said.contains("--replace"), "{said}");
    let said = text(&succeed(&mut mkfs(&lost)));
    assert!(said.contains(&lost), "{said}");
    lab.iods[1].restart();
    let number = |group: &str, name: &str| {
        // Ignore the exit code of `weir status`, because the cluster is degraded until the mgr has rebuilt all copies.
        let said = lab.weir(["status", "--json"]).output().unwrap().stdout;
        let groups: Vec<serde_json::Value> = serde_json::from_slice(&said).unwrap();
        let values = groups.iter().find(|found| found["group"] == group).unwrap()["values"].clone();
        values[name].as_u64()
    };
    while number("counters", "copies_rebuilt") < Some(files + 1) || number("work", "copies_to_make") != Some(0) {}
    lab.fsck();
    let log = lab.mgr.said();
    assert!(log.contains("rebuilt the copy of an object"), "{log}");

    // Stop the iod that kept its store, so that all data come from the rebuilt copies: these copies must be complete.
    lab.iods[0].kill();
    let back = home.path().join("back");
    lab.run(["cp", "-r", "weir:/tree", back.to_str().unwrap()]);
    crate::tree::assert_same(&tree, &back);
    lab.iods[0].restart();
    lab.fsck();
}

#[test]
fn mkfs_needs_an_empty_directory_and_prints_a_configuration() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let mkfs = |what: &str, dir: &str, more: &[&str]| {
        weir(&[&["mkfs", what, "--dir", &path(dir), "--cluster-file", &path("cluster.toml")], more].concat())
    };
    std::fs::create_dir(path("mgr")).unwrap();
    std::fs::write(home.path().join("mgr/notes"), b"mine").unwrap();
    let said = fail(&mut mkfs("mgr", "mgr", &[]), 1);
    assert!(said.contains("contains notes") && !Path::new(&path("cluster.toml")).exists(), "{said}");
    std::fs::remove_file(home.path().join("mgr/notes")).unwrap();
    succeed(&mut mkfs("mgr", "mgr", &[]));
    for (name, port) in [("iod-a", 2050), ("iod-b", 2051)] {
        succeed(&mut mkfs("iod", name, &[]));
        let file = text(&succeed(&mut mkfs("iod", name, &["--print-config"])));
        let listen = format!("listen = [\"{}:{port}\"]", "127.0.0.1");
        std::fs::write(path(&format!("{name}.toml")), file.replace("#listen = [\"0.0.0.0:2050\"]", &listen)).unwrap();
    }
    let file = text(&succeed(&mut mkfs("mgr", "mgr", &["--print-config"])));
    assert!(file.contains("lease_secs = 90") && file.contains(&path("mgr")), "{file}");
    let said = fail(&mut weir(&["iod", "--config", &path("iod-a.toml"), "--congestion", "foo"]), 2);
    assert!(said.contains("foo"), "{said}");
}

/// With the export options from the documentation, the mgr squashes root on other machines. Root on the mgr's own
/// machine must still be able to run administration commands.
#[test]
fn root_on_the_mgr_machine_may_administer_despite_exports() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: needs root");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let exports =
        ["--export", "/home,clients=10.1.0.0/16,squash=root", "--export", "/public,access=ro,kernel_layout=none"];
    let mgr = |exports: &[&str]| Lab::start_with(&home.path().join("fs"), 1, exports);
    std::fs::create_dir(home.path().join("fs")).unwrap();
    let lab = mgr(&[]);
    lab.run(["mkdir", "/home", "/public"]);
    drop(lab);
    let mut lab = mgr(&exports);
    // Run these commands with the mgr's own address, because the mgr refuses administration commands that arrive
    // through the proxy in front of it.
    let address = lab.mgr.address();
    let direct = |args: &[&str]| {
        let mut command = weir(args);
        command.env("WEIR_URL", format!("weir://{address}"));
        command
    };
    run_until_exit_code(|| direct(&["fsck"]), 0);
    succeed(&mut direct(&["scrub"]));
    let said = fail(&mut lab.weir(["scrub"]), 1);
    assert!(said.contains("root on the machine of the mgr"), "{said}");
    lab.mgr.kill();
}

#[test]
fn daemons_log_start_signals_and_stop() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 1);
    for daemon in lab.daemons() {
        assert!(daemon.said().contains("started"), "{}: {}", daemon.name(), daemon.said());
        signal(daemon.child(), Signal::HUP);
        while !daemon.said().contains("SIGHUP: nothing is reloaded") {
            assert!(daemon.child().try_wait().unwrap().is_none(), "{} goes on", daemon.name());
        }
        signal(daemon.child(), Signal::TERM);
        assert!(daemon.wait().success());
        let said = daemon.said();
        assert!(said.contains("SIGTERM") && said.contains("stopped") && said.contains('Z'), "{said}");
    }
}

#[test]
fn verbose_commands_log_connections_and_requests() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(&home.path().join("up"), &["--iods", "1"]);
    cluster.run(["mkdir", "/dir"]);
    cluster.put("/file", b"content", &[]);
    let (dump, copy) = (home.path().join("dump"), home.path().join("copy"));
    let (dump, copy) = (dump.to_str().unwrap(), copy.to_str().unwrap());
    // The test runs each command first with `-v` and then with `-vv`. So a command must not remove or move a file that
    // its second run needs.
    let commands: &[&[&str]] = &[
        &["ls", "/"],
        &["stat", "/file"],
        &["find", "/"],
        &["du", "/"],
        &["df"],
        &["status"],
        &["fsck"],
        &["scrub"],
        &["cat", "/file"],
        &["get", "/file"],
        &["put", "/new"],
        &["cp", "weir:/file", copy],
        &["mkdir", "-p", "/dir/below"],
        &["ln", "-s", "file", "/link"],
        &["mv", "/file", "/file"],
        &["policy", "show", "/dir"],
        &["dump", dump],
        &["rm", "-r", "-f", "/dir"],
    ];
    for args in commands {
        let said = |more: &str| text(&cluster.weir(args.iter().chain(&[more])).output().unwrap().stderr);
        let (what, requests) = (said("-v"), said("-vv"));
        assert!(what.contains("connected to an mgr") && !what.contains("request"), "{args:?}: {what}");
        assert!(requests.contains("request"), "{args:?}: {requests}");
    }
    cluster.stop();
}

#[test]
fn a_mount_over_the_stores_or_another_mount_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("srv/weir");
    std::fs::create_dir_all(&dir).unwrap();
    let up = |mount: &Path| {
        let mut command = weir(&["up", "--listen", "127.0.0.1:0", "--dir"]);
        command.arg(&dir).arg("--mount").arg(mount);
        command
    };
    for above in [home.path().join("srv"), dir.clone(), home.path().join("srv/../srv"), dir.join("cluster/iod-0")] {
        let said = fail(&mut up(&above), 2);
        assert!(said.contains("would hide"), "{said}");
    }
    assert!(std::fs::read_dir(&dir).unwrap().next().is_none(), "a refused command has created something");
    let at = home.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let cluster = Cluster::start(&dir);
    if !rustix::process::geteuid().is_root() || !cluster.weir(["mount", "/"]).arg(&at).status().unwrap().success() {
        eprintln!("NOT TESTED: cannot mount here");
        return;
    }
    let said = fail(cluster.weir(["mount", "/"]).arg(&at), 1);
    assert!(said.contains("is already mounted there") && said.contains("weir umount"), "{said}");
    succeed(cluster.weir(["mount", "/", "-o", "over,hard,connect_timeout=5"]).arg(&at));
    succeed(cluster.weir(["umount"]).arg(&at));
    // Start a process whose own mount namespace has a copy of the mount. `weir umount` must report that this copy stays
    // mounted.
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", "echo; read x"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0];
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut line).unwrap();
    let output = cluster.weir(["umount"]).arg(&at).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("stays mounted in the mount namespace of process"), "{said}");
    drop(other.stdin.take());
    other.wait().unwrap();
    cluster.stop();
}
