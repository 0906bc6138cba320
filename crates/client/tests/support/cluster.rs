//! A cluster of an mgr and iods in this process. The files of the cluster are in a temporary directory, which is
//! removed when the cluster is dropped.

use client::{Mount, Options, Target};
use mgr::{ClusterFile, Mgr};
use net::Address;
use std::net::SocketAddr;
use std::path::PathBuf;
use tempfile::TempDir;
use types::Cred;

/// A running cluster.
pub struct Cluster {
    dir: TempDir,
    pub file: ClusterFile,
    pub mgr: Option<mgr::Running>,
    pub iods: Vec<Option<iod::Running>>,
    iod_addresses: Vec<SocketAddr>,
    /// The addresses at which the mgr and the clients reach the iods. A test that puts a proxy before each iod passes
    /// the addresses of the proxies here, through `door` of [`Cluster::start_behind`].
    told: Vec<SocketAddr>,
    unix: bool,
    /// The lease time in seconds. A change applies from the next start of the mgr.
    pub lease_secs: Option<u32>,
    /// The lifetime of capabilities and tickets in seconds. A change applies from the next start of the mgr.
    pub capability_secs: Option<u32>,
    /// The server's policy settings. A change applies from the next start of the mgr. Without a value, those of the
    /// environment variable `WEIR_TEST_POLICY`: `WEIR_TEST_POLICY=layout=log` runs the tests with log files.
    pub policy: Option<String>,
    pub target: Target,
}

impl Cluster {
    /// Starts a new cluster of an mgr and `iods` iods.
    #[allow(dead_code)]
    pub async fn start(iods: usize) -> Self {
        Cluster::start_behind(iods, true, |address| address).await
    }

    /// Starts a cluster like [`Cluster::start`]. For each iod, `door` maps the address on which the iod listens to the
    /// address at which the mgr and the clients reach the iod. With `unix`, the mgr and the clients also reach the iod
    /// through its Unix socket.
    pub async fn start_behind(iods: usize, unix: bool, door: impl FnMut(SocketAddr) -> SocketAddr) -> Self {
        Cluster::start_with(iods, door, iod::Features::default(), |config| config.unix = unix).await
    }

    /// Starts a cluster like [`Cluster::start_behind`]. The iods have the features `features`, and `change` modifies
    /// each iod's configuration before the first start of the iod.
    pub async fn start_with(
        iods: usize,
        door: impl FnMut(SocketAddr) -> SocketAddr,
        features: iod::Features,
        change: impl Fn(&mut iod::Config),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = ClusterFile::create(&dir.path().join("cluster.toml")).unwrap();
        mgr::format(&dir.path().join("mgr"), &file).await.unwrap();
        let (mut running, mut addresses, mut unix) = (Vec::new(), Vec::new(), true);
        for i in 0..iods {
            let store = dir.path().join(format!("iod{i}"));
            iod::Store::format_with(&iod::Local::new(&store), file.fsid, features).unwrap();
            let listen = vec!["127.0.0.1:0".parse().unwrap()];
            let mut config = iod::Config::new(&store, file.fsid, file.key.clone(), listen);
            change(&mut config);
            unix = config.unix;
            let iod = iod::Iod::start(config).unwrap();
            addresses.push(iod.addrs()[0]);
            running.push(Some(iod));
        }
        let target = Target::parse("weir://nowhere/").unwrap();
        let told = addresses.iter().copied().map(door).collect();
        let (mgr, iod_addresses, lease_secs, capability_secs, policy) = (None, addresses, None, None, None);
        let mut cluster = Cluster {
            dir,
            file,
            mgr,
            iods: running,
            iod_addresses,
            told,
            unix,
            lease_secs,
            capability_secs,
            policy,
            target,
        };
        cluster.start_mgr("127.0.0.1:0".into()).await;
        cluster
    }

    async fn start_mgr(&mut self, listen: String) {
        let path = |name: &str| self.dir.path().join(name);
        let iods = self.told.iter().map(SocketAddr::to_string).collect();
        let mut config =
            mgr::Config { listen: vec![listen], ..mgr::Config::new(path("mgr"), path("cluster.toml"), iods) };
        config.lease_secs = self.lease_secs.unwrap_or(config.lease_secs);
        config.capability_secs = self.capability_secs.unwrap_or(config.capability_secs);
        config.policy = self.policy.clone().or_else(|| std::env::var("WEIR_TEST_POLICY").ok());
        let mgr = Mgr::start(config).await.unwrap();
        let Address::Tcp { host, port } = &mgr.addresses()[0] else { panic!("not TCP") };
        self.target = Target::parse(&format!("weir://{host}:{port}/")).unwrap();
        self.mgr = Some(mgr);
    }

    /// Stops the mgr and starts it again at the same address.
    #[allow(dead_code)]
    pub async fn restart_mgr(&mut self) {
        self.mgr.take().unwrap().stop().await;
        self.start_mgr(self.target.address()).await;
    }

    /// Starts a stopped mgr again at the same address.
    #[allow(dead_code)]
    pub async fn start_mgr_again(&mut self) {
        self.start_mgr(self.target.address()).await;
    }

    /// Stops an iod.
    #[allow(dead_code)]
    pub fn stop_iod(&mut self, index: usize) {
        self.iods[index].take().unwrap().stop();
    }

    /// Starts a stopped iod again at the same address.
    #[allow(dead_code)]
    pub fn start_iod(&mut self, index: usize) {
        let listen = vec![self.iod_addresses[index]];
        let config = iod::Config::new(self.store(index), self.file.fsid, self.file.key.clone(), listen);
        let config = iod::Config { unix: self.unix, ..config };
        self.iods[index] = Some(iod::Iod::start(config).unwrap());
    }

    /// Returns the directory of an iod's object store.
    #[allow(dead_code)]
    pub fn store(&self, index: usize) -> PathBuf {
        self.dir.path().join(format!("iod{index}"))
    }

    /// Mounts the file system of the cluster.
    #[allow(dead_code)]
    pub async fn mount(&self, options: Options) -> Mount {
        Mount::connect(&self.target, options).await.unwrap()
    }
}

/// Returns client options for root.
#[allow(dead_code)]
pub fn options() -> Options {
    // Cached sizes never expire, so that request counts do not depend on the speed of the machine.
    Options { cred: Cred::root(), size_valid: std::time::Duration::MAX, ..Options::default() }
}
