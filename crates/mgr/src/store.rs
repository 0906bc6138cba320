//! The metadata store in the mgr's directory: making it, and opening it with every mistake told apart.

use crate::cluster_file::ClusterFile;
use crate::error::{Error, io_error, random};
use crate::room::now;
use bytes::Bytes;
use meta::{Embedded, Format, Namespace};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::Status;

/// Name of the store in the mgr's directory.
const STORE: &str = "meta.redb";
/// Registry key of the number of starts.
const EPOCH: &[u8] = b"mgr/epoch";
/// How long a start waits for the mgr before it to let go of the store: the system may take its time to clear away one that was killed.
const IN_USE_WAIT: Duration = Duration::from_secs(5);
/// How often it looks whether that has happened.
const IN_USE_PAUSE: Duration = Duration::from_millis(50);

fn store_path(dir: &Path) -> PathBuf {
    dir.join(STORE)
}

/// Makes an empty file system in `dir`, which is made too unless it exists; its root belongs to the directory's owner.
///
/// # Errors
/// When there is a store already or the directory cannot be written.
pub async fn format(dir: &Path, cluster: &ClusterFile) -> Result<(), Error> {
    let io = |action| move |e| io_error(dir, action, "make the directory above it first", e);
    match std::fs::create_dir(dir) {
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
    tracing::info!(store = %path.display(), fsid = %cluster.fsid, "formatted");
    Ok(())
}

/// Opens the store in `dir`, which must be of the cluster file's file system.
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
    Ok(Arc::new(namespace))
}

/// Opens the engine, as soon as nobody else has it open any more.
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

/// Opening may have to repair the store, which takes its time.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, meta::StoreError> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Error::Metadata(Status::ServerFault)),
    }
}

/// Counts this start, durably, and begins it: larger than at any start before, never 0.
pub(crate) async fn next_epoch(namespace: &Namespace<Embedded>) -> Result<u32, Error> {
    let stored = namespace.registry(EPOCH).map_err(Error::Metadata)?;
    let last = match stored.as_deref().map(<[u8; 4]>::try_from) {
        None => 0,
        Some(Ok(bytes)) => u32::from_be_bytes(bytes),
        Some(Err(_)) => return Err(Error::Metadata(Status::Corrupt)),
    };
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

/// The number of this run of the machine (`/proc/sys/kernel/random/boot_id`): while it is the same, nothing that was written to a file is lost, whatever
/// processes were killed. `None` where that cannot be told.
pub(crate) fn boot() -> Option<u64> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    Some((id >> 64) as u64 ^ id as u64)
}
