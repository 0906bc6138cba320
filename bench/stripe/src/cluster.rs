//! Cluster of real Weir daemons, each in its own process, at the address, network namespace and directory that an
//! experiment chooses.

use crate::Outcome;
use crate::process::{Daemon, cpu_of_all};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Builds the `weir` binary with the build profile of this program, and returns the path of the binary.
pub fn build() -> Outcome<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--bin", "weir", "--manifest-path"]).arg(manifest);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    if !command.status()?.success() {
        return Err("weir does not build".into());
    }
    Ok(std::env::current_exe()?.with_file_name("weir"))
}

/// Where and how a daemon runs: network namespace, address, store directory, and options.
#[derive(Clone)]
pub struct DaemonHost {
    /// The words before the command line of the daemon, such as `ip netns exec NAME`.
    pub prefix: Vec<OsString>,
    /// The address on which the daemon listens, without a port.
    pub host: String,
    /// The directory of the daemon's store; `None`: in the directory of the cluster.
    pub store: Option<PathBuf>,
    /// Additional command line options of the daemon.
    pub options: Vec<OsString>,
}

impl DaemonHost {
    /// Returns the settings of a daemon that listens on this address and runs under `prefix`.
    pub fn at(prefix: Vec<OsString>, host: &str) -> Self {
        DaemonHost { prefix, host: host.to_owned(), store: None, options: Vec::new() }
    }

    /// Returns the settings of a daemon on this machine, without a prefix before the daemon's command line.
    pub fn here() -> Self {
        DaemonHost::at(Vec::new(), "127.0.0.1")
    }
}

/// The running daemons of a cluster; dropping the value kills the daemons.
pub struct Cluster {
    daemons: Vec<Daemon>,
    /// The URL of the root directory of the file system, with a slash at the end.
    pub url: String,
}

/// The line that a daemon prints when it is ready.
#[derive(Deserialize)]
struct Ready {
    url: Option<String>,
    addresses: Vec<String>,
}

impl Cluster {
    /// Makes and starts a cluster in `dir`, which must not exist. With `unix`, clients on this machine may use the Unix
    /// sockets of the iods.
    pub fn start(weir: &Path, dir: &Path, mgr: &DaemonHost, iods: &[DaemonHost], unix: bool) -> Outcome<Cluster> {
        fs::create_dir(dir)?;
        let maker = Maker { weir, cluster_file: dir.join("cluster.toml"), log: dir.join("daemons.log") };
        let made = maker.start(dir, mgr, iods, unix);
        made.map_err(|e| {
            let log = fs::read_to_string(&maker.log).unwrap_or_default();
            format!("the cluster did not start: {e}\n{}", log.trim_end()).into()
        })
    }

    /// Returns the process ids of all daemons; the mgr comes first.
    pub fn pids(&self) -> Vec<u32> {
        self.daemons.iter().map(Daemon::pid).collect()
    }

    /// Waits until the daemons are idle, so that a measurement does not include deferred work of the previous
    /// measurement.
    pub fn settle(&self) -> Outcome<()> {
        const LOOK: Duration = Duration::from_millis(300);
        const QUIET: f64 = 0.006;
        let (pids, start) = (self.pids(), Instant::now());
        let mut before = cpu_of_all(&pids)?;
        while start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(LOOK);
            let now = cpu_of_all(&pids)?;
            if now - before < QUIET {
                return Ok(());
            }
            before = now;
        }
        Err("the daemons do not come to rest".into())
    }
}

struct Maker<'a> {
    weir: &'a Path,
    cluster_file: PathBuf,
    log: PathBuf,
}

impl Maker<'_> {
    fn start(&self, dir: &Path, mgr: &DaemonHost, iods: &[DaemonHost], unix: bool) -> Outcome<Cluster> {
        let store = mgr.store.clone().unwrap_or_else(|| dir.join("mgr"));
        self.mkfs("mgr", &store)?;
        let (mut daemons, mut line) = (Vec::new(), vec![OsString::from("mgr")]);
        for (i, place) in iods.iter().enumerate() {
            let store = place.store.clone().unwrap_or_else(|| dir.join(format!("iod-{i}")));
            self.mkfs("iod", &store)?;
            let words = ["iod".into(), "--unix".into(), OsString::from(unix.to_string())];
            let (daemon, ready) = self.daemon(place, &words, &store)?;
            daemons.push(daemon);
            let address = ready.addresses.into_iter().next().ok_or("an iod without an address")?;
            line.extend(["--iod".into(), OsString::from(address)]);
        }
        let (daemon, ready) = self.daemon(mgr, &line, &store)?;
        daemons.insert(0, daemon);
        Ok(Cluster { daemons, url: ready.url.ok_or("an mgr without a URL")? })
    }

    fn store<'a>(&'a self, dir: &'a Path) -> [&'a OsStr; 4] {
        ["--dir".as_ref(), dir.as_os_str(), "--cluster-file".as_ref(), self.cluster_file.as_os_str()]
    }

    fn mkfs(&self, what: &str, dir: &Path) -> Outcome<()> {
        let mut command = Command::new(self.weir);
        command.args(["mkfs", what]).args(self.store(dir)).stdout(Stdio::null()).stderr(self.log()?);
        if command.status()?.success() { Ok(()) } else { Err(format!("weir mkfs {what} failed").into()) }
    }

    fn daemon(&self, place: &DaemonHost, words: &[OsString], dir: &Path) -> Outcome<(Daemon, Ready)> {
        let mut line = place.prefix.iter().cloned().chain([self.weir.into()]);
        let mut command = Command::new(line.next().ok_or("no program")?);
        command.args(line).args(words).args(&place.options).args(["--json", "--listen", &format!("{}:0", place.host)]);
        command.args(self.store(dir)).stderr(self.log()?);
        let (daemon, text) = Daemon::announced(command)?;
        Ok((daemon, serde_json::from_str(&text).map_err(|e| format!("{e} in {text:?}"))?))
    }

    fn log(&self) -> Outcome<File> {
        Ok(File::options().create(true).append(true).open(&self.log)?)
    }
}
