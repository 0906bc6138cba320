//! A test cluster in this process: a mgr and some iods in a temporary directory, each of which a test can stop and
//! start.

use bytes::Bytes;
use mgr::{ClusterFile, Config, Files, Mgr, Running};
use nfs::fs::{Ctx, FileSystem, OpenHow, Opened, Stability, WriteOut};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use types::{Attrs, Cred, FileId, SetAttrs, Status};

pub struct Cluster {
    pub dir: TempDir,
    pub file: ClusterFile,
    pub config: Config,
    pub mgr: Option<Running>,
    pub iods: Vec<Option<iod::Running>>,
    addresses: Vec<SocketAddr>,
}

impl Cluster {
    /// Creates a new cluster and starts all its daemons. Files have stripe units of `unit` bytes and use all iods.
    pub async fn new(iods: usize, unit: &str) -> Cluster {
        let mut cluster = Cluster::stopped(iods, unit).await;
        cluster.start_mgr().await;
        cluster
    }

    /// Creates a new cluster and starts its iods, but not its mgr.
    pub async fn stopped(iods: usize, unit: &str) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.toml");
        let file = ClusterFile::create(&path).unwrap();
        mgr::format(&dir.path().join("mgr"), &file).await.unwrap();
        let config = Config::new(dir.path().join("mgr"), path, Vec::new());
        let config = Config { listen: vec!["127.0.0.1:0".into()], stripe_unit: unit.into(), lease_secs: 5, ..config };
        // Inline files are disabled, because the tests write little data and need these data on iods.
        let config = Config { inline_max: "0".into(), ..config };
        let mut cluster = Cluster { dir, file, config, mgr: None, iods: Vec::new(), addresses: Vec::new() };
        for i in 0..iods {
            iod::Store::format(&cluster.iod_dir(i), cluster.file.fsid).unwrap();
            cluster.addresses.push("127.0.0.1:0".parse().unwrap());
            cluster.iods.push(None);
            cluster.start_iod(i);
            cluster.addresses[i] = cluster.iods[i].as_ref().unwrap().addrs()[0];
        }
        cluster.config.iods = cluster.addresses.iter().map(ToString::to_string).collect();
        cluster
    }

    pub fn iod_dir(&self, i: usize) -> PathBuf {
        self.dir.path().join(format!("iod{i}"))
    }

    pub fn start_iod(&mut self, i: usize) {
        self.start_iod_with(i, true);
    }

    /// Starts an iod like [`Self::start_iod`], with or without a Unix socket.
    pub fn start_iod_with(&mut self, i: usize, unix: bool) {
        self.iods[i] = Some(iod::Iod::start(iod::Config { unix, ..self.iod_config(i) }).unwrap());
    }

    /// Starts an iod like [`Self::start_iod`]. The iod announces an NFS address on which no server listens.
    pub fn start_data_server(&mut self, i: usize) {
        let config = iod::Config { data_server: vec!["127.0.0.1:1".into()], ..self.iod_config(i) };
        self.iods[i] = Some(iod::Iod::start(config).unwrap());
    }

    fn iod_config(&self, i: usize) -> iod::Config {
        iod::Config::new(self.iod_dir(i), self.file.fsid, self.file.key.clone(), vec![self.addresses[i]])
    }

    pub fn stop_iod(&mut self, i: usize) {
        self.iods[i].take().unwrap().stop();
    }

    pub async fn start_mgr(&mut self) {
        self.mgr = Some(Mgr::start(self.config.clone()).await.unwrap());
    }

    pub async fn restart_mgr(&mut self) {
        self.mgr.take().unwrap().stop().await;
        self.start_mgr().await;
    }

    pub fn mgr(&self) -> &Running {
        self.mgr.as_ref().unwrap()
    }

    pub fn files(&self) -> Files {
        self.mgr().files()
    }

    /// Returns the number of objects on the running iods.
    pub fn objects(&self) -> u64 {
        self.iods.iter().flatten().map(|iod| files_below(&iod.store().dir().join("objects"))).sum()
    }

    /// Waits until the mgr shows `count` iods as connected.
    pub async fn wait_up(&self, count: usize) {
        until("the iods are up", || self.up() == count).await;
    }

    pub fn up(&self) -> usize {
        let status = self.mgr().status();
        let up = wire::admin::Value::Text("up".into());
        status.groups.iter().filter(|g| g.name == "iod" && g.get("state") == Some(&up)).count()
    }
}

/// Returns the number of files in a directory tree. Directories may appear and disappear during the count.
fn files_below(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| if e.path().is_dir() { files_below(&e.path()) } else { 1 }).sum()
}

/// Waits until `reached` returns true. Panics after a timeout with the text `what`, which names the state that the test
/// waits for.
pub async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let begun = SystemTime::now();
    while !reached() {
        assert!(begun.elapsed().unwrap() < Duration::from_secs(60), "not reached in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn ctx(client: u64) -> Ctx {
    Ctx { cred: Cred::root(), now: SystemTime::now().into(), client, minor: 2, ..Ctx::default() }
}

pub async fn create(files: &Files, name: &str) -> FileId {
    let opened: Result<Opened, Status> =
        files.open_create(&ctx(1), FileId::ROOT, &name.to_owned().into(), OpenHow::Guarded, mode(0o644), false).await;
    opened.unwrap().attrs.id
}

pub fn mode(mode: u32) -> SetAttrs {
    SetAttrs { mode: Some(mode), ..SetAttrs::default() }
}

pub async fn write(files: &Files, file: FileId, offset: u64, data: &[u8], stable: Stability) -> WriteOut {
    let out = files.write(&ctx(1), file, offset, Bytes::copy_from_slice(data), stable).await.unwrap();
    assert_eq!(out.count as usize, data.len());
    assert!(out.stable >= stable);
    out
}

pub async fn read(files: &Files, file: FileId, offset: u64, len: u32) -> Result<Bytes, Status> {
    Ok(files.read(&ctx(1), file, offset, len).await?.data.to_bytes())
}

pub async fn set_size(files: &Files, file: FileId, size: u64) -> Attrs {
    let set = SetAttrs { size: Some(size), ..SetAttrs::default() };
    files.setattr(&ctx(1), file, set, true).await.unwrap()
}

pub async fn remove(files: &Files, name: &str) -> FileId {
    let removed = files.remove(&ctx(1), FileId::ROOT, &name.to_owned().into(), &|_| false).await.unwrap();
    assert!(removed.orphaned);
    removed.id
}

/// Returns test data of `len` nonzero bytes that depend on their position and on `seed`.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u64).wrapping_mul(0x9e37_79b9).to_be_bytes()[5] ^ seed | 1).collect()
}
