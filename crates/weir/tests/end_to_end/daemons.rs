//! Tests of an mgr and iods that run as separate processes: `weir mkfs` makes their stores, and files and options
//! configure them.

use crate::cluster::{Cluster, WEIR, fail, signal, start, start_logged, succeed};
use crate::lab::Lab;
use crate::tree::bytes;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::process::Command;

#[test]
fn an_mgr_and_two_iods_run_as_separate_processes() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let cluster_file = path("cluster.toml");
    let mkfs = |what: &str, dir: &str| {
        let mut command = Command::new(WEIR);
        command.args(["mkfs", what, "--dir", &path(dir), "--cluster-file", &cluster_file]);
        command
    };
    fail(&mut mkfs("iod", "too-early"), 1);
    succeed(&mut mkfs("mgr", "mgr"));
    let mode = std::fs::metadata(&cluster_file).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    succeed(&mut mkfs("iod", "iod-a"));
    succeed(&mut mkfs("iod", "iod-b"));
    // `weir mkfs` must refuse a directory that already has a store.
    fail(&mut mkfs("mgr", "mgr"), 1);
    fail(&mut mkfs("iod", "iod-a"), 1);

    let file = path("iod-a.toml");
    let text = format!(
        "dir = {:?}\ncluster_file = {cluster_file:?}\nlisten = [\"127.0.0.1:0\"]\nunix = false\n",
        path("iod-a")
    );
    std::fs::write(&file, text).unwrap();
    let os = |args: &[&str]| args.iter().map(|a| a.to_string()).collect::<Vec<_>>();
    let run = |args: Vec<String>| start(&args.iter().map(OsStr::new).collect::<Vec<_>>());
    let (mut iod_a, ready_a) = run(os(&["iod", "--config", &file]));
    let (mut iod_b, ready_b) =
        run(os(&["iod", "--dir", &path("iod-b"), "--cluster-file", &cluster_file, "--listen", "127.0.0.1:0"]));
    let address = |ready: &serde_json::Value| ready["addresses"][0].as_str().unwrap().to_owned();
    let ready_file = path("ready");
    let (mut mgr, ready) = run(os(&[
        "mgr",
        "--dir",
        &path("mgr"),
        "--cluster-file",
        &cluster_file,
        "--listen",
        "127.0.0.1:0",
        "--iod",
        &address(&ready_a),
        "--iod",
        &address(&ready_b),
        "--stripe-unit",
        "128K",
        "--ready-file",
        &ready_file,
    ]));
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&ready_file).unwrap()).unwrap();
    assert_eq!(written, ready);
    let url = ready["url"].as_str().unwrap();
    let source = path("data");
    std::fs::write(&source, crate::tree::bytes(1, 1_000_000)).unwrap();
    let weir = |args: &[&str]| succeed(Command::new(WEIR).args(args).env("WEIR_URL", url));
    weir(&["cp", "--quiet", &source, "weir:/data"]);
    assert!(weir(&["cat", "/data"]) == crate::tree::bytes(1, 1_000_000));
    let stat: serde_json::Value = serde_json::from_slice(&weir(&["stat", "--json", "/data"])).unwrap();
    assert_eq!(stat["placement"]["stripe_unit"], 128 << 10);
    assert_eq!(stat["placement"]["objects"].as_array().unwrap().len(), 2);
    let status: serde_json::Value = serde_json::from_slice(&weir(&["status", "--json"])).unwrap();
    assert_eq!(status.as_array().unwrap().iter().filter(|group| group["group"] == "iod").count(), 2, "{status}");
    assert!(String::from_utf8(weir(&["status", "-v"])).unwrap().contains(&address(&ready_a)));
    for child in [&mut mgr, &mut iod_a, &mut iod_b] {
        signal(child, rustix::process::Signal::TERM);
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn daemons_exit_cleanly_on_sigterm_and_keep_all_data() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 2);
    let content = bytes(3, 5_000_000);
    lab.put("/file", &content);
    for _ in 0..2 {
        for daemon in lab.daemons() {
            signal(daemon.child(), Signal::TERM);
            assert!(daemon.child().wait().unwrap().success(), "{}: {}", daemon.name(), daemon.said());
            assert!(!daemon.said().contains("ERROR"), "{}: {}", daemon.name(), daemon.said());
        }
        lab.daemons().for_each(|daemon| daemon.restart());
        assert!(lab.run(["cat", "/file"]) == content);
    }
}

#[test]
fn a_killed_cluster_restarts_with_stale_sockets_in_place() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    let content = bytes(4, 5_000_000);
    cluster.put("/file", &content, &[]);
    let url = cluster.url.clone();
    cluster.kill();
    // After the daemons are killed, their socket files still exist, but no process listens on them.
    let sockets = || (0..4).filter(|i| home.path().join(format!("cluster/iod-{i}/iod.sock")).exists()).count();
    assert_eq!(sockets(), 4);
    for _ in 0..2 {
        let cluster = Cluster::start_again(&url, home.path());
        assert!(cluster.run(["cat", "/file"]) == content);
        assert_eq!(cluster.proxied_bytes(), 0);
        cluster.kill();
    }
    Cluster::start_again(&url, home.path()).stop();
    assert_eq!(sockets(), 0, "a stopped cluster removes its sockets");
}

/// The kernel needs time to end a killed daemon. A service manager may start the next daemon before this end. So the
/// next daemon must wait until the killed daemon has released the store.
#[test]
fn a_new_daemon_waits_until_the_old_one_releases_the_store() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(home.path(), 2);
    let content = bytes(5, 5_000_000);
    lab.put("/file", &content);
    lab.iods[0].replace();
    lab.mgr.replace();
    assert!(lab.run(["cat", "/file"]) == content);
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = succeed(Command::new(WEIR).args(["completions", shell]));
        assert!(String::from_utf8(script).unwrap().contains("policy"), "{shell}");
    }
}

#[test]
fn every_command_has_help_with_examples() {
    let help = String::from_utf8(succeed(Command::new(WEIR).arg("--help"))).unwrap();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> =
        commands.filter_map(|line| line.split_whitespace().next()).filter(|n| *n != "help").collect();
    assert!(names.len() >= 19, "{names:?}");
    for name in names {
        let text = String::from_utf8(succeed(Command::new(WEIR).args([name, "--help"]))).unwrap();
        assert!(text.contains("Examples:"), "{name} has no examples: {text}");
    }
}

/// With few ephemeral ports, an iod of a restarted cluster could take the port of the mgr. So `weir up` must bind the
/// mgr's port first.
#[test]
fn a_restarted_cluster_gets_the_same_mgr_port() {
    let home = tempfile::tempdir().unwrap();
    let script = "ip link set lo up && echo 40001 40064 > /proc/sys/net/ipv4/ip_local_port_range || exit 9
        exec \"$@\"";
    let run = |listen: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", script, "sh", WEIR, "up", "--listen", listen, "--dir"]).arg(home.path());
        start_logged(&mut command)
    };
    if !Command::new("unshare").args(["--net", "ip", "link"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("NOT TESTED: network namespaces need root, unshare(1) and ip(8)");
        return;
    }
    let (mut child, told) = run("127.0.0.1:0");
    let url = told["url"].as_str().unwrap().to_owned();
    for _ in 0..20 {
        child.kill().unwrap();
        child.wait().unwrap();
        let told;
        (child, told) = run(url.trim_start_matches("weir://").trim_end_matches('/'));
        assert_eq!(told["url"], url);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
