//! A test cluster of one mgr and several iods, each in its own process behind a proxy. Tests kill and restart the
//! daemons.

use crate::cluster::{WEIR, fail, ready, succeed};
use crate::proxy::{Meter, Proxy};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

/// A daemon and the proxy in front of the daemon.
pub struct Daemon {
    name: String,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    address: SocketAddr,
    /// The proxy through which clients and other daemons connect to this daemon.
    pub proxy: Proxy,
}

/// The daemons of one file system, with their proxies.
pub struct Lab {
    /// Counter of the bytes that all proxies have forwarded.
    pub meter: Arc<Meter>,
    /// The mgr, which is the metadata server.
    pub mgr: Daemon,
    /// The iods, which are the data servers.
    pub iods: Vec<Daemon>,
    /// The value of `WEIR_URL`, with the address of the mgr's proxy.
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

    /// Returns the name of the daemon, for messages and for the paths of its files.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address at which the daemon itself listens, behind its proxy.
    #[allow(dead_code)]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether the daemon runs: the test has not killed or stopped it after its last start.
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

    /// Starts the daemon again at the address of its last start.
    pub fn restart(&mut self) {
        let listen = [self.args.clone(), vec!["--listen".into(), self.address.to_string()]].concat();
        self.child = Some(launch(Command::new(WEIR).args(listen), &self.log).0);
    }

    /// Starts the daemon again at the address of its last start. The additional options `options` apply to this start
    /// only.
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

    /// Returns the command-line arguments of the daemon.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Starts a second process of the daemon on the same store. Kills the first process when the second process logs
    /// that it waits for the store.
    #[allow(dead_code)]
    pub fn replace(&mut self) {
        let log = self.log.with_extension("new.log");
        let (args, to) = (self.args.clone(), log.clone());
        // Give the second process another port, because the first process still listens on the old port.
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

    /// Starts the daemon again at the address of its last start. In this run, the daemon's writes at or beyond the
    /// offset `limit` of any file fail.
    pub fn restart_on_failing_disk(&mut self, limit: u64) {
        let mut command = on_failing_disk(limit);
        command.args(&self.args).args(["--listen", &self.address.to_string()]);
        self.child = Some(launch(&mut command, &self.log).0);
    }

    /// Waits until the daemon ends without a signal from the test.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.take().expect("it runs").wait().expect("it ends")
    }

    /// Starts the daemon at the address of its last start; the start must fail. Returns its standard error.
    pub fn fail_to_restart(&self) -> String {
        fail(Command::new(WEIR).args(&self.args).args(["--listen", &self.address.to_string()]), 1)
    }

    /// Returns the process of the daemon.
    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("it runs")
    }

    /// Returns everything that the daemon has written to standard error, over all its starts.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Ignore errors: the daemon may already have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Builds a command of the binary with a file size limit (`ulimit -f`). The command's writes at or beyond the offset
/// `limit` of any file fail.
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
    /// Creates a file system with `iods` iods in `home`, and starts all daemons.
    ///
    /// The lease is 20 seconds. After a client has died without disconnecting, a restarted mgr waits up to one lease
    /// for this client.
    pub fn start(home: &Path, iods: usize) -> Lab {
        Lab::start_with(home, iods, &["--lease-secs", "20"])
    }

    /// Starts all daemons like [`Lab::start`], with further options for the mgr. Uses the stores in `home` if they
    /// exist.
    pub fn start_with(home: &Path, iods: usize, options: &[&str]) -> Lab {
        Lab::start_each_with(home, iods, options, |_| Vec::new())
    }

    /// Starts all daemons like [`Lab::start_with`], with further options for each iod.
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
                // Disable the iod's Unix socket, so that all connections to the iod go through its proxy.
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

    /// Builds a `weir` command that uses this file system.
    pub fn weir<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(WEIR);
        command.args(args).env("WEIR_URL", &self.url).stdin(Stdio::null());
        command
    }

    /// Runs a `weir` command, which must succeed. Returns its standard output.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<u8> {
        succeed(&mut self.weir(args))
    }

    /// Runs a `weir` command, which must succeed. Returns one JSON value for each line of its output.
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<Value> {
        let text = String::from_utf8(self.run(args)).expect("text");
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Stores `content` as the file `name` with `weir put`.
    pub fn put(&self, name: &str, content: &[u8]) {
        let mut child = self.weir(["put", name]).stdin(Stdio::piped()).spawn().expect("starts");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), content).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "put {name}");
    }

    /// Checks the whole file system with `weir fsck`, which must find no damage.
    pub fn fsck(&self) {
        let check = || self.weir(["fsck", "--json"]).output().expect("the binary starts");
        // Exit code 8 means that the mgr has not yet connected to its iods again. So repeat the command.
        let reached = (0..100).map(|_| check()).find(|output| output.status.code() != Some(8));
        let output = reached.expect("the mgr finds its iods again");
        let (found, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "fsck: {}: {found}{said}", output.status);
    }

    /// Returns all daemons, the mgr first.
    pub fn daemons(&mut self) -> impl Iterator<Item = &mut Daemon> {
        std::iter::once(&mut self.mgr).chain(&mut self.iods)
    }
}
