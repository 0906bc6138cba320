//! The simulated cluster of a run: network, mgr and iods.

use crate::hosts::{AUDITOR, CLIENT, IOD, IOD_PORT, IodHost, MGR, MgrHost, address, name};
use crate::network::Net;
use crate::plan::Plan;
use crate::random::Rng;
use crate::storage::{Image, MetaDisk, Part};
use client::{Mount, Options, Target};
use iod::{Features, Memory, Store};
use meta::{Embedded, Format, Namespace, Stepper};
use mgr::{ClusterFile, Config};
use net::task::Group;
use std::sync::OnceLock;
use std::time::Duration;
use types::{Cred, Fsid, Timestamp};
use wire::native::Key;

/// The file system id, which is the same in every run.
const FSID: Fsid = Fsid([5; 16]);
/// Size of an iod's disk in bytes.
pub const IOD_DISK: u64 = 64 << 20;
/// Size of the mgr's disk in bytes.
pub const MGR_DISK: u64 = 4 << 30;

/// The daemons and the network of a simulated run.
pub struct Cluster {
    /// The simulated network between all hosts.
    pub net: Net,
    /// The mgr and its host.
    pub mgr: MgrHost,
    /// The iods and their hosts.
    pub iods: Vec<IodHost>,
}

impl Cluster {
    /// Creates a formatted cluster in which no process runs, and installs its network as the network of this thread.
    pub async fn new(plan: &Plan) -> Result<Self, String> {
        let rng = |purpose| Rng::new(plan.seed, purpose);
        let mut hosts = vec![MGR, AUDITOR];
        hosts.extend((0..plan.iods as u64).map(|i| IOD + i));
        hosts.extend((0..plan.clients.len() as u64).map(|c| CLIENT + c));
        let net = Net::new(rng("network"), plan.conditions, hosts.into_iter().map(|host| (address(host), host)));
        net::memory::install(Some(std::sync::Arc::new(net.clone())));
        let mut keys = rng("keys");
        let mut bytes = || -> [u8; 32] { std::array::from_fn(|_| keys.draw() as u8) };
        let cluster = ClusterFile { fsid: FSID, key: Key::new(bytes()), store: None };
        let disk = MetaDisk::new(rng("mgr disk"), MGR_DISK);
        disk.load(empty().as_ref()?);
        let iods: Vec<String> = (0..plan.iods as u64).map(|i| format!("{}:{IOD_PORT}", address(IOD + i))).collect();
        let config = Config {
            lease_secs: plan.lease_secs,
            capability_secs: plan.capability_secs,
            stripe_unit: plan.unit.to_string(),
            mgr_gather_delay_ms: plan.gather_delay_ms,
            stripe_count: plan.stripe_count,
            gather_memory: plan.gather_bytes.to_string(),
            inline_max: plan.inline_max.to_string(),
            policy: plan.log_files.then(|| "layout=log".to_owned()),
            // Set the wait for an unreachable iod to one day, so that no request fails in a run. The mgr also applies
            // this wait to client requests on the mgr path.
            iod_wait_secs: 86400,
            ..Config::new("/", "/", iods)
        };
        let mgr = MgrHost::new(net.clone(), disk, config, cluster.clone(), rng("mgr"));
        mgr.set_flush_ms(plan.flush_ms);
        let mut iods = Vec::new();
        for i in 0..plan.iods as u64 {
            let rng = Rng::new(plan.seed, &name(IOD + i));
            let disk = Memory::new(name(IOD + i), IOD_DISK);
            let features = Features { block_checksums: plan.block_checksums };
            Store::format_with(&disk, cluster.fsid, features).map_err(|e| e.to_string())?;
            iods.push(IodHost::new(i, net.clone(), rng, cluster.fsid, cluster.key.clone(), disk));
        }
        Ok(Cluster { net, mgr, iods })
    }

    /// Powers the mgr's host on and starts the mgr, unless it is running.
    pub fn start_mgr(&mut self) {
        if !self.mgr.is_up() {
            self.net.power_on(MGR);
            self.mgr.start();
        }
    }

    /// Powers the host of an iod on and starts the iod, unless it is running.
    pub fn start_iod(&mut self, iod: usize) -> Result<(), String> {
        if self.iods[iod].is_up() {
            return Ok(());
        }
        self.net.power_on(self.iods[iod].host());
        self.iods[iod].start()
    }
}

/// The disk image of an empty file system, the same for every run.
static EMPTY: OnceLock<Result<Image, String>> = OnceLock::new();

/// Returns the disk image of an empty file system. The first call formats the image.
pub fn empty() -> &'static Result<Image, String> {
    EMPTY.get_or_init(format)
}

/// Formats an empty file system in a new thread. So the formatting takes no random numbers from the run that needs the
/// image first.
fn format() -> Result<Image, String> {
    let work = || {
        crate::random::seed_thread(0);
        let disk = MetaDisk::new(Rng::new(0, "format"), MGR_DISK);
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|e| e.to_string())?;
        runtime.block_on(format_on(&disk))?;
        Ok(disk.image())
    };
    std::thread::spawn(work).join().unwrap_or_else(|_| Err("formatting ended in a panic".into()))
}

async fn format_on(disk: &MetaDisk) -> Result<(), String> {
    let (store, log) = (disk.open(Part::Store), disk.open(Part::Log));
    let (engine, stepper) = Embedded::stepped(store, log, FSID.0, meta::merge, || None).map_err(|e| e.to_string())?;
    let now = Timestamp::from(std::time::SystemTime::UNIX_EPOCH);
    let format = Format { fsid: FSID, now, cookie_key: [7; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
    let mut stepping = std::pin::pin!(step(stepper));
    let made = tokio::select! {
        biased;
        made = Namespace::format(engine, format) => made,
        () = &mut stepping => return Err("the store closed itself".into()),
    };
    drop(made.map_err(|e| e.to_string())?);
    // Close the metadata store cleanly, so that no run must replay the batch log.
    stepping.await;
    Ok(())
}

async fn step(mut stepper: Stepper) {
    loop {
        stepper.ready().await;
        if stepper.step(Duration::ZERO) == meta::Step::Closed {
            return;
        }
    }
}

/// Returns the mount options of a client.
pub fn options(plan: &Plan, client: u64, direct: bool, checksums: bool) -> Options {
    Options {
        // Let one failed lookup in a directory suffice to start negative lookup caching, so that short runs test it
        // too.
        negative: 1,
        direct,
        checksums,
        retry_timeout: plan.retry,
        cred: Cred { uid: 0, gid: 0, groups: Vec::new() },
        name: name(client),
        durable: plan.durable(client),
        ..Options::default()
    }
}

/// Mounts the file system. Repeats the attempt while the mgr is unreachable.
pub async fn mount(options: Options) -> Result<Mount, String> {
    let target = Target::parse("weir://mgr/").map_err(|e| e.to_string())?;
    loop {
        match Mount::connect(&target, options.clone()).await {
            Ok(mount) => return Ok(mount),
            Err(error) => tracing::debug!("cannot mount yet: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Runs a task in the task group of a host and returns its result.
pub async fn on_host<T: Send + 'static>(
    host: crate::network::Host,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, String> {
    Group::new(host).spawn(work).await.map_err(|e| format!("{} ended: {e}", name(host)))
}
