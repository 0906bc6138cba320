//! Systems that the `mount` benchmark compares: a directory of the local file system, bare sockets, bare FUSE, and
//! mounts of a cluster.

use crate::bare;
use crate::floor::Server;
use crate::process::{Daemon, cpu_of, cpu_of_all};
use crate::rows::Row;
use crate::work::{Done, WorkDir};
use crate::{Outcome, Role, process};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A Weir cluster that runs in a child process (`weir up`).
pub struct Weir {
    program: PathBuf,
    url: String,
    daemon: Daemon,
}

impl Weir {
    /// Makes a cluster in `dir` and starts it.
    pub fn start(program: &Path, dir: &Path) -> Outcome<Weir> {
        Weir::start_with(program, dir, |_| {})
    }

    /// Makes and starts a cluster, with the arguments that `more` adds to the command line.
    fn start_with(program: &Path, dir: &Path, more: impl FnOnce(&mut Command)) -> Outcome<Weir> {
        let mut command = Command::new(program);
        command.args(["up", "--json", "--listen", "127.0.0.1:0", "--dir"]).arg(dir);
        more(&mut command);
        let (daemon, line) = Daemon::announced(command)?;
        let ready: Value = serde_json::from_str(&line)?;
        let url = ready["url"].as_str().ok_or("a cluster without a URL")?.to_owned();
        Ok(Weir { program: program.to_owned(), url, daemon })
    }

    /// Returns the address on which the mgr listens.
    pub fn address(&self) -> Outcome<SocketAddr> {
        Ok(self.url.trim_start_matches("weir://").trim_end_matches('/').parse()?)
    }

    /// Returns the number of disk syncs that the servers have requested so far.
    fn syncs(&self) -> Outcome<u64> {
        let mut command = Command::new(&self.program);
        command.args(["status", "--json", &self.url]);
        let groups: Value = serde_json::from_str(&process::run(command)?.0)?;
        let number = |group: &Value, name: &str| group["values"][name].as_u64().unwrap_or(0);
        let of_group = |group: &Value| match group["group"].as_str() {
            Some("iod") => {
                ["syncs.object", "syncs.directory", "syncs.sums"].iter().map(|name| number(group, name)).sum()
            }
            // Each group commit syncs the log once. Each checkpoint is a durable commit of redb, which syncs twice.
            Some("store") => number(group, "flushes") + 2 * number(group, "checkpoints"),
            _ => 0,
        };
        Ok(groups.as_array().ok_or("a status of no groups")?.iter().map(of_group).sum())
    }
}

/// The CPU time of a measurement, in seconds.
pub struct Cpu {
    /// The CPU time of this process and of all processes that serve the measured system.
    pub all: f64,
    /// The CPU time of this process alone.
    pub own: f64,
}

/// One measured system: a file system or a server. The measurements of all systems alternate.
pub struct Side<'a> {
    name: String,
    /// The directory in which the workloads of the benchmark create their files.
    dir: PathBuf,
    kind: Kind<'a>,
}

/// The kind of a measured system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SideKind {
    /// A directory of the local file system.
    Local,
    /// Reads and writes of bytes over a bare socket.
    Socket,
    /// Durable metadata changes over a bare socket.
    Durable,
    /// Bare FUSE: a file system in memory.
    Fuse,
    /// A mount of a Weir cluster.
    Weir,
    /// A file system other than Weir, which the user has mounted.
    Other,
}

/// A file system that the user has mounted before the benchmark.
#[derive(Clone)]
pub struct Other {
    name: String,
    /// A directory in the mounted file system.
    dir: PathBuf,
    /// All processes that serve the file system.
    pids: Vec<u32>,
}

impl FromStr for Other {
    type Err = String;

    fn from_str(text: &str) -> Result<Other, String> {
        let (name, rest) = text.split_once('=').ok_or("no name before \"=\"")?;
        let (dir, pids) = rest.rsplit_once(':').ok_or("no processes behind \":\"")?;
        let pid = |pid: &str| {
            let number = pid.parse().map_err(|_| format!("{pid:?} is no number of a process"))?;
            cpu_of(number).map_err(|error| format!("process {number}: {error}"))?;
            Ok::<u32, String>(number)
        };
        let pids = pids.split(',').map(pid).collect::<Result<_, _>>()?;
        if !Path::new(dir).is_dir() {
            return Err(format!("{dir} is no directory"));
        }
        Ok(Other { name: name.to_owned(), dir: dir.into(), pids })
    }
}

enum Kind<'a> {
    Local,
    Socket(Server),
    Durable(Server),
    Fuse { daemon: Daemon, at: PathBuf },
    Mount { weir: &'a Weir, daemon: Daemon, at: PathBuf },
    Up { weir: Weir, at: PathBuf },
    Other(Other),
}

impl<'a> Side<'a> {
    /// Returns the measured system that is a local directory, on the same file system as the stores.
    pub fn local(work_dir: &Path) -> Outcome<Side<'a>> {
        Ok(Side { name: "local".to_owned(), dir: work_dir.join("local"), kind: Kind::Local })
    }

    /// Returns the measured system that is a bare socket. The server's file is on the same file system as the stores.
    pub fn socket(work_dir: &Path) -> Outcome<Side<'a>> {
        let server = Server::start(&work_dir.join("socket-file"))?;
        Ok(Side { name: "bare socket".to_owned(), dir: work_dir.join("socket"), kind: Kind::Socket(server) })
    }

    /// Returns the measured system that is a bare socket, whose server makes each change durable before it answers.
    pub fn durable(work_dir: &Path) -> Outcome<Side<'a>> {
        let server = Server::start(&work_dir.join("durable-file"))?;
        Ok(Side { name: "durable request".to_owned(), dir: work_dir.join("durable"), kind: Kind::Durable(server) })
    }

    /// Mounts bare FUSE, the file system in memory.
    pub fn fuse(work_dir: &Path) -> Outcome<Side<'a>> {
        let at = work_dir.join("fuse");
        fs::create_dir(&at)?;
        let (daemon, _) = Daemon::in_role(&[], &Role::BareFuse(at.clone()))?;
        Ok(Side { name: "bare FUSE".to_owned(), dir: at.join("fuse"), kind: Kind::Fuse { daemon, at } })
    }

    /// Makes the directory `at`, and mounts the cluster on this directory.
    pub fn weir(weir: &'a Weir, at: &Path, options: &str) -> Outcome<Side<'a>> {
        Side::by(weir, at, options, &weir.url)
    }

    /// Makes the directory `at`, and mounts the cluster on this directory by the given URL.
    pub fn by(weir: &'a Weir, at: &Path, options: &str, url: &str) -> Outcome<Side<'a>> {
        fs::create_dir(at)?;
        let mut command = Command::new(&weir.program);
        command.args(["mount", "--foreground", "-o", options, url]).arg(at);
        let (daemon, _) = Daemon::announced(command)?;
        let name = if options == "defaults" { "weir".to_owned() } else { format!("weir {options}") };
        let dir = at.join(at.file_name().unwrap_or_default());
        Ok(Side { name, dir, kind: Kind::Mount { weir, daemon, at: at.to_owned() } })
    }

    /// Starts another cluster and its mount in one process (`weir up --mount`).
    pub fn up(program: &Path, work_dir: &Path, number: usize, options: &str) -> Outcome<Side<'a>> {
        let (store, at) = (work_dir.join(format!("up-{number}")), work_dir.join(format!("mnt-{number}")));
        let weir = Weir::start_with(program, &store, |command| {
            command.arg("--mount").arg(&at);
            for option in options.split(',').filter(|option| *option != "defaults") {
                let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
                command.arg(format!("--{}", name.replace('_', "-"))).args(value);
            }
        })?;
        let name = if options == "defaults" { "weir up".to_owned() } else { format!("weir up {options}") };
        Ok(Side { name, dir: at.join("work"), kind: Kind::Up { weir, at } })
    }

    /// Returns the measured system that is a file system mounted by the user, with a new directory for the benchmark's
    /// files.
    pub fn other(other: &Other) -> Side<'a> {
        let dir = other.dir.join(format!("bench-mount-{}", std::process::id()));
        Side { name: other.name.clone(), dir, kind: Kind::Other(other.clone()) }
    }

    /// Returns the directory in which the rows of the benchmark create their files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn what(&self) -> SideKind {
        match self.kind {
            Kind::Local => SideKind::Local,
            Kind::Socket(_) => SideKind::Socket,
            Kind::Durable(_) => SideKind::Durable,
            Kind::Fuse { .. } => SideKind::Fuse,
            Kind::Mount { .. } | Kind::Up { .. } => SideKind::Weir,
            Kind::Other(_) => SideKind::Other,
        }
    }

    /// Makes the directory in which the rows of the benchmark create their files.
    pub fn begin(&self) -> Outcome<()> {
        Ok(fs::create_dir(&self.dir)?)
    }

    /// Removes the directory in which the rows of the benchmark create their files, and everything in it.
    pub fn end(&self) -> Outcome<()> {
        Ok(fs::remove_dir_all(&self.dir)?)
    }

    /// Returns the ids of the processes that serve the measured system.
    fn pids(&self) -> Vec<u32> {
        match &self.kind {
            Kind::Mount { weir, daemon, .. } => vec![daemon.pid(), weir.daemon.pid()],
            Kind::Up { weir, .. } => vec![weir.daemon.pid()],
            Kind::Fuse { daemon, .. } => vec![daemon.pid()],
            Kind::Other(other) => other.pids.clone(),
            _ => Vec::new(),
        }
    }

    /// Waits until the processes of the measured file system are idle. Returns the CPU time that they have used.
    fn settled(&self) -> Outcome<f64> {
        const LOOK: Duration = Duration::from_millis(200);
        // Stop waiting after a time, because daemons of other file systems may never be fully idle.
        let quiet = if self.what() == SideKind::Other { 0.01 } else { 0.004 };
        let (pids, start) = (self.pids(), Instant::now());
        let mut before = cpu_of_all(&pids)?;
        while start.elapsed() < Duration::from_secs(60) {
            sleep(LOOK);
            let now = cpu_of_all(&pids)?;
            if now - before < quiet {
                return Ok(before);
            }
            before = now;
        }
        Err(format!("{}: its processes do not come to rest", self.name).into())
    }

    /// Runs a row of the benchmark. Returns the result, the CPU time, and the number of disk syncs of the servers. The
    /// measurement ends when the servers are idle, so it includes work that the servers defer. Returns `None` if the
    /// row cannot run on this measured system.
    pub fn measure(&self, row: &Row, scale: usize) -> Outcome<Option<(Done, Cpu, u64)>> {
        let work_dir = WorkDir { dir: self.dir.clone(), scale };
        let syncs = || match &self.kind {
            Kind::Mount { weir, .. } => weir.syncs(),
            Kind::Up { weir, .. } => weir.syncs(),
            _ => Ok(0),
        };
        let syncs_before = syncs()?;
        let (theirs, ours) = (self.settled()?, cpu_of(std::process::id())?);
        let by_socket = match &self.kind {
            Kind::Socket(server) => Some((server, row.floor)),
            Kind::Durable(server) => Some((server, row.durable)),
            _ => None,
        };
        let mut done = match by_socket {
            Some((server, Some(floor))) => floor(server, &work_dir)?,
            Some((_, None)) => return Ok(None),
            None => (row.work)(&work_dir)?,
        };
        let own = cpu_of(std::process::id())? - ours;
        let all = own + self.settled()? - theirs;
        if matches!(self.what(), SideKind::Weir | SideKind::Fuse | SideKind::Other) {
            // Do not count this program's fsync calls as disk syncs, because the servers count their disk syncs
            // themselves.
            done.syncs = 0;
        }
        Ok(Some((done, Cpu { all, own }, syncs()? - syncs_before)))
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        // Ignore a failed unmount: dropping the daemon kills its process in any case.
        match &self.kind {
            Kind::Mount { weir, at, .. } => {
                let _ = Command::new(&weir.program).args(["umount", "--lazy"]).arg(at).status();
            }
            Kind::Up { weir, at } => {
                let _ = Command::new(&weir.program).args(["umount", "--lazy"]).arg(at).status();
            }
            Kind::Fuse { at, .. } => {
                let _ = bare::unmount(at);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_beside_is_a_name_a_directory_and_processes() {
        let (dir, own) = (std::env::temp_dir(), std::process::id());
        let other: Other =
            format!("a={}:{own},{own}", dir.display()).parse().expect("a name, a directory and processes");
        assert_eq!((other.name.as_str(), other.dir.as_path(), other.pids.len()), ("a", dir.as_path(), 2));
        let refused = |text: &str| text.parse::<Other>().err().unwrap_or_default();
        assert!(refused("a").contains("no name"));
        assert!(refused(&format!("a={}", dir.display())).contains("no processes"));
        assert!(refused(&format!("a={}:x", dir.display())).contains("\"x\" is no number"));
        assert!(refused(&format!("a={}:", dir.display())).contains("is no number"));
        assert!(refused(&format!("a=/nowhere-at-all:{own}")).contains("no directory"));
        // A process id that cannot exist, because it is above the maximum of Linux.
        assert!(refused(&format!("a={}:5000000", dir.display())).contains("process 5000000"));
    }
}
