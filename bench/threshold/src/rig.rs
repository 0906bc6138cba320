//! Cluster of the `threshold` experiments: an mgr and eight iods behind slow links, the iods on slow disks, and
//! clients.

use crate::cluster::{Cluster, DaemonHost};
use crate::disks::Disks;
use crate::links::Network;
use crate::process::{self, Daemon, cpu_of_all};
use crate::{Outcome, Setup};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of iods, and size of each disk in bytes.
pub const IODS: usize = 8;
const DISK: u64 = 400 << 20;
const STRIPE_UNIT: &str = "64K";
const CPU: &str = "/sys/fs/cgroup/cpu";

/// All parts of the cluster. Rust drops fields in the order of their declaration, so the daemons are declared before
/// the disks and the network that they use.
pub struct Rig {
    weir: PathBuf,
    gathering: Cluster,
    plain: Cluster,
    /// The command prefix that runs the measured clients in their network namespace.
    client: Vec<OsString>,
    /// The command prefix that runs the clients which only load the mgr, in another network namespace.
    other: Vec<OsString>,
    /// A slow disk without an iod, for comparison. Its file system writes data at a sync, not with every write.
    pub local: PathBuf,
    mgr_cpu: Group,
    /// The directory for the traces that the clients replay.
    pub room: PathBuf,
    _disks: Disks,
    _network: Network,
}

/// The results of one replay of a trace.
#[derive(Deserialize)]
pub struct Run {
    pub seconds: f64,
    pub written_bytes: u64,
    pub read_bytes: u64,
    pub operations: u64,
    #[serde(default)]
    pub counters: Counters,
    #[serde(default)]
    pub write_thresholds: Vec<u64>,
    clients: u64,
    latencies: Vec<Latency>,
    /// Number of WRITE requests that the iods executed.
    #[serde(skip)]
    pub iod_writes: u64,
    /// CPU time of the daemons during the replay, as a share of the CPU time of all processors of the machine.
    #[serde(skip)]
    pub busy: f64,
}

#[derive(Deserialize)]
struct Latency {
    operation: String,
    up_to: u64,
    count: u64,
    sum_us: f64,
}

#[derive(Deserialize, Default)]
pub struct Counters {
    pub rpcs: BTreeMap<String, u64>,
    pub written_direct: u64,
    pub written_via_mgr: u64,
}

impl Run {
    /// Returns the throughput of the replay in bytes per second.
    pub fn rate(&self) -> f64 {
        (self.written_bytes + self.read_bytes) as f64 / self.seconds
    }

    /// Returns the throughput of the timed writes of `size` bytes, in bytes per second over the time of the writes and
    /// fsyncs.
    pub fn write_rate(&self, size: u64) -> f64 {
        let writes = |latency: &&Latency| latency.operation == "write" && latency.up_to == size.next_power_of_two();
        let count: u64 = self.latencies.iter().filter(writes).map(|latency| latency.count).sum();
        let timed = |latency: &&Latency| ["write", "fsync"].contains(&latency.operation.as_str());
        let micros: f64 = self.latencies.iter().filter(timed).map(|latency| latency.sum_us).sum();
        (count * size) as f64 / (micros / 1e6 / self.clients as f64)
    }

    /// Returns the number of all RPCs of the replay.
    pub fn rpcs(&self) -> u64 {
        self.counters.rpcs.values().sum()
    }
}

/// The file system that a client uses in a replay.
#[derive(Clone, Copy)]
pub enum On<'a> {
    /// The file system whose mgr gathers writes; the client uses it without a mount.
    Weir,
    /// The file system whose mgr does not gather writes; the client uses it without a mount.
    Plain,
    /// A local directory or a mount.
    Dir(&'a Path),
}

/// A cgroup that limits CPU time; dropping the value deletes the cgroup.
struct Group(PathBuf);

impl Group {
    /// Makes a cgroup for this process. Deletes cgroups of earlier processes that have ended.
    fn make() -> Outcome<Group> {
        const PREFIX: &str = "weir-cpu-";
        for entry in fs::read_dir(CPU)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.strip_prefix(PREFIX).is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
                drop(Group(entry.path()));
            }
        }
        let group = Group(Path::new(CPU).join(format!("{PREFIX}{}", std::process::id())));
        fs::create_dir(&group.0)?;
        Ok(group)
    }
}

/// Returns a command prefix that joins the cgroup and then executes a program.
fn inside(group: &Path) -> Vec<OsString> {
    let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
    vec!["sh".into(), "-c".into(), script.into(), group.into()]
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("threshold: {}: {error}", self.0.display());
        }
    }
}

impl Rig {
    pub fn make(setup: &Setup) -> Outcome<Rig> {
        let mut disks = Disks::new()?;
        let mut network = Network::make()?;
        let mgr_cpu = Group::make()?;
        let mut mgr = network.add(true)?;
        mgr.prefix = [inside(&mgr_cpu.0), mgr.prefix].concat();
        let mut iods = Vec::new();
        for _ in 0..IODS {
            let mut place = network.add(true)?;
            place.store = Some(disks.add(DISK, true)?);
            iods.push(place);
        }
        let stores = |name: &str| -> Vec<DaemonHost> {
            let on = |place: &DaemonHost| DaemonHost {
                store: place.store.as_ref().map(|dir| dir.join(name)),
                ..place.clone()
            };
            iods.iter().map(on).collect()
        };
        let weir = setup.weir.clone();
        // Put the mgr's store into memory: the experiments do not measure the mgr's disk, and other programs may use
        // the disks of this machine.
        mgr.store = Some(disks.memory("mgr-a")?);
        let gathering = Cluster::start(&weir, &setup.room.join("a"), &mgr, &stores("a"), false)?;
        mgr.store = Some(disks.memory("mgr-b")?);
        mgr.options = ["--gather-delay-ms", "0"].map(OsString::from).to_vec();
        let plain = Cluster::start(&weir, &setup.room.join("b"), &mgr, &stores("b"), false)?;
        // Enter the network namespaces with `nsenter`, not with `ip netns exec`: the latter creates a mount namespace,
        // so other processes would not see the mounts of a client.
        let enter = |place: DaemonHost| -> Vec<OsString> {
            let name = place.prefix.last().cloned().unwrap_or_default();
            let mut net = OsString::from("--net=/run/netns/");
            net.push(name);
            vec!["nsenter".into(), net]
        };
        let (client, other) = (enter(network.add(false)?), enter(network.add(false)?));
        let local = disks.add(DISK, false)?;
        let room = setup.room.clone();
        let rig = Rig { weir, gathering, plain, client, other, local, mgr_cpu, room, _disks: disks, _network: network };
        for on in [On::Weir, On::Plain] {
            let unit = format!("stripe_unit={STRIPE_UNIT}");
            process::run(rig.command(&rig.client, ["policy", "set", rig.url(on)?, &unit]))?;
        }
        Ok(rig)
    }

    fn url<'a>(&'a self, on: On<'a>) -> Outcome<&'a str> {
        match on {
            On::Weir => Ok(&self.gathering.url),
            On::Plain => Ok(&self.plain.url),
            On::Dir(dir) => Ok(dir.to_str().ok_or("a path that is no text")?),
        }
    }

    fn command<S: AsRef<OsStr>>(&self, prefix: &[OsString], words: impl IntoIterator<Item = S>) -> Command {
        let mut line = prefix.iter().map(OsString::as_os_str).chain([self.weir.as_os_str()]);
        let mut command = Command::new(line.next().unwrap_or_default());
        command.args(line).args(words);
        command
    }

    /// Replays a trace as [`Rig::replay`] does, and also counts the WRITE requests of the iods.
    pub fn counted(&self, on: On<'_>, words: &[&str]) -> Outcome<Run> {
        let before = self.iod_writes(on)?;
        let mut run = self.replay(on, words)?;
        run.iod_writes = self.iod_writes(on)? - before;
        Ok(run)
    }

    /// Replays a trace once the cluster is idle.
    pub fn replay(&self, on: On<'_>, words: &[&str]) -> Outcome<Run> {
        self.rest(on)?;
        let cluster = if matches!(on, On::Plain) { &self.plain } else { &self.gathering };
        let (pids, start) = (cluster.pids(), Instant::now());
        let used = cpu_of_all(&pids)?;
        let prefix = match on {
            On::Dir(_) => &[][..],
            _ => &self.client[..],
        };
        let mut all = vec!["replay", "--json", "--on", self.url(on)?];
        all.extend(words);
        let (text, _) = process::run(self.command(prefix, all))?;
        let mut run: Run = serde_json::from_str(&text).map_err(|e| format!("{e} in {text:?}"))?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        run.busy = (cpu_of_all(&pids)? - used) / (start.elapsed().as_secs_f64() * cpus);
        Ok(run)
    }

    /// Runs a `weir` command in the network namespace of the measured clients, and parses the output of the command.
    pub fn told(&self, words: &[&str]) -> Outcome<Value> {
        let (text, _) = process::run(self.command(&self.client, words))?;
        Ok(serde_json::from_str(&text).map_err(|e| format!("{e} in {text:?}"))?)
    }

    /// Returns the URL of the file system whose mgr gathers writes.
    pub fn weir_url(&self) -> &str {
        &self.gathering.url
    }

    fn status(&self, on: On<'_>) -> Outcome<Value> {
        let on = if matches!(on, On::Plain) { On::Plain } else { On::Weir };
        self.told(&["status", "--json", self.url(on)?])
    }

    /// Returns the number of WRITE requests of the iods so far. The mgr polls the iods for their counters, so this
    /// function waits until each iod has reported new counters.
    fn iod_writes(&self, on: On<'_>) -> Outcome<u64> {
        let counts = |name: &str| -> Outcome<Vec<u64>> {
            let status = self.status(on)?;
            let groups = status.as_array().ok_or("a status of no groups")?.iter();
            let of_iods = groups.filter(|group| group["group"] == "iod");
            Ok(of_iods.filter_map(|group| group["values"][name].as_u64()).collect())
        };
        let (old, start) = (counts("requests.stats")?, Instant::now());
        // A poll of the iod may be in flight now, with counters that the iod read before this call. So wait for two
        // polls.
        while counts("requests.stats")?.iter().zip(&old).any(|(new, old)| *new < old + 2) {
            if start.elapsed() > Duration::from_secs(60) {
                return Err("the iods do not tell their counts".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(counts("requests.write")?.iter().sum())
    }

    /// Waits until the objects of removed files are deleted from the disks.
    fn rest(&self, on: On<'_>) -> Outcome<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            let status = self.status(on)?;
            let work = status.as_array().into_iter().flatten().find(|group| group["group"] == "work");
            let left = |name| work.and_then(|work| work["values"][name].as_u64()).unwrap_or(0);
            if left("orphans") + left("doomed") == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("the iods do not come to rest".into())
    }

    /// Limits the CPU time of the mgr to this share of one processor; `None` removes the limit.
    pub fn hold_mgr_to(&self, share: Option<f64>) -> Outcome<()> {
        let quota = share.map_or(-1, |share| (share * 100_000.0) as i64);
        Ok(fs::write(self.mgr_cpu.0.join("cpu.cfs_quota_us"), quota.to_string())?)
    }

    /// Starts clients that read through the mgr until the returned value is dropped. These clients load the link and
    /// the processor of the mgr, but not the disks.
    pub fn storm(&self) -> Outcome<Daemon> {
        let before = self.proxied()?;
        let words = ["replay", "--generate", "random", "--read", "--fill", "--size", "4M", "--request", "256K"];
        let mut command = self.command(&self.other, words);
        command.args(["--clients", "4", "--count", "1000000", "--read-threshold", "max", "--on", &self.gathering.url]);
        let storm = Daemon::start(command.stdout(Stdio::null()))?;
        let start = Instant::now();
        while self.proxied()? < before + 100 {
            if start.elapsed() > Duration::from_secs(60) {
                return Err("the load of the mgr does not begin".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(storm)
    }

    /// Returns the number of reads on the mgr path since the start of the mgr.
    fn proxied(&self) -> Outcome<u64> {
        let status = self.status(On::Weir)?;
        let counters = status.as_array().into_iter().flatten().find(|group| group["group"] == "counters");
        Ok(counters.and_then(|counters| counters["values"]["proxy_reads"].as_u64()).unwrap_or(0))
    }

    /// Mounts the file system in a new directory until the returned value is dropped.
    pub fn mount(&self, name: &str, options: &str) -> Outcome<Mounted> {
        let dir = self.room.join(name);
        fs::create_dir_all(&dir)?;
        let mut command = self.command(&self.client, ["mount", "--foreground", &self.gathering.url]);
        command.arg(&dir).args(["-o", options]);
        let (daemon, _) = Daemon::announced(command)?;
        Ok(Mounted { dir, _daemon: daemon })
    }
}

/// A Weir mount; dropping the value unmounts it.
pub struct Mounted {
    pub dir: PathBuf,
    _daemon: Daemon,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Do not kill the mount's process: the unmount also ends it.
        if let Err(error) = crate::disks::run(Command::new("umount").arg(&self.dir)) {
            eprintln!("threshold: {error}");
        }
    }
}
