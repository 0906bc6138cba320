//! Errors for bad input: each message must say what is wrong and what to do, and no data may be lost.

use crate::cluster::{Cluster, WEIR, fail, start};
use crate::disks::Mounted;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn weir<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(WEIR);
    command.args(args).env_remove("WEIR_URL");
    command
}

fn up(dir: &Path) -> Command {
    let mut command = weir(&["up", "--listen", "127.0.0.1:0", "--dir"]);
    command.arg(dir);
    command
}

#[test]
fn bad_urls_and_unreachable_servers_give_helpful_errors() {
    for (args, code, parts) in [
        (vec!["ls"], 2, ["WEIR_URL", "weir up"]),
        (vec!["ls", "weir://"], 2, ["host", "weir://host[:port]/path"]),
        (vec!["ls", "weir://h:0/"], 2, ["port", "weir://host[:port]/path"]),
        (vec!["ls", "http://h/"], 2, ["WEIR_URL", "weir://host"]),
        (vec!["ls", "--url", "h", "/"], 2, ["weir://", "WEIR_URL"]),
        (vec!["cp", "a", "b"], 2, ["both names are local", "weir://host/path"]),
        (vec!["cp", "a", "weir:/b"], 2, ["the file system is not given", "WEIR_URL"]),
        (vec!["ls", "weir://127.0.0.1:1/"], 3, ["127.0.0.1:1", "weir up"]),
        (vec!["status", "weir://127.0.0.1:1/"], 3, ["127.0.0.1:1", "weir up"]),
        (vec!["df", "weir://no-such-host.invalid/"], 3, ["no-such-host.invalid", "WEIR_URL"]),
        (vec!["cp", "/etc/hostname", "weir://127.0.0.1:1/x"], 3, ["127.0.0.1:1", "weir up"]),
    ] {
        let said = fail(&mut weir(&args), code);
        assert!(parts.iter().all(|part| said.contains(part)), "{args:?}: {said}");
        assert!(said.lines().count() <= 3, "{said}");
    }
}

#[test]
fn a_server_of_another_protocol_gives_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("weir://{}/", listener.local_addr().unwrap());
    let greeter = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut first = [0];
            let read = std::io::Read::read(&mut stream, &mut first);
            if matches!(read, Ok(1)) && first == *b"q" {
                return;
            }
            // Ignore errors: the client may already have closed the connection after the invalid reply.
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let said = fail(&mut weir(&["ls", "--connect-timeout", "2", "--retry-timeout", "2", &url]), 3);
    assert!(said.contains("127.0.0.1"), "{said}");
    let address = url.trim_start_matches("weir://").trim_end_matches('/').to_owned();
    std::io::Write::write_all(&mut std::net::TcpStream::connect(address).unwrap(), b"q").unwrap();
    greeter.join().unwrap();
}

#[test]
fn directories_without_a_usable_store_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let occupied = home.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    std::fs::write(occupied.join("letter"), "dear").unwrap();
    let said = fail(&mut up(&occupied), 1);
    assert!(said.contains("letter") && said.contains("--dir"), "{said}");
    assert_eq!(std::fs::read(occupied.join("letter")).unwrap(), b"dear");
    let said = fail(&mut up(&occupied.join("letter")), 1);
    assert!(said.contains("letter"), "{said}");
    // No user can create a directory in `/proc`, not even root, so this start must fail.
    let said = fail(&mut up(Path::new("/proc/weir")), 1);
    assert!(said.contains("/proc/weir"), "{said}");
    for args in [["mgr", "--dir"], ["iod", "--dir"]] {
        let cluster_file = home.path().join("cluster.toml");
        let mut command = weir(&args);
        command.arg(home.path().join("missing")).arg("--cluster-file").arg(&cluster_file);
        command.args(if args[0] == "mgr" { vec!["--iod", "127.0.0.1:1"] } else { vec![] });
        let said = fail(&mut command, 1);
        assert!(said.contains("weir mkfs"), "{said}");
    }
}

#[test]
fn up_starts_after_an_interrupted_first_start() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join(".forming/mgr")).unwrap();
    let cluster = Cluster::start(home.path());
    cluster.put("/x", b"x", &[]);
    cluster.stop();
    assert!(!home.path().join(".forming").exists());
}

#[test]
fn stores_of_another_format_are_refused_and_unchanged() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.put("/x", b"kept", &[]);
    cluster.stop();
    let damage = |name: &str, from: &str, to: &str| {
        let path = home.path().join("cluster").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(from, to)).unwrap();
    };
    damage("up.toml", "format = 1", "format = 2");
    let said = fail(&mut up(home.path()), 1);
    assert!(said.contains("format version 2") && said.contains("version"), "{said}");
    damage("up.toml", "format = 2", "format = 1\ncolour = 3");
    let said = fail(&mut up(home.path()), 2);
    assert!(said.contains("colour") && said.contains("iods"), "{said}");
    damage("up.toml", "\ncolour = 3", "");
    std::fs::set_permissions(home.path().join("cluster/cluster.toml"), PermissionsExt::from_mode(0o644)).unwrap();
    let said = fail(&mut up(home.path()), 1);
    assert!(said.contains("chmod 600"), "{said}");
    std::fs::set_permissions(home.path().join("cluster/cluster.toml"), PermissionsExt::from_mode(0o600)).unwrap();
    let iod_format = home.path().join("cluster/iod-0/FORMAT");
    let mut bytes = std::fs::read(&iod_format).unwrap();
    let good = bytes.clone();
    bytes[11] = 9;
    std::fs::write(&iod_format, &bytes).unwrap();
    let said = fail(&mut up(home.path()), 1);
    assert!(said.contains("version 9") || said.contains("damaged"), "{said}");
    std::fs::write(&iod_format, &good).unwrap();
    let said = fail(up(home.path()).args(["--iods", "7"]), 2);
    assert!(said.contains("4 iods") && said.contains("--iods"), "{said}");
    let cluster = Cluster::start(home.path());
    assert_eq!(cluster.run(["cat", "/x"]), b"kept");
    cluster.stop();
}

#[test]
fn a_directory_or_address_in_use_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    let said = fail(&mut up(home.path()), 1);
    assert!(said.contains("in use") && said.contains("--dir"), "{said}");
    let address = cluster.url.trim_start_matches("weir://").trim_end_matches('/').to_owned();
    let other = tempfile::tempdir().unwrap();
    let mut command = weir(&["up", "--listen", &address, "--dir"]);
    let said = fail(command.arg(other.path()), 1);
    assert!(said.contains(&address) && said.contains("Try --listen"), "{said}");
    let mut command = weir(&["mgr", "--listen", "127.0.0.1:0", "--iod", "127.0.0.1:1", "--dir"]);
    command.arg(home.path().join("cluster/mgr")).arg("--cluster-file").arg(home.path().join("cluster/cluster.toml"));
    let said = fail(&mut command, 1);
    assert!(said.contains("another"), "{said}");
    cluster.put("/x", b"x", &[]);
    assert_eq!(cluster.run(["cat", "/x"]), b"x");
    let said = fail(&mut weir(&["up", "--listen", "0.0.0.0:1"]), 2);
    assert!(said.contains("--listen"), "{said}");
    cluster.stop();
}

#[test]
fn cp_to_a_full_disk_fails_and_leaves_no_partial_file() {
    let home = tempfile::tempdir().unwrap();
    let small = home.path().join("small");
    let store = home.path().join("store");
    Cluster::start_with(&store, &["--iods", "2"]).stop();
    // Move one of the two iods to a small disk of its own.
    std::fs::create_dir(&small).unwrap();
    let Some(_small) = Mounted::tmpfs(&small, "80m") else { return };
    let iod = store.join("cluster/iod-1");
    let moved = Command::new("mv").arg(&iod).arg(&small).status().unwrap();
    assert!(moved.success());
    std::os::unix::fs::symlink(small.join("iod-1"), &iod).unwrap();
    let cluster = Cluster::start(&store);
    cluster.put("/kept", b"kept", &[]);
    let big = home.path().join("big");
    std::fs::write(&big, crate::tree::bytes(1, 192 << 20)).unwrap();
    let said = fail(&mut cluster.weir(["cp", big.to_str().unwrap(), "weir:/big"]), 1);
    assert!(said.contains("no space left") && said.contains("weir df"), "{said}");
    assert_eq!(
        cluster.json(["find", "/", "-type", "f", "--json"]).len(),
        1,
        "neither a partial nor a temporary file remains"
    );
    assert_eq!(cluster.run(["cat", "/kept"]), b"kept");
    // Copy a file out of Weir to a full disk.
    let full = home.path().join("full");
    std::fs::create_dir(&full).unwrap();
    let Some(_full) = Mounted::tmpfs(&full, "1m") else { return };
    let room = tempfile::tempdir().unwrap();
    let other = Cluster::start(room.path());
    other.run(["cp", "--quiet", big.to_str().unwrap(), "weir:/big"]);
    let said = fail(&mut other.weir(["cp", "weir:/big", full.to_str().unwrap()]), 1);
    assert!(said.contains("no space left"), "{said}");
    assert_eq!(std::fs::read_dir(&full).unwrap().count(), 0, "neither a partial nor a temporary file remains");
    other.stop();
    cluster.stop();
}

#[test]
fn errors_name_the_line_of_a_bad_configuration() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("daemon.toml");
    for (daemon, text, parts) in [
        (
            "mgr",
            "dir = \"/x\"\ncluster_file = \"/y\"\niods = [\"a:1\"]\nlisten_on = 5\n",
            ["line 4", "listen_on", "lease_secs"],
        ),
        ("iod", "dir = \"/x\"\ncluster_file = \"/y\"\nstall = 5\n", ["line 3", "stall", "stall_secs"]),
        ("iod", "dir = \"/x\n", ["line 1", "daemon.toml", "string"]),
        ("mgr", "dir = 7\n", ["line 1", "dir", "daemon.toml"]),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = fail(&mut weir(&[daemon, "--config", file.to_str().unwrap()]), 2);
        assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
    }
    let said = fail(&mut weir(&["iod", "--config", "/nowhere.toml"]), 1);
    assert!(said.contains("/nowhere.toml"), "{said}");
    fail(&mut weir(&["mgr"]), 2);
    fail(&mut weir(&["iod", "--dir", "/x"]), 2);
}

#[test]
fn cp_reports_each_failure_and_copies_the_rest() {
    let home = tempfile::tempdir().unwrap();
    let (mut child, ready) =
        start(&["up", "--listen", "127.0.0.1:0", "--dir", home.path().join("s").to_str().unwrap()].map(OsStr::new));
    let url = ready["url"].as_str().unwrap();
    let source = home.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for i in 0..20 {
        std::fs::write(source.join(format!("f{i}")), format!("{i}")).unwrap();
    }
    // Two of the files to copy have the same names as existing directories in Weir.
    for name in ["", "/f3", "/f7"] {
        assert!(weir(&["mkdir", &format!("{url}source{name}")]).status().unwrap().success());
    }
    let said = fail(weir(&["cp", "-r", source.to_str().unwrap(), url]).arg("--json"), 1);
    assert!(said.contains("f3") && said.contains("f7") && said.contains("2 names"), "{said}");
    for (i, expected) in [(2, 0), (19, 0), (3, 1)] {
        let status = weir(&["cat", &format!("{url}source/f{i}")]).output().unwrap().status;
        assert_eq!(status.code(), Some(expected), "f{i}");
    }
    let said = fail(&mut weir(&["cp", source.to_str().unwrap(), url]), 2);
    assert!(said.contains("add -r"), "{said}");
    let said = fail(&mut weir(&["cp", "/nowhere", &format!("{url}x")]), 1);
    assert!(said.contains("/nowhere") && said.contains("no such file"), "{said}");
    child.kill().unwrap();
    child.wait().unwrap();
}
