//! A cluster in one process, as `weir up` runs it: its directory, and how it is created, started and stopped.
//!
//! The directory of a cluster holds one folder, `cluster`. The first start creates this folder under another name, and
//! renames the folder when its stores are complete. So a folder named `cluster` always holds a whole file system.

use crate::daemon::{load, write_whole};
use crate::failure::Failure;
use crate::nfs::Nfs;
use iod::Iod;
use mgr::{ClusterFile, Config, Mgr};
use net::files::{FILE, WAY, make_way, narrow};
use net::{Address, Listener};
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Number of iods of a new cluster if the user gives no `--iods`.
const IODS: u16 = 4;
const READY: &str = "cluster";
const FORMING: &str = ".forming";
const STATE: &str = "up.toml";
const FORMAT: u32 = 1;

/// The content of `up.toml`: the settings that a cluster keeps from one start to the next.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Version of the format of the cluster's directory.
    format: u32,
    /// Number of iods of the cluster.
    iods: u16,
    /// Addresses at which the iods listened during the last start. The cluster uses the same addresses again, because
    /// clients that wait for a restarted iod try its last address.
    #[serde(default)]
    addresses: Vec<SocketAddr>,
}

/// A running cluster: an mgr and its iods in this process.
pub struct Cluster {
    mgr: mgr::Running,
    iods: Vec<iod::Running>,
    data_servers: Vec<ds::Running>,
    address: Address,
    new: bool,
}

/// Network traffic of all iods of the cluster since their start.
#[derive(Clone, Copy, Default)]
pub struct Traffic {
    /// Number of connections to the iods that are open now.
    pub connections: u64,
    /// Payload bytes that clients and the mgr have written to the iods.
    pub written: u64,
    /// Payload bytes that clients and the mgr have read from the iods.
    pub read: u64,
}

impl Cluster {
    /// Starts the cluster in `dir`, and creates the cluster first if `dir` holds none. New object stores have the
    /// features `features`. The mgr listens at `listen`. If `nfs_host` is set, NFS clients receive this address for the
    /// iods. With `recover_old_store`, the mgr accepts an older copy of its store.
    pub async fn start(
        dir: &Path,
        iods: Option<u16>,
        features: iod::Features,
        (listen, nfs_host): (SocketAddr, Option<IpAddr>),
        recover_old_store: bool,
    ) -> Result<Self, Failure> {
        let home = home(dir);
        let new = !exists(&home)?;
        if new {
            make(dir, iods.unwrap_or(IODS), features)
                .await
                .map_err(|e| e.about(format!("cannot make a cluster in {}", dir.display())))?;
        }
        // Other users need search permission on the cluster's directory to reach the mgr's Unix socket in it.
        narrow(&home, &[("", WAY), (STATE, FILE)]);
        let mut state: State = load(&home.join(STATE))?;
        if state.format != FORMAT {
            return Err(Failure::new(format!(
                "{} has format version {}, this program reads version {FORMAT}",
                home.display(),
                state.format
            ))
            .next("use the version of weir that made it, or another --dir"));
        }
        if let Some(wanted) = iods.filter(|wanted| *wanted != state.iods) {
            return Err(Failure::usage(format!("{} has {} iods, not {wanted}", dir.display(), state.iods))
                .next("omit --iods, or make another cluster with another --dir"));
        }
        let cluster_file = home.join("cluster.toml");
        let secret = ClusterFile::load(&cluster_file)?;
        // Bind the address of the mgr before the iods take free ports of the same host. Otherwise an iod could take the
        // mgr's port.
        let listener = Listener::bind(&listen.into()).await.map_err(|e| explain(e, listen))?;
        let (mut iods, mut data_servers) = (Vec::new(), Vec::new());
        for i in 0..state.iods {
            let (listeners, mut told) = Nfs::At(vec![SocketAddr::new(listen.ip(), 0)]).bind(Vec::new()).await?;
            if let Some(host) = nfs_host {
                let port = |address: &String| address.parse().map_or(0, |address: SocketAddr| address.port());
                told = told.iter().map(|address| SocketAddr::new(host, port(address)).to_string()).collect();
            }
            let before = state.addresses.get(usize::from(i)).copied();
            let iod = start_iod(&home, i, &secret, listen, before, told)?;
            data_servers.push(ds::start(iod.daemon(), listeners).await.map_err(Failure::from_message)?);
            iods.push(iod);
        }
        let addresses: Vec<SocketAddr> = iods.iter().flat_map(|iod| iod.addrs().iter().copied()).collect();
        if addresses != state.addresses {
            state.addresses = addresses.clone();
            write_state(&home, &state)?;
        }
        let mut config =
            Config::new(home.join("mgr"), cluster_file, addresses.iter().map(ToString::to_string).collect());
        config.listen = vec![listen.to_string()];
        config.recover_old_store = recover_old_store;
        let mgr = Mgr::start_at(config, vec![listener]).await?;
        let address = mgr.addresses().first().cloned().unwrap_or_else(|| listen.into());
        Ok(Cluster { mgr, iods, data_servers, address, new })
    }

    /// Returns the address at which the mgr listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the addresses at which the iods listen.
    pub fn iods(&self) -> Vec<String> {
        self.iods.iter().flat_map(|iod| iod.addrs()).map(ToString::to_string).collect()
    }

    /// Returns the mgr of this cluster.
    pub fn mgr(&self) -> &mgr::Running {
        &self.mgr
    }

    /// Returns whether [`Cluster::start`] created the file system of this cluster, because the directory held none.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// Returns the network traffic of all iods since their start.
    pub fn traffic(&self) -> Traffic {
        let counters = self.iods.iter().flat_map(|iod| iod.counters());
        counters.fold(Traffic::default(), |mut sum, counter| {
            match counter.name.as_str() {
                "connections.open" => sum.connections += counter.value,
                "bytes.written" => sum.written += counter.value,
                "bytes.read.copied" | "bytes.read.sendfile" => sum.read += counter.value,
                _ => {}
            }
            sum
        })
    }

    /// Stops the mgr, then the iods.
    pub async fn stop(self) {
        self.mgr.stop().await;
        for data_server in self.data_servers {
            data_server.stop().await;
        }
        drop(self.iods);
    }
}

/// Returns the path of the folder `cluster`, which holds the stores of the cluster whose directory is `dir`.
pub fn home(dir: &Path) -> PathBuf {
    dir.join(READY)
}

fn exists(path: &Path) -> Result<bool, Failure> {
    path.try_exists().map_err(|e| Failure::from(e).about(path.display()))
}

/// Creates a cluster in a directory that is missing or empty.
async fn make(dir: &Path, iods: u16, features: iod::Features) -> Result<(), Failure> {
    if !exists(dir)? {
        dir.parent().map_or(Ok(()), fs::create_dir_all)?;
        make_way(dir)?;
    }
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name != FORMING && name != "lost+found" {
            return Err(Failure::new(format!("the directory contains {}", name.display()))
                .next("choose an empty or missing directory with --dir"));
        }
    }
    let forming = dir.join(FORMING);
    // An interrupted first start has left the folder of an incomplete cluster. No client has stored a file in this
    // cluster, so remove the folder.
    if exists(&forming)? {
        fs::remove_dir_all(&forming)?;
    }
    make_way(&forming)?;
    let cluster_file = forming.join("cluster.toml");
    let mut cluster = ClusterFile::create(&cluster_file)?;
    let store = mgr::format(&forming.join("mgr"), &cluster).await?;
    cluster.name_store(&cluster_file, store)?;
    for i in 0..iods {
        iod::Store::format_with(&iod::Local::new(iod_dir(&forming, i)), cluster.fsid, features)?;
    }
    write_state(&forming, &State { format: FORMAT, iods, addresses: Vec::new() })?;
    fs::rename(&forming, dir.join(READY))?;
    Ok(fs::File::open(dir)?.sync_all()?)
}

fn iod_dir(home: &Path, i: u16) -> PathBuf {
    home.join(format!("iod-{i}"))
}

fn write_state(home: &Path, state: &State) -> Result<(), Failure> {
    let text = toml::to_string(state).map_err(Failure::new)?;
    write_whole(&home.join(STATE), text.as_bytes())
}

/// Starts one iod at the address of its last start, or on a free port if another process uses that address.
fn start_iod(
    home: &Path,
    i: u16,
    secret: &ClusterFile,
    listen: SocketAddr,
    before: Option<SocketAddr>,
    data_server: Vec<String>,
) -> Result<iod::Running, Failure> {
    let config = |address| iod::Config {
        data_server: data_server.clone(),
        ..iod::Config::new(iod_dir(home, i), secret.fsid, secret.key.clone(), vec![address])
    };
    let explain = |error| match error {
        iod::StartError::Store(iod::StoreError::InUse(_)) => Failure::new(format!("{} is in use", home.display()))
            .next("another \"weir up\" uses this directory: use that cluster, or give another --dir"),
        other => other.into(),
    };
    let free = SocketAddr::new(listen.ip(), 0);
    if let Some(address) = before.filter(|address| address.ip() == listen.ip()) {
        match Iod::start(config(address)) {
            Err(iod::StartError::Listen { .. }) => {}
            other => return other.map_err(explain),
        }
    }
    Iod::start(config(free)).map_err(explain)
}

/// Converts the error of a failed start of the mgr into a failure with advice. The usual cause is that another process
/// uses the mgr's port.
fn explain(error: net::Error, listen: SocketAddr) -> Failure {
    match error {
        net::Error::Listen { reason, .. } => {
            let other = SocketAddr::new(listen.ip(), listen.port().checked_add(10_000).unwrap_or(0));
            Failure::new(format!("cannot listen on {listen}: {}", reason.to_lowercase()))
                .next(format!("is another \"weir up\" or an NFS server running? Try --listen {other}"))
        }
        other => Failure::from_message(other),
    }
}
