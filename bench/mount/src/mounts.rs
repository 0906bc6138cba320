//! What takes turns: a folder of the local file system, bare sockets, bare FUSE, and mounts of a cluster, with processes of their own.

use crate::bare;
use crate::floor::Server;
use crate::process::{Daemon, cpu_of, cpu_of_all};
use crate::rows::Row;
use crate::work::{Done, Room};
use crate::{Outcome, Role, process};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A cluster.
pub struct Weir {
    program: PathBuf,
    url: String,
    daemon: Daemon,
}

impl Weir {
    /// Makes one in `dir` and starts it.
    pub fn start(program: &Path, dir: &Path) -> Outcome<Weir> {
        Weir::start_with(program, dir, |_| {})
    }

    /// The same with more on its command line.
    fn start_with(program: &Path, dir: &Path, more: impl FnOnce(&mut Command)) -> Outcome<Weir> {
        let mut command = Command::new(program);
        command.args(["up", "--json", "--listen", "127.0.0.1:0", "--dir"]).arg(dir);
        more(&mut command);
        let (daemon, line) = Daemon::announced(command)?;
        let ready: Value = serde_json::from_str(&line)?;
        let url = ready["url"].as_str().ok_or("a cluster without a URL")?.to_owned();
        Ok(Weir { program: program.to_owned(), url, daemon })
    }

    /// Where its mgr listens.
    pub fn address(&self) -> Outcome<SocketAddr> {
        Ok(self.url.trim_start_matches("weir://").trim_end_matches('/').parse()?)
    }

    /// How many syncs its servers have asked their disks for.
    fn syncs(&self) -> Outcome<u64> {
        let mut command = Command::new(&self.program);
        command.args(["status", "--json", &self.url]);
        let groups: Value = serde_json::from_str(&process::run(command)?.0)?;
        let number = |group: &Value, name: &str| group["values"][name].as_u64().unwrap_or(0);
        let of_group = |group: &Value| match group["group"].as_str() {
            Some("iod") => {
                ["syncs.object", "syncs.directory", "syncs.sums"].iter().map(|name| number(group, name)).sum()
            }
            // One of the log for each window; one of the database for each checkpoint, and one for what it leads to.
            Some("store") => number(group, "flushes") + 2 * number(group, "checkpoints"),
            _ => 0,
        };
        Ok(groups.as_array().ok_or("a status of no groups")?.iter().map(of_group).sum())
    }
}

/// Processor seconds.
pub struct Cpu {
    /// Of all processes.
    pub all: f64,
    /// Of this one.
    pub own: f64,
}

/// One that takes turns.
pub struct Side<'a> {
    name: String,
    /// Where it works.
    dir: PathBuf,
    kind: Kind<'a>,
}

/// What a side is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A folder of the local file system.
    Local,
    /// Bytes over a bare socket.
    Socket,
    /// Durable changes over a bare socket.
    Durable,
    /// A file system in memory.
    Fuse,
    /// A mount of Weir.
    Weir,
    /// Another mounted file system.
    Other,
}

/// A mounted file system that somebody else has started.
#[derive(Clone)]
pub struct Other {
    name: String,
    /// A folder of it.
    dir: PathBuf,
    /// All processes that work for it.
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
    /// A folder beside the stores.
    pub fn local(room: &Path) -> Outcome<Side<'a>> {
        Ok(Side { name: "local".to_owned(), dir: room.join("local"), kind: Kind::Local })
    }

    /// A bare socket, and a file beside the stores.
    pub fn socket(room: &Path) -> Outcome<Side<'a>> {
        let server = Server::start(&room.join("socket-file"))?;
        Ok(Side { name: "bare socket".to_owned(), dir: room.join("socket"), kind: Kind::Socket(server) })
    }

    /// The same for changes that are durable when they are answered.
    pub fn durable(room: &Path) -> Outcome<Side<'a>> {
        let server = Server::start(&room.join("durable-file"))?;
        Ok(Side { name: "durable request".to_owned(), dir: room.join("durable"), kind: Kind::Durable(server) })
    }

    /// A file system in memory, by the kernel's FUSE.
    pub fn fuse(room: &Path) -> Outcome<Side<'a>> {
        let at = room.join("fuse");
        fs::create_dir(&at)?;
        let (daemon, _) = Daemon::in_role(&[], &Role::BareFuse(at.clone()))?;
        Ok(Side { name: "bare FUSE".to_owned(), dir: at.join("fuse"), kind: Kind::Fuse { daemon, at } })
    }

    /// A mount at a folder that is made for it.
    pub fn weir(weir: &'a Weir, at: &Path, options: &str) -> Outcome<Side<'a>> {
        Side::by(weir, at, options, &weir.url)
    }

    /// The same by another URL.
    pub fn by(weir: &'a Weir, at: &Path, options: &str, url: &str) -> Outcome<Side<'a>> {
        fs::create_dir(at)?;
        let mut command = Command::new(&weir.program);
        command.args(["mount", "--foreground", "-o", options, url]).arg(at);
        let (daemon, _) = Daemon::announced(command)?;
        let name = if options == "defaults" { "weir".to_owned() } else { format!("weir {options}") };
        let dir = at.join(at.file_name().unwrap_or_default());
        Ok(Side { name, dir, kind: Kind::Mount { weir, daemon, at: at.to_owned() } })
    }

    /// A cluster of its own and its mount in one process.
    pub fn up(program: &Path, room: &Path, number: usize, options: &str) -> Outcome<Side<'a>> {
        let (store, at) = (room.join(format!("up-{number}")), room.join(format!("mnt-{number}")));
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

    /// What somebody else has mounted; a folder is made there.
    pub fn other(other: &Other) -> Side<'a> {
        let dir = other.dir.join(format!("bench-mount-{}", std::process::id()));
        Side { name: other.name.clone(), dir, kind: Kind::Other(other.clone()) }
    }

    /// Where it works.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn what(&self) -> What {
        match self.kind {
            Kind::Local => What::Local,
            Kind::Socket(_) => What::Socket,
            Kind::Durable(_) => What::Durable,
            Kind::Fuse { .. } => What::Fuse,
            Kind::Mount { .. } | Kind::Up { .. } => What::Weir,
            Kind::Other(_) => What::Other,
        }
    }

    /// Makes the folder.
    pub fn begin(&self) -> Outcome<()> {
        Ok(fs::create_dir(&self.dir)?)
    }

    /// Removes the folder and what is in it.
    pub fn end(&self) -> Outcome<()> {
        Ok(fs::remove_dir_all(&self.dir)?)
    }

    /// The processes behind it.
    fn pids(&self) -> Vec<u32> {
        match &self.kind {
            Kind::Mount { weir, daemon, .. } => vec![daemon.pid(), weir.daemon.pid()],
            Kind::Up { weir, .. } => vec![weir.daemon.pid()],
            Kind::Fuse { daemon, .. } => vec![daemon.pid()],
            Kind::Other(other) => other.pids.clone(),
            _ => Vec::new(),
        }
    }

    /// Waits until nobody does anything any more; processor time of the processes behind it up to then.
    fn settled(&self) -> Outcome<f64> {
        const LOOK: Duration = Duration::from_millis(200);
        // Some never rest altogether.
        let quiet = if self.what() == What::Other { 0.01 } else { 0.004 };
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

    /// Does what a row says: what was done, the processor time that it took, and syncs of servers. What the servers put
    /// off counts. `None` if there is nothing to do here.
    pub fn measure(&self, row: &Row, scale: usize) -> Outcome<Option<(Done, Cpu, u64)>> {
        let room = Room { dir: self.dir.clone(), scale };
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
            Some((server, Some(floor))) => floor(server, &room)?,
            Some((_, None)) => return Ok(None),
            None => (row.work)(&room)?,
        };
        let own = cpu_of(std::process::id())? - ours;
        let all = own + self.settled()? - theirs;
        if matches!(self.what(), What::Weir | What::Fuse | What::Other) {
            // What it was asked for is not what it did.
            done.syncs = 0;
        }
        Ok(Some((done, Cpu { all, own }, syncs()? - syncs_before)))
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        // Killed afterwards, whatever comes of it.
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
        // Above the highest that Linux gives.
        assert!(refused(&format!("a={}:5000000", dir.display())).contains("process 5000000"));
    }
}
