//! Permissions of stores and clusters: other users of the machine must be able to reach only the sockets of a cluster.

use crate::cluster::{Cluster, WEIR, ready, signal, succeed};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Builds a command of the binary that runs with umask 0.
fn weir(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\"", WEIR]).args(args).env_remove("WEIR_URL");
    command
}

/// Returns the paths of a directory and of everything below it, the directory first.
fn everything(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if path.symlink_metadata().unwrap().is_dir() {
            found.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

/// Asserts that other users can only reach the sockets in a directory that `weir` made. Returns the paths of the
/// sockets.
fn assert_private(made: &Path) -> Vec<PathBuf> {
    let all = everything(made);
    let is_socket = |path: &&PathBuf| path.symlink_metadata().unwrap().file_type().is_socket();
    let sockets: Vec<PathBuf> = all.iter().filter(is_socket).cloned().collect();
    for path in all.iter().filter(|path| !sockets.contains(path)) {
        let found = path.symlink_metadata().unwrap();
        let leads_to_socket = found.is_dir() && sockets.iter().any(|socket| socket.starts_with(path));
        let allowed = if leads_to_socket { 0o711 } else { 0o700 };
        assert_eq!(found.mode() & 0o777 & !allowed, 0, "{}: {:04o}", path.display(), found.mode() & 0o7777);
    }
    sockets
}

/// Makes a directory and its entries readable for all users, as an earlier version of Weir or a careless copy may have
/// done.
fn widen(made: &Path) {
    for path in fs::read_dir(made).unwrap().map(|entry| entry.unwrap().path()).chain([made.to_owned()]) {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
}

/// Starts a daemon that logs to the file `log`. Returns its process and the ready message from its standard output.
fn start(args: &[&str], log: &Path) -> (Child, Value) {
    let log = File::options().create(true).append(true).open(log).unwrap();
    ready(weir(args).args(["--listen", "127.0.0.1:0"]).stderr(log))
}

fn stop(mut child: Child) {
    signal(&child, rustix::process::Signal::TERM);
    assert!(child.wait().unwrap().success());
}

/// Returns the number of log lines that report permissions which the daemon has removed.
fn narrowed(log: &Path) -> usize {
    let said = fs::read_to_string(log).unwrap();
    said.lines().filter(|line| line.contains("removed permissions of other users")).count()
}

#[test]
fn only_the_owner_can_access_the_stores_of_daemons() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let (mgr, iod, cluster_file, log) = (path("mgr"), path("iod"), path("cluster.toml"), home.path().join("log"));
    let of = |kind: &'static str, dir: &str| [kind, "--dir", dir, "--cluster-file", &cluster_file].map(str::to_owned);
    let of_mgr = of("mgr", &mgr);
    let of_iod = of("iod", &iod);
    let of_mgr: Vec<&str> = of_mgr.iter().map(String::as_str).collect();
    let of_iod: Vec<&str> = of_iod.iter().map(String::as_str).collect();
    succeed(&mut weir(&[&["mkfs"], &of_mgr[..]].concat()));
    succeed(&mut weir(&[&["mkfs"], &of_iod[..], &["--block-checksums"]].concat()));
    for made in [&mgr, &iod] {
        assert!(everything(Path::new(made)).len() > 2, "mkfs has created the store");
    }
    let mut narrowings = 0;
    for round in 0..2 {
        let ready_file = path("ready");
        let (iod_child, ready) = start(&[&of_iod[..], &["--ready-file", &ready_file]].concat(), &log);
        let address = ready["addresses"][0].as_str().unwrap().to_owned();
        let (mgr_child, ready) = start(&[&of_mgr[..], &["--iod", &address]].concat(), &log);
        let url = format!("weir://{}/", ready["addresses"][0].as_str().unwrap());
        let file = |size: usize| home.path().join(format!("source-{size}"));
        for size in [100, 3 << 20] {
            fs::write(file(size), vec![7; size]).unwrap();
            succeed(&mut weir(&["cp", file(size).to_str().unwrap(), &url]));
        }
        let dump = path(&format!("dump-{round}"));
        succeed(weir(&["dump", &dump]).env("WEIR_URL", &url));
        let sockets = assert_private(Path::new(&mgr));
        assert_eq!(sockets, [Path::new(&mgr).join("mgr.sock")]);
        assert_private(Path::new(&iod));
        let restored = path(&format!("restored-{round}"));
        succeed(&mut weir(&["restore", &dump, "--dir", &restored, "--cluster-file", &cluster_file]));
        for made in [&dump, &cluster_file, &ready_file] {
            assert_private(Path::new(made));
        }
        // Other users need search permission on the restored directory, because an mgr that uses this directory creates
        // its socket in it.
        let (dir, files) = (fs::metadata(&restored).unwrap(), everything(Path::new(&restored)));
        assert_eq!(dir.mode() & 0o777 & !0o711, 0);
        assert!(files[1..].iter().all(|file| file.symlink_metadata().unwrap().mode() & 0o077 == 0), "{files:?}");
        stop(mgr_child);
        stop(iod_child);
        assert_eq!(narrowed(&log), narrowings, "{}", fs::read_to_string(&log).unwrap());
        // At its next start, each daemon must log one line about the permissions that it has removed.
        widen(Path::new(&mgr));
        widen(Path::new(&iod));
        narrowings += 2;
    }
}

#[test]
fn only_the_owner_can_access_the_directory_of_weir_up() {
    let home = tempfile::tempdir().unwrap();
    let (dir, log) = (home.path().join("above/cluster"), home.path().join("log"));
    for round in 0..2 {
        let (child, ready) = start(&["up", "--iods", "2", "--dir", dir.to_str().unwrap()], &log);
        let cluster = Cluster { child, url: ready["url"].as_str().unwrap().to_owned() };
        cluster.put("/file", &[7; 3 << 20], &[]);
        let sockets = assert_private(&dir);
        let of_mgr = sockets.iter().find(|socket| socket.ends_with("mgr.sock")).expect("a socket of the mgr");
        for above in of_mgr.ancestors().skip(1).take_while(|above| above.starts_with(&dir)) {
            assert_eq!(
                fs::metadata(above).unwrap().mode() & 0o777,
                0o711,
                "the directories that lead to the socket: {}",
                above.display()
            );
        }
        cluster.stop();
        assert_eq!(narrowed(&log), round * 4, "the cluster, its mgr and its iods");
        let made = dir.join("cluster");
        widen(&made);
        ["mgr", "iod-0", "iod-1"].iter().for_each(|name| widen(&made.join(name)));
        // Make `cluster.toml` private again, because the cluster refuses to start while other users can read this file.
        fs::set_permissions(made.join("cluster.toml"), Permissions::from_mode(0o600)).unwrap();
    }
}
