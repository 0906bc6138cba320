//! A cluster for damage tests. A test repeatedly restores the stores of the cluster from a copy, damages a file of a
//! store, and starts the cluster.

use crate::seeded_random::SeededRandom;
use bytes::Bytes;
use client::{CreateOptions, Mount, OpenFlags, Options, Target};
use mgr::{ClusterFile, Mgr};
use net::Address;
use net::rpc::{Connection, Limits, NoService};
use rustix::fs::{SeekFrom, seek};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use types::Cred;
use wire::admin::{CheckReply, Group, PROGRAM, SCRUB, ScrubAction, ScrubArgs, ScrubReply, ScrubState, VERSION, Value};
use wire::rpc::{Auth, AuthSys};
use xdr::Xdr;

/// The expected contents of the files, by file name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The length of the header of an object file in bytes.
const HEAD: u64 = 4096;
const IODS: usize = 4;
/// The time limit of a start of the cluster, a scrub, or a repair.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns test data: each byte depends on its position and on `seed`, and no byte is 0.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31).wrapping_add(at >> 8).wrapping_add(seed * 7) % 251) as u8 + 1).collect()
}

/// Copies of the stores of a stopped cluster: their final state (directory `base`) and an earlier state (directory
/// `older`).
pub struct StoreCopies {
    dir: TempDir,
    file: ClusterFile,
    mirrors: u32,
    checksums: bool,
    addresses: Vec<SocketAddr>,
    files: Files,
}

/// The working directory with the stores that a test damages and starts.
pub struct RestoredStores {
    dir: PathBuf,
    file: ClusterFile,
    mirrors: u32,
    addresses: Vec<SocketAddr>,
}

/// A cluster that runs on restored stores ([`RestoredStores`]).
pub struct Running {
    pub target: Target,
    mgr: mgr::Running,
    iods: Vec<Option<iod::Running>>,
}

/// The damage that a test has done to one file of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    path: PathBuf,
    how: How,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Removed,
    Cut(u64),
    Older,
    Flipped { at: u64, bit: u32 },
}

fn mounting() -> Options {
    Options { cred: Cred::root(), ..Options::default() }
}

/// Returns all regular files below a directory, as sorted relative paths.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(at) = dirs.pop() {
        for entry in std::fs::read_dir(at).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => dirs.push(entry.path()),
                kind if kind.is_file() => found.push(entry.path().strip_prefix(dir).unwrap().to_owned()),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).ok();
    for file in files_below(from) {
        std::fs::create_dir_all(to.join(&file).parent().unwrap()).unwrap();
        copy_file(&from.join(&file), &to.join(&file)).unwrap();
    }
}

/// Copies a file, and preserves its holes.
fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let (from, to) = (std::fs::File::open(from)?, std::fs::File::create(to)?);
    to.set_len(from.metadata()?.len())?;
    to.set_permissions(from.metadata()?.permissions())?;
    let mut at = 0;
    while let Ok(data) = seek(&from, SeekFrom::Data(at)) {
        at = seek(&from, SeekFrom::Hole(data))?;
        let mut bytes = vec![0; (at - data) as usize];
        from.read_exact_at(&mut bytes, data)?;
        to.write_all_at(&bytes, data)?;
    }
    Ok(())
}

/// Returns the offset of the first data byte at or after `at`. A test can flip bits only in data, not in holes.
fn data_from(path: &Path, at: u64) -> Option<u64> {
    seek(std::fs::File::open(path).unwrap(), SeekFrom::Data(at)).ok()
}

fn is_object(path: &Path) -> bool {
    path.to_string_lossy().contains("objects/") && path.extension().is_none()
}

async fn put(mount: &Mount, name: &str, offset: u64, content: &[u8]) {
    let root = mount.root();
    let file = match mount.lookup(&root, name.as_bytes()).await {
        Ok((node, _)) => mount.open(&node, OpenFlags::READ_WRITE).await.unwrap(),
        Err(_) => mount.create(&root, name.as_bytes(), CreateOptions::default()).await.unwrap(),
    };
    file.write_at(offset, Bytes::copy_from_slice(content)).await.unwrap();
    file.close().await.unwrap();
}

impl StoreCopies {
    /// Builds the stores. Writes files and copies the stores to `older`, then changes the files and copies the stores
    /// to `base`.
    pub async fn build(mirrors: u32, checksums: bool) -> StoreCopies {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir(&work).unwrap();
        let file = ClusterFile::create(&work.join("cluster.toml")).unwrap();
        mgr::format(&work.join("mgr"), &file).await.unwrap();
        let features = iod::Features { block_checksums: checksums };
        let mut addresses = Vec::new();
        for index in 0..IODS {
            let store = work.join(format!("iod{index}"));
            iod::Store::format_with(&iod::Local::new(&store), file.fsid, features).unwrap();
            let listen = vec!["127.0.0.1:0".parse().unwrap()];
            let iod = iod::Iod::start(iod::Config::new(&store, file.fsid, file.key.clone(), listen)).unwrap();
            addresses.push(iod.addrs()[0]);
            iod.stop();
        }
        let mut copies = StoreCopies { dir, file, mirrors, checksums, addresses, files: Files::new() };
        copies.write_first_files().await;
        copy(&work, &copies.dir.path().join("older"));
        copies.change_files().await;
        copy(&work, &copies.dir.path().join("base"));
        copies
    }

    async fn write_first_files(&mut self) {
        let running = self.stores().start().await.unwrap();
        let mount = Mount::connect(&running.target, mounting()).await.unwrap();
        for (seed, (name, len)) in
            [("tiny", 300), ("short", 5000), ("long", 300_000), ("rewritten", 120_000), ("gone", 90_000)]
                .iter()
                .enumerate()
        {
            put(&mount, name, 0, &pattern(*len, seed)).await;
        }
        put(&mount, "appended", 0, &pattern(100_000, 8)).await;
        put(&mount, "truncated", 0, &pattern(200_000, 9)).await;
        mount.mkdir(&mount.root(), b"dir", 0o755).await.unwrap();
        running.settled().await;
        mount.disconnect().await.unwrap();
        running.stop().await;
    }

    async fn change_files(&mut self) {
        let running = self.stores().start().await.unwrap();
        let mount = Mount::connect(&running.target, mounting()).await.unwrap();
        let root = mount.root();
        put(&mount, "rewritten", 0, &pattern(150_000, 20)).await;
        put(&mount, "appended", 100_000, &pattern(60_000, 21)).await;
        put(&mount, "sparse", 0, &pattern(20_000, 22)).await;
        put(&mount, "sparse", 900_000, &pattern(50_000, 23)).await;
        let (node, _) = mount.lookup(&root, b"truncated").await.unwrap();
        let file = mount.open(&node, OpenFlags::READ_WRITE).await.unwrap();
        file.set_len(77_777).await.unwrap();
        file.close().await.unwrap();
        mount.remove(&root, b"gone").await.unwrap();
        for number in 0..20 {
            put(&mount, &format!("f{number}"), 0, &pattern(number * 200, number)).await;
        }
        let mut sparse = pattern(20_000, 22);
        sparse.resize(900_000, 0);
        sparse.extend(pattern(50_000, 23));
        let appended = [pattern(100_000, 8), pattern(60_000, 21)].concat();
        let known = [
            ("tiny", pattern(300, 0)),
            ("short", pattern(5000, 1)),
            ("long", pattern(300_000, 2)),
            ("rewritten", pattern(150_000, 20)),
            ("appended", appended),
            ("truncated", pattern(200_000, 9)[..77_777].to_vec()),
            ("sparse", sparse),
        ];
        self.files.extend(known.map(|(name, content)| (name.to_owned(), content)));
        self.files.extend((0..20).map(|number| (format!("f{number}"), pattern(number * 200, number))));
        running.settled().await;
        mount.disconnect().await.unwrap();
        running.stop().await;
    }

    fn stores(&self) -> RestoredStores {
        let (dir, file) = (self.dir.path().join("work"), self.file.clone());
        RestoredStores { dir, file, mirrors: self.mirrors, addresses: self.addresses.clone() }
    }

    /// Restores the stores of the working directory from the copy `base`.
    pub fn restore(&self) -> RestoredStores {
        copy(&self.dir.path().join("base"), &self.dir.path().join("work"));
        self.stores()
    }

    pub fn files(&self) -> &Files {
        &self.files
    }

    pub fn mirrors(&self) -> u32 {
        self.mirrors
    }

    pub fn kind(&self) -> String {
        format!("mirrors={} block-checksums={}", self.mirrors, self.checksums)
    }

    fn base(&self, path: &Path) -> Vec<u8> {
        std::fs::read(self.dir.path().join("base").join(path)).unwrap()
    }
}

impl Damage {
    /// Returns whether the damaged file belongs to the metadata store.
    pub fn is_of_the_mgr(&self) -> bool {
        self.path.starts_with("mgr")
    }

    /// Returns whether a read may return wrong bytes without an error. This is so if the store has no block checksums,
    /// and the damage flipped a bit of an object's bytes or replaced an object by an older copy.
    pub fn excuses(&self, copies: &StoreCopies) -> bool {
        let in_place = match self.how {
            How::Flipped { at, .. } => at >= HEAD,
            How::Older => true,
            How::Removed | How::Cut(_) => false,
        };
        is_object(&self.path) && in_place && !copies.checksums
    }

    /// Returns whether the damage has certainly destroyed bytes of an object.
    pub fn loses_bytes(&self, copies: &StoreCopies) -> bool {
        is_object(&self.path)
            && !self.excuses(copies)
            && copies.base(&self.path).len() as u64 > HEAD
            && match self.how {
                How::Removed | How::Cut(_) => true,
                How::Flipped { at, .. } => at >= HEAD,
                How::Older => false,
            }
    }
}

impl RestoredStores {
    /// Damages a random file of the stores in a random way. Returns `None` if the chosen damage is impossible: the file
    /// has no older copy with different bytes, or no data byte whose bit can be flipped.
    pub fn damage(&self, copies: &StoreCopies, random: &mut SeededRandom) -> Option<Damage> {
        let all = files_below(&self.dir).into_iter().filter(|path| path != Path::new("cluster.toml"));
        let (of_the_mgr, of_iods): (Vec<_>, Vec<_>) = all.partition(|path| path.starts_with("mgr"));
        let from = if random.below(4) == 0 { &of_the_mgr } else { &of_iods };
        let path = from[random.below(from.len())].clone();
        let whole = self.dir.join(&path);
        let len = whole.metadata().unwrap().len();
        let how = match random.below(4) {
            0 => How::Removed,
            1 if len > 0 => How::Cut(random.below(len as usize) as u64),
            2 if len > 0 => {
                How::Flipped { at: data_from(&whole, random.below(len as usize) as u64)?, bit: random.below(8) as u32 }
            }
            _ => How::Older,
        };
        match how {
            How::Removed => std::fs::remove_file(&whole).unwrap(),
            How::Cut(len) => std::fs::File::options().write(true).open(&whole).unwrap().set_len(len).unwrap(),
            How::Flipped { at, bit } => {
                let file = std::fs::File::options().read(true).write(true).open(&whole).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
            }
            How::Older => {
                let older = std::fs::read(copies.dir.path().join("older").join(&path)).ok()?;
                if older == copies.base(&path) {
                    return None;
                }
                std::fs::write(&whole, older).unwrap();
            }
        }
        Some(Damage { path, how })
    }

    /// Returns all object files with their contents.
    pub fn objects(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let all = files_below(&self.dir).into_iter().filter(|path| is_object(path));
        all.map(|path| (path.clone(), std::fs::read(self.dir.join(path)).unwrap())).collect()
    }

    /// Checks that every object file has the same bytes behind its header as before the damage.
    pub fn compare_objects(&self, copies: &StoreCopies, about: &str) {
        for (path, now) in self.objects() {
            let was = copies.base(&path);
            let differ = was[HEAD as usize..].iter().zip(&now[HEAD as usize..]).position(|(was, now)| was != now);
            let same = was.len() == now.len() && differ.is_none();
            let (path, lens) = (path.display(), (was.len(), now.len()));
            assert!(same, "{about}: {path} is not what it was: lengths {lens:?}, first other byte {differ:?}");
        }
    }

    /// Starts the mgr and each iod that can start with its store. If the mgr cannot start, returns the reason.
    pub async fn start(&self) -> Result<Running, String> {
        let mut iods = Vec::new();
        for (index, address) in self.addresses.iter().enumerate() {
            let store = self.dir.join(format!("iod{index}"));
            let config = iod::Config::new(store, self.file.fsid, self.file.key.clone(), vec![*address]);
            iods.push(iod::Iod::start(config).ok());
        }
        let names = self.addresses.iter().map(SocketAddr::to_string).collect();
        let config = mgr::Config::new(self.dir.join("mgr"), self.dir.join("cluster.toml"), names);
        let config = mgr::Config {
            listen: vec!["127.0.0.1:0".into()],
            stripe_unit: "16K".into(),
            stripe_count: 2,
            mirrors: self.mirrors,
            iod_wait_secs: 1,
            ..config
        };
        let mgr = match Mgr::start(config).await {
            Ok(mgr) => mgr,
            Err(why) => {
                iods.into_iter().flatten().for_each(iod::Running::stop);
                return Err(why.to_string());
            }
        };
        let Address::Tcp { host, port } = &mgr.addresses()[0] else { panic!("not TCP") };
        let target = Target::parse(&format!("weir://{host}:{port}/")).unwrap();
        let running = Running { target, mgr, iods };
        tokio::select! {
            why = running.mgr.failed() => {
                let why = why.to_string();
                running.stop().await;
                return Err(why);
            }
            () = running.wait_up() => {}
        }
        Ok(running)
    }
}

impl Running {
    pub fn all_up(&self) -> bool {
        self.count(&["up"]) == IODS
    }

    /// Returns the number of iods for which the mgr reports one of these states or one of these problems.
    fn count(&self, said: &[&str]) -> usize {
        let says = |group: &&Group| {
            let text = |name| match group.get(name) {
                Some(Value::Text(text)) => text.as_str(),
                _ => "",
            };
            group.name == "iod" && said.iter().any(|said| text("state") == *said || text("problem").contains(said))
        };
        self.mgr.status().groups.iter().filter(says).count()
    }

    /// Waits until, for each running iod, the mgr reports that the iod is up or that its disk is an older copy.
    async fn wait_up(&self) {
        let running = self.iods.iter().flatten().count();
        self.until("the iods are up", async || self.count(&["up", "its disk is an older copy"]) == running).await;
    }

    /// Waits until the mgr reports no unsettled files. A file is unsettled while the mgr's record says that clients are
    /// writing the file.
    async fn settled(&self) {
        self.until("files settle", async || {
            self.check(false).await.counts.iter().all(|(name, n)| name != "files_unsettled" || *n == 0)
        })
        .await;
    }

    async fn until(&self, what: &str, mut is: impl AsyncFnMut() -> bool) {
        let begun = std::time::Instant::now();
        while !is().await {
            assert!(begun.elapsed() < 2 * PATIENCE, "{what}: not yet");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn check(&self, repair: bool) -> CheckReply {
        self.mgr.check(repair).await
    }

    /// Repeats a file system check with repair until the check reports no problem.
    pub async fn until_clean(&self, about: &str) {
        let mut last = CheckReply::default();
        let clean = self.until("clean", async || {
            last = self.check(true).await;
            last.findings.is_empty()
        });
        assert!(tokio::time::timeout(PATIENCE, clean).await.is_ok(), "{about}: not clean: {:?}", last.findings);
    }

    /// Scrubs all iods, and returns the number of damages that the scrub found. If an iod is down, returns 0 without a
    /// scrub.
    pub async fn scrub(&self) -> u64 {
        if !self.all_up() {
            return 0;
        }
        self.ask(ScrubAction::Start).await;
        self.until("the scrub ends", async || self.ask(ScrubAction::Status).await.state != ScrubState::Running).await;
        self.ask(ScrubAction::Status).await.found
    }

    async fn ask(&self, action: ScrubAction) -> ScrubReply {
        let address = self.mgr.addresses()[0].clone();
        let limit = Duration::from_secs(10);
        let connection =
            Connection::connect(&address, Arc::new(NoService), Limits::default(), net::Counters::default(), limit);
        let connection = connection.await.unwrap();
        let auth = Auth::Sys(AuthSys::new(&Cred::root(), "test"));
        let args = ScrubArgs { action, rate: 0, findings_from: None }.to_bytes().into();
        let mut reply = connection.call(PROGRAM, VERSION, SCRUB, &auth, args, limit).await.unwrap();
        ScrubReply::decode(&mut reply.body).unwrap()
    }

    pub async fn stop(self) {
        self.mgr.stop().await;
        self.iods.into_iter().flatten().for_each(iod::Running::stop);
    }
}
