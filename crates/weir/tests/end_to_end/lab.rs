//! A test cluster of one mgr and several iods as separate processes, each behind a proxy, that tests kill and restart.

use crate::cluster::{WEIR, fail, ready, succeed};
use crate::proxy::{Meter, Proxy};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

/// One daemon and its proxy.
pub struct Daemon {
    name: String,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    address: SocketAddr,
    /// The proxy through which clients and other daemons connect.
    pub proxy: Proxy,
}

/// The daemons of one file system.
pub struct Lab {
    /// Counts all traffic of the proxies.
    pub meter: Arc<Meter>,
    /// The metadata server.
    pub mgr: Daemon,
    /// The data servers.
    pub iods: Vec<Daemon>,
    /// The value of `WEIR_URL`.
    pub url: String,
}

impl Daemon {
    fn start(name: String, home: &Path, args: Vec<String>, meter: &Arc<Meter>) -> Daemon {
        let log = home.join(format!("{name}.log"));
        let listen = [args.clone(), vec!["--listen".into(), "127.0.0.1:0".into()]].concat();
        let (child, address) = launch(Command::new(WEIR).args(&listen), &log);
        let proxy = Proxy::start(address, meter.clone());
        Daemon { name, args, log, child: Some(child), address, proxy }
    }

    /// The name of the daemon in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address where the daemon itself listens, behind its proxy.
    #[allow(dead_code)]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether the daemon was started and neither killed nor stopped since.
    #[allow(dead_code)]
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    /// Starts the daemon again at the same address.
    pub fn restart(&mut self) {
        let listen = [self.args.clone(), vec!["--listen".into(), self.address.to_string()]].concat();
        self.child = Some(launch(Command::new(WEIR).args(listen), &self.log).0);
    }

    /// Starts the daemon again at the same address, with further options for this start.
    pub fn restart_with(&mut self, options: &[&str]) {
        let mut command = Command::new(WEIR);
        command.args(&self.args).args(["--listen", &self.address.to_string()]).args(options);
        self.child = Some(launch(&mut command, &self.log).0);
    }

    /// Sends SIGTERM and waits until the daemon has ended.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        crate::cluster::signal(&child, rustix::process::Signal::TERM);
        assert!(child.wait().expect("it ends").success(), "{}: {}", self.name, self.said());
    }

    /// The arguments of the daemon.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Starts a second process of the daemon on the same store. Kills the first when the second logs that it waits.
    #[allow(dead_code)]
    pub fn replace(&mut self) {
        let log = self.log.with_extension("new.log");
        let (args, to) = (self.args.clone(), log.clone());
        // The new process uses another port, because the first process still has the old one.
        let started =
            std::thread::spawn(move || launch(Command::new(WEIR).args(args).args(["--listen", "127.0.0.1:0"]), &to));
        let waits = || std::fs::read_to_string(&log).is_ok_and(|said| said.contains("waiting up to"));
        while !waits() {
            assert!(!started.is_finished(), "{} does not wait for the one before it", self.name);
            std::thread::yield_now();
        }
        self.kill();
        let (child, address) = started.join().expect("it starts once the store is free");
        (self.child, self.address) = (Some(child), address);
        self.proxy.lead_to(address);
    }

    /// Starts the daemon again at the same address, with writes at or beyond `limit` in any file failing.
    pub fn restart_on_failing_disk(&mut self, limit: u64) {
        let mut command = on_failing_disk(limit);
        command.args(&self.args).args(["--listen", &self.address.to_string()]);
        self.child = Some(launch(&mut command, &self.log).0);
    }

    /// Waits until the daemon ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.take().expect("it runs").wait().expect("it ends")
    }

    /// Starts the daemon again, which must fail. Returns its standard error.
    pub fn fail_to_restart(&self) -> String {
        fail(Command::new(WEIR).args(&self.args).args(["--listen", &self.address.to_string()]), 1)
    }

    /// The process.
    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("it runs")
    }

    /// Everything that the daemon has written to standard error, over all starts.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The daemon may have ended already, so errors are ignored.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A command of the binary with a file size limit (`ulimit -f`): writes at or beyond `limit` in any file fail.
pub fn on_failing_disk(limit: u64) -> Command {
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", limit / 512);
    let mut command = Command::new("sh");
    command.args(["-c", &script, WEIR]);
    command
}

fn launch(command: &mut Command, log: &Path) -> (Child, SocketAddr) {
    let log = File::options().create(true).append(true).open(log).expect("a log can be written");
    let (child, ready) = ready(command.stderr(log));
    let address = ready["addresses"][0].as_str().expect("an address").parse().expect("an address with a port");
    (child, address)
}

impl Lab {
    /// Creates a file system in `home` with this number of iods, and starts all daemons.
    ///
    /// The lease is 20 seconds. A client that died without disconnecting delays the next start of the mgr for that
    /// long.
    pub fn start(home: &Path, iods: usize) -> Lab {
        Lab::start_with(home, iods, &["--lease-secs", "20"])
    }

    /// Like [`Lab::start`], with further options for the mgr. An existing store in `home` is used.
    pub fn start_with(home: &Path, iods: usize, options: &[&str]) -> Lab {
        Lab::start_each_with(home, iods, options, |_| Vec::new())
    }

    /// Like [`Lab::start_with`], with further options for each iod.
    pub fn start_each_with(home: &Path, iods: usize, options: &[&str], of_iod: impl Fn(usize) -> Vec<String>) -> Lab {
        let meter = Arc::new(Meter::default());
        let path = |name: &str| home.join(name).to_str().expect("UTF-8").to_owned();
        let cluster_file = path("cluster.toml");
        let store = |what: &str, name: &str| {
            let dir = path(name);
            if !Path::new(&dir).exists() || std::fs::read_dir(&dir).expect("readable").next().is_none() {
                let mut command = Command::new(WEIR);
                command.args(["mkfs", what, "--dir", &dir, "--cluster-file", &cluster_file]);
                succeed(&mut command);
            }
            vec![what.to_owned(), "--dir".into(), dir, "--cluster-file".into(), cluster_file.clone()]
        };
        let mut args = store("mgr", "mgr");
        let iods: Vec<Daemon> = (0..iods)
            .map(|i| {
                let name = format!("iod-{i}");
                // Without the UNIX socket, all connections go through the proxy.
                let args = [store("iod", &name), vec!["--unix".into(), "false".into()], of_iod(i)].concat();
                Daemon::start(name, home, args, &meter)
            })
            .collect();
        for iod in &iods {
            args.extend(["--iod".into(), iod.proxy.address().to_string()]);
        }
        args.extend(options.iter().map(|option| option.to_string()));
        let mgr = Daemon::start("mgr".into(), home, args, &meter);
        let url = format!("weir://{}/", mgr.proxy.address());
        Lab { meter, mgr, iods, url }
    }

    /// Builds a `weir` command for this file system.
    pub fn weir<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(WEIR);
        command.args(args).env("WEIR_URL", &self.url).stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<u8> {
        succeed(&mut self.weir(args))
    }

    /// Runs a command that must succeed. Returns one JSON value for each line of its output.
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<Value> {
        let text = String::from_utf8(self.run(args)).expect("text");
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Stores bytes as a file with `weir put`.
    pub fn put(&self, name: &str, content: &[u8]) {
        let mut child = self.weir(["put", name]).stdin(Stdio::piped()).spawn().expect("starts");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), content).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "put {name}");
    }

    /// Checks the whole file system with fsck, which must find no damage.
    pub fn fsck(&self) {
        let check = || self.weir(["fsck", "--json"]).output().expect("the binary starts");
        // The mgr may not have reconnected to its iods yet.
        let reached = (0..100).map(|_| check()).find(|output| output.status.code() != Some(8));
        let output = reached.expect("the mgr finds its iods again");
        let (found, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "fsck: {}: {found}{said}", output.status);
    }

    /// All daemons, the mgr first.
    pub fn daemons(&mut self) -> impl Iterator<Item = &mut Daemon> {
        std::iter::once(&mut self.mgr).chain(&mut self.iods)
    }
}
