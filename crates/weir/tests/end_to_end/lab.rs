//! A mgr and iods as processes of their own, with a proxy in front of each, that can be killed and started again.

use crate::cluster::{WEIR, fail, ready, succeed};
use crate::proxy::{Meter, Proxy};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

/// One daemon and the way to it.
pub struct Daemon {
    name: String,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    address: SocketAddr,
    /// What all others reach it through.
    pub proxy: Proxy,
}

/// The daemons of one file system.
pub struct Lab {
    /// What all traffic is counted by.
    pub meter: Arc<Meter>,
    /// The metadata server.
    pub mgr: Daemon,
    /// The data servers.
    pub iods: Vec<Daemon>,
    /// What `WEIR_URL` is set to.
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

    /// What it is called in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens itself, behind its proxy.
    #[allow(dead_code)]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it was not killed since it was started.
    #[allow(dead_code)]
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Kills it without warning.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    /// Starts it again where it was.
    pub fn restart(&mut self) {
        let listen = [self.args.clone(), vec!["--listen".into(), self.address.to_string()]].concat();
        self.child = Some(launch(Command::new(WEIR).args(listen), &self.log).0);
    }

    /// Starts it again where it was, with further options for this start.
    pub fn restart_with(&mut self, options: &[&str]) {
        let mut command = Command::new(WEIR);
        command.args(&self.args).args(["--listen", &self.address.to_string()]).args(options);
        self.child = Some(launch(&mut command, &self.log).0);
    }

    /// Asks it to end, and waits for that.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        crate::cluster::signal(&child, rustix::process::Signal::TERM);
        assert!(child.wait().expect("it ends").success(), "{}: {}", self.name, self.said());
    }

    /// What it is started with.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Starts it again while it still runs, and kills it once the new one says that it waits for that.
    #[allow(dead_code)]
    pub fn replace(&mut self) {
        let log = self.log.with_extension("new.log");
        let (args, to) = (self.args.clone(), log.clone());
        // Somewhere else: the address is taken too.
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

    /// Starts it again where it was, on a disk that takes no byte of any file at or beyond `limit`.
    pub fn restart_on_failing_disk(&mut self, limit: u64) {
        let mut command = on_failing_disk(limit);
        command.args(&self.args).args(["--listen", &self.address.to_string()]);
        self.child = Some(launch(&mut command, &self.log).0);
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.take().expect("it runs").wait().expect("it ends")
    }

    /// Starts it again, which must fail; what it says.
    pub fn fail_to_restart(&self) -> String {
        fail(Command::new(WEIR).args(&self.args).args(["--listen", &self.address.to_string()]), 1)
    }

    /// The process.
    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("it runs")
    }

    /// All that it has said on standard error, over all its starts.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself; either way it is gone afterwards.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The binary on a disk that takes no byte of any file at or beyond `limit`.
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
    /// A new file system in `home` with so many iods, all running.
    ///
    /// The mgr forgets clients after 20 seconds of silence: one that could not say goodbye holds up the next start of the
    /// mgr for as long.
    pub fn start(home: &Path, iods: usize) -> Lab {
        Lab::start_with(home, iods, &["--lease-secs", "20"])
    }

    /// As [`Lab::start`] with further options for the mgr. A store that exists in `home` already is used.
    pub fn start_with(home: &Path, iods: usize, options: &[&str]) -> Lab {
        Lab::start_each_with(home, iods, options, |_| Vec::new())
    }

    /// As [`Lab::start_with`], with further options for each iod.
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
                // The proxy is the only way in.
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

    /// A command on this file system.
    pub fn weir<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(WEIR);
        command.args(args).env("WEIR_URL", &self.url).stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed; its standard output.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<u8> {
        succeed(&mut self.weir(args))
    }

    /// Runs a command that must succeed; the JSON values of its lines.
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<Value> {
        let text = String::from_utf8(self.run(args)).expect("text");
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Stores bytes as a file.
    pub fn put(&self, name: &str, content: &[u8]) {
        let mut child = self.weir(["put", name]).stdin(Stdio::piped()).spawn().expect("starts");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), content).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "put {name}");
    }

    /// Checks the whole file system, which must be sound.
    pub fn fsck(&self) {
        let check = || self.weir(["fsck", "--json"]).output().expect("the binary starts");
        // The mgr may not have found its iods again yet.
        let reached = (0..100).map(|_| check()).find(|output| output.status.code() != Some(8));
        let output = reached.expect("the mgr finds its iods again");
        let (found, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "fsck: {}: {found}{said}", output.status);
    }

    /// Every daemon, the mgr first.
    pub fn daemons(&mut self) -> impl Iterator<Item = &mut Daemon> {
        std::iter::once(&mut self.mgr).chain(&mut self.iods)
    }
}
