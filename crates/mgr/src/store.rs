//! The metadata store in the mgr's directory: creates and opens it, with a separate error for each mistake of the user.

use crate::backup;
use crate::clock::now;
use crate::cluster_file::ClusterFile;
use crate::error::{Error, io_error, random};
use bytes::Bytes;
use meta::{Embedded, Format, Namespace};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{FileId, Status, StoreId};

/// Name of the metadata store file in the mgr's directory.
pub(crate) const STORE: &str = "meta.redb";
/// Registry key of the identity of the store. Only a restored store has this record, because a restore makes a new
/// batch log. Every other store has the identity of its batch log.
const IDENTITY: &[u8] = b"mgr/store";
/// Registry key of an inode number. The mgr keeps objects with a lower inode number even if their file does not exist.
/// Only a store recovered from an older copy has this record, because such a store does not have all files of the later
/// state.
const KEEP: &[u8] = b"mgr/keep";
/// Registry key of the epoch: the number of starts of the mgr on this store.
const EPOCH: &[u8] = b"mgr/epoch";
/// How long a start waits until another process closes the store. The kernel may need time to clean up a killed
/// process.
const IN_USE_WAIT: Duration = Duration::from_secs(5);
/// Interval at which a start retries to open the store while another process has it open.
const IN_USE_PAUSE: Duration = Duration::from_millis(50);

fn store_path(dir: &Path) -> PathBuf {
    dir.join(STORE)
}

/// Restricts the modes of the mgr's directory and of the files in it to the owner. Other users may only search the
/// directory, to reach the Unix socket in it.
pub(crate) fn narrow(dir: &Path) {
    use net::files::{FILE, WAY};
    let files = [STORE, backup::LOG, backup::RESTORING, backup::RESTORING_LOG];
    let all: Vec<_> = std::iter::once(("", WAY)).chain(files.map(|name| (name, FILE))).collect();
    net::files::narrow(dir, &all);
}

/// Creates an empty file system in `dir`, and the directory if it is missing. The root directory of the file system
/// gets the owner of `dir`.
///
/// # Errors
/// Fails if `dir` contains a store already, or if the directory cannot be written.
pub async fn format(dir: &Path, cluster: &ClusterFile) -> Result<StoreId, Error> {
    let io = |action| move |e| io_error(dir, action, "make the directory above it first", e);
    match net::files::make_way(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(io("make the directory")(e)),
        _ => {}
    }
    let owner = std::fs::metadata(dir).map_err(io("look at the directory"))?;
    let (cookie_key, id) = (random()?, random()?);
    let path = store_path(dir);
    let engine = {
        let path = path.clone();
        blocking(move || Embedded::create(&path, id, meta::merge)).await?
    };
    let format = Format {
        fsid: cluster.fsid,
        now: now(),
        cookie_key,
        root_mode: 0o755,
        root_uid: owner.uid(),
        root_gid: owner.gid(),
    };
    Namespace::format(engine, format).await?;
    // Change the modes only now that the creation of the store has succeeded. Before that, `dir` could be a directory
    // of other programs.
    narrow(dir);
    tracing::info!(store = %path.display(), fsid = %cluster.fsid, "formatted");
    Ok(StoreId(id))
}

/// Opens the metadata store in `dir`, and checks that it belongs to the file system of the cluster file.
pub(crate) async fn open(
    dir: &Path,
    cluster: &ClusterFile,
    cluster_file: &Path,
) -> Result<Arc<Namespace<Embedded>>, Error> {
    let hint = "give the directory that `weir mkfs` made";
    let meta = std::fs::metadata(dir).map_err(|e| io_error(dir, "look at the directory", hint, e))?;
    if !meta.is_dir() {
        return Err(Error::BadFile { path: dir.to_owned(), reason: format!("not a directory: {hint}") });
    }
    let path = store_path(dir);
    let namespace = Namespace::open(engine(&path).await?)?;
    if namespace.fsid() != cluster.fsid {
        return Err(Error::ForeignStore {
            store: path,
            found: namespace.fsid(),
            file: cluster_file.to_owned(),
            expected: cluster.fsid,
        });
    }
    let found = identity(&namespace).map_err(Error::Metadata)?;
    if let Some(expected) = cluster.store.filter(|expected| *expected != found) {
        return Err(Error::OtherStore { store: path, found, file: cluster_file.to_owned(), expected });
    }
    narrow(dir);
    Ok(Arc::new(namespace))
}

/// Returns the identity of the metadata store. All copies of a store have the same identity.
pub(crate) fn identity(namespace: &Namespace<Embedded>) -> Result<StoreId, Status> {
    match namespace.registry(IDENTITY)? {
        None => Ok(namespace.identity()),
        Some(bytes) => bytes[..].try_into().map(StoreId).map_err(|_| Status::Corrupt),
    }
}

/// Records durably in a restored store that the store has the identity of the dumped store. Without this record, the
/// restored store has the identity of its batch log, which is new.
pub(crate) async fn name(namespace: &Namespace<Embedded>, store: StoreId) -> Result<(), Status> {
    namespace.registry_put(now(), IDENTITY, Some(&Bytes::copy_from_slice(&store.0))).await
}

/// Returns the inode number below which the mgr keeps objects even if their file does not exist. `weir fsck` lists
/// these objects.
pub(crate) fn kept_below(namespace: &Namespace<Embedded>) -> Result<FileId, Status> {
    match namespace.registry(KEEP)? {
        None => Ok(FileId(0)),
        Some(bytes) => bytes[..].try_into().map(|bytes| FileId(u64::from_be_bytes(bytes))).map_err(|_| Status::Corrupt),
    }
}

/// Durably records an inode number. From now on, the mgr keeps objects with a lower inode number even if their file
/// does not exist.
pub(crate) async fn keep_unknown_below(namespace: &Namespace<Embedded>, first: FileId) -> Result<(), Status> {
    let value = Bytes::copy_from_slice(&first.0.to_be_bytes());
    namespace.registry_put(now(), KEEP, Some(&value)).await
}

/// Opens the storage engine, and waits if another process has the store open.
async fn engine(path: &Path) -> Result<Embedded, Error> {
    let until = Instant::now() + IN_USE_WAIT;
    let mut said = false;
    loop {
        let to_open = path.to_owned();
        match blocking(move || Embedded::open(&to_open, meta::merge).map(Embedded::led_by_callers)).await {
            Err(Error::Store(meta::StoreError::InUse(_))) if Instant::now() < until => {}
            done => return done,
        }
        if !said {
            tracing::warn!(store = %path.display(), "another mgr is using the metadata store; waiting up to {} s for its end", IN_USE_WAIT.as_secs());
            said = true;
        }
        tokio::time::sleep(IN_USE_PAUSE).await;
    }
}

/// Runs `work` on a blocking thread, because opening a store may include a repair of the store, which takes time.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, meta::StoreError> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Error::Metadata(Status::ServerFault)),
    }
}

/// Raises the recorded epoch to at least `least`, durably, so that the next start of the mgr has a larger epoch.
pub(crate) async fn raise_epoch(namespace: &Namespace<Embedded>, least: u32) -> Result<(), Status> {
    if last_epoch(namespace)? >= least {
        return Ok(());
    }
    namespace.registry_put(now(), EPOCH, Some(&Bytes::copy_from_slice(&least.to_be_bytes()))).await
}

fn last_epoch(namespace: &Namespace<Embedded>) -> Result<u32, Status> {
    match namespace.registry(EPOCH)? {
        None => Ok(0),
        Some(bytes) => bytes[..].try_into().map(u32::from_be_bytes).map_err(|_| Status::Corrupt),
    }
}

/// Records the start of the mgr durably, and returns its epoch, which is larger than the epochs of all earlier starts
/// and never 0.
pub(crate) async fn next_epoch(namespace: &Namespace<Embedded>) -> Result<u32, Error> {
    let last = last_epoch(namespace).map_err(Error::Metadata)?;
    let epoch = last.checked_add(1).ok_or(Error::Metadata(Status::Corrupt))?;
    let value = Bytes::copy_from_slice(&epoch.to_be_bytes());
    match namespace.registry_put(now(), EPOCH, Some(&value)).await {
        Ok(()) => {
            namespace.begin(epoch);
            Ok(epoch)
        }
        Err(Status::NoSpc) => Err(Error::Full),
        Err(e) => Err(Error::Metadata(e)),
    }
}

/// Returns a number derived from the boot id of the host (`/proc/sys/kernel/random/boot_id`). While the number stays
/// the same, the host has lost no written file data, even if processes were killed. Returns `None` if the boot id
/// cannot be read.
pub(crate) fn boot() -> Option<u64> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    Some((id >> 64) as u64 ^ id as u64)
}
