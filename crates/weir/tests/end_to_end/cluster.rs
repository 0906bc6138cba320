//! A test fixture that runs a `weir up` process and sends commands to it.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The path of the `weir` binary under test.
pub const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A `weir up` process with a cluster. Dropping this value kills the process.
pub struct Cluster {
    pub child: Child,
    /// The value of `WEIR_URL` for this cluster.
    pub url: String,
}

/// Starts a daemon. Returns its process and the ready message from its standard output.
pub fn start(args: &[&OsStr]) -> (Child, Value) {
    let mut command = Command::new(WEIR);
    command.args(args);
    start_logged(&mut command)
}

/// Starts a daemon with the command line of `command`. Returns its process and its ready message. A thread copies the
/// daemon's log to the output of the test.
pub fn start_logged(command: &mut Command) -> (Child, Value) {
    let mut child = spawn(command.stderr(Stdio::piped()));
    let logged = BufReader::new(child.stderr.take().expect("piped"));
    std::thread::spawn(|| logged.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}")));
    answer(child, command)
}

/// Starts a daemon with the command line of `command`; the caller has set up the daemon's standard error in
/// `command`. Returns its process and its ready message.
pub fn ready(command: &mut Command) -> (Child, Value) {
    answer(spawn(command), command)
}

fn spawn(command: &mut Command) -> Child {
    command.arg("--json").env_remove("WEIR_URL").stdout(Stdio::piped()).spawn().expect("the binary starts")
}

fn answer(mut child: Child, command: &Command) -> (Child, Value) {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("standard output is text");
    match serde_json::from_str(&line) {
        Ok(ready) => (child, ready),
        Err(e) => panic!("{command:?} did not get ready ({e}): {:?}", child.wait()),
    }
}

/// Sends a signal to a child process.
pub fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("the process is there");
}

/// Returns a loopback address that no other cluster of these tests uses. A cluster at such an address keeps its port
/// while it is down, because no other cluster listens at the address.
pub fn own_address() -> Ipv4Addr {
    static CLUSTERS: AtomicU32 = AtomicU32::new(0);
    let number = (std::process::id() << 8) + CLUSTERS.fetch_add(1, Ordering::Relaxed);
    let [_, a, b, c] = number.to_be_bytes();
    Ipv4Addr::new(127, a, b, c)
}

impl Cluster {
    /// Starts a cluster with its data in `dir`, on a free port.
    pub fn start(dir: &Path) -> Cluster {
        Cluster::start_with(dir, &[])
    }

    /// Starts a cluster like [`Cluster::start`], with further options for `weir up`.
    pub fn start_with(dir: &Path, options: &[&str]) -> Cluster {
        Cluster::start_at(&format!("{}:0", own_address()), dir, options)
    }

    /// Starts a cluster at the address in `url`, at which an earlier run of the cluster listened.
    pub fn start_again(url: &str, dir: &Path) -> Cluster {
        Cluster::start_at(url.trim_start_matches("weir://").trim_end_matches('/'), dir, &[])
    }

    /// Starts a cluster that listens at the address `listen`, with further options for `weir up`.
    pub fn start_at(listen: &str, dir: &Path, options: &[&str]) -> Cluster {
        let mut args: Vec<&OsStr> = ["up", "--listen", listen, "--dir"].map(OsStr::new).to_vec();
        args.push(dir.as_os_str());
        args.extend(options.iter().map(OsStr::new));
        let (child, ready) = start(&args);
        let url = ready["url"].as_str().expect("a ready cluster has a URL").to_owned();
        Cluster { child, url }
    }

    /// Stops the cluster with SIGINT, as Ctrl-C does, and waits for its end.
    pub fn stop(mut self) {
        signal(&self.child, rustix::process::Signal::INT);
        assert!(self.child.wait().expect("it ends").success(), "a stopped cluster ends with exit code 0");
    }

    /// Kills the `weir up` process with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Builds a `weir` command that uses this cluster.
    pub fn weir<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(WEIR);
        command.args(args).env("WEIR_URL", &self.url).stdin(Stdio::null());
        command
    }

    /// Runs a `weir` command, which must succeed. Returns its standard output.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<u8> {
        succeed(&mut self.weir(args))
    }

    /// Runs a `weir` command, which must succeed. Returns its standard output as text.
    pub fn text<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        String::from_utf8(self.run(args)).expect("text")
    }

    /// Runs a `weir` command, which must succeed. Returns one JSON value for each line of its output.
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<Value> {
        let text = self.text(args);
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Stores `content` as the file `name` with `weir put`.
    pub fn put(&self, name: &str, content: &[u8], options: &[&str]) {
        let mut child = self.weir(["put", name]).args(options).stdin(Stdio::piped()).spawn().expect("starts");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), content).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "put {name}");
    }

    /// Returns the value `name` of the group `group` in the mgr's status. Ignores the exit code of `weir status`,
    /// because the cluster may be degraded.
    pub fn counter(&self, group: &str, name: &str) -> u64 {
        let output = self.weir(["status", "--json"]).output().expect("the binary starts");
        let status: Value = serde_json::from_slice(&output.stdout).expect("a status");
        let groups = status.as_array().expect("groups");
        let group = groups.iter().find(|g| g["group"] == group).unwrap_or_else(|| panic!("no group {group}: {status}"));
        group["values"][name].as_u64().unwrap_or_else(|| panic!("no number {name}: {group}"))
    }

    /// Returns the number of payload bytes that have taken the mgr path after the start of the mgr.
    pub fn proxied_bytes(&self) -> u64 {
        self.counter("counters", "proxy_read_bytes") + self.counter("counters", "proxy_write_bytes")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            // Ignore errors: the process may already have ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a command, which must succeed. Returns its standard output.
pub fn succeed(command: &mut Command) -> Vec<u8> {
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Runs a command, which must fail with the exit code `code`. Returns its standard error.
pub fn fail(command: &mut Command, code: i32) -> String {
    let output: Output = command.output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// Returns the part of a child process's standard error that the test has not read yet.
pub fn stderr_of(child: &mut Child) -> String {
    let mut said = String::new();
    if let Some(stderr) = child.stderr.as_mut() {
        stderr.read_to_string(&mut said).expect("text");
    }
    said
}
