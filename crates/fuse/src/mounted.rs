//! A mounted file system, from the mount(2) call to the end of its FUSE connection.

use crate::coherence::Coherence;
use crate::config::{Config, TransportKind};
use crate::dispatch::{Dispatcher, Serve};
use crate::fs::FileSystem;
use crate::guard::Guard;
use crate::inode_limit;
use crate::mounting;
use crate::transport::Transport;
use crate::transports::device::Device;
use crate::transports::uring::{self, Uring};
use client::{Mount, Node};
use rustix::fd::{AsRawFd, OwnedFd};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use types::limits::PAYLOAD_MAX;

/// The interval at which [`Mounted::unmounted_or_unused`] checks whether files are still open.
const LOOK: Duration = Duration::from_millis(100);

/// A mounted file system.
pub struct Mounted {
    fs: Arc<FileSystem>,
    dir: PathBuf,
    transport_kind: TransportKind,
    /// Receives the result of the transport when the kernel sends no more requests.
    served: oneshot::Receiver<io::Result<()>>,
    /// The guard process, which runs until the FUSE connection has ended.
    guard: Option<Guard>,
}

impl Mounted {
    /// Mounts the file system below `root` at an existing directory. If the directory still has a Weir mount whose
    /// process was killed, first detaches this old mount. Must run inside a tokio runtime, which also executes the
    /// requests.
    pub fn start(mount: Mount, root: Node, dir: &Path, config: Config) -> io::Result<Mounted> {
        detach_dead(dir)?;
        let dir = dir.canonicalize()?;
        let transport_kind = transport_kind(&config)?;
        if config.writeback
            && let Some(why) = Coherence::write_back_unavailable()
        {
            return Err(why);
        }
        let fd = mounting::mount(&dir, &config)?;
        let (transport, transport_kind) = transport(fd, &dir, &config, transport_kind);
        let guard = guard(&config, &dir);
        let fs = FileSystem::new(mount, root, config).map_err(|e| io::Error::other(e.to_string()))?;
        let notifies: Arc<dyn Transport> = transport.clone();
        fs.connect(&notifies);
        tokio::spawn(inode_limit::watch(Arc::downgrade(&fs)));
        fs.read_ahead.mounted_at(&dir);
        fs.coherence.mounted_at(&dir);
        let dispatcher = Arc::new(Dispatcher::new(fs.clone(), transport.clone(), Handle::current()));
        let (ended, served) = oneshot::channel();
        let serve = move || {
            // The caller may have dropped `Mounted`, which contains the receiver of this result, so ignore an error.
            let _ = ended.send(transport.serve(dispatcher));
        };
        std::thread::Builder::new().name("fuse-0".into()).spawn(serve)?;
        Ok(Mounted { fs, dir, transport_kind, served, guard })
    }

    /// Returns the transport that the mount uses for requests; never [`TransportKind::Auto`].
    pub fn transport_kind(&self) -> TransportKind {
        self.transport_kind
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until the file system is unmounted everywhere: by [`unmount`], `umount(8)` or another program, and in
    /// all mount namespaces that have a copy of the mount. The caller may drop the future before it completes, and
    /// call again.
    pub async fn unmounted(&mut self) -> io::Result<()> {
        let served = (&mut self.served).await;
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
        served.unwrap_or_else(|_| Err(io::Error::other("the threads that serve it died")))
    }

    /// Waits like [`Mounted::unmounted`], but also returns when no file of the mount is open.
    pub async fn unmounted_or_unused(&mut self) -> io::Result<()> {
        let fs = self.fs.clone();
        let unused = async {
            while fs.opens.are_there() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            ended = self.unmounted() => ended,
            () = unused => Ok(()),
        }
    }

    /// Ends the mount: closes open files, so that all writes are durable. Returns an error if a write or close fails.
    /// After this call, no request gets a reply.
    pub async fn finish(self) -> io::Result<()> {
        self.fs.end().await.map_err(|e| io::Error::other(e.to_string()))
    }
}

/// Chooses the kind of the transport before the mount. If io_uring cannot be set up after the mount, the FUSE device is
/// used instead.
fn transport_kind(config: &Config) -> io::Result<TransportKind> {
    match (config.transport_kind, uring::unavailable()) {
        (TransportKind::Device, _) => Ok(TransportKind::Device),
        (_, None) => Ok(TransportKind::Uring),
        (TransportKind::Uring, Some(why)) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, format!("io_uring: {why}")))
        }
        (TransportKind::Auto, Some(why)) => {
            tracing::info!("requests use the FUSE device, not io_uring: {why}");
            Ok(TransportKind::Device)
        }
    }
}

/// Starts the guard process of a mount, or logs why the mount has no guard.
fn guard(config: &Config, dir: &Path) -> Option<Guard> {
    if config.guard.is_empty() {
        return None;
    }
    let without = |error: io::Error| match config.writeback {
        // Warn only with write-back, because without write-back no program waits forever after this process was
        // killed.
        true => tracing::warn!(
            "the mount has no guard: if this process is killed, programs that use the mount may hang: {error}"
        ),
        false => tracing::info!(
            "the mount has no guard: if this process is killed, programs that use the mount may hang: {error}"
        ),
    };
    Guard::stand(&config.guard, dir).map_err(without).ok()
}

/// Creates the transport of a mount, and returns the transport and its kind.
fn transport(
    fd: OwnedFd,
    dir: &Path,
    config: &Config,
    transport_kind: TransportKind,
) -> (Arc<dyn Serve>, TransportKind) {
    let (number, threads) = (fd.as_raw_fd(), config.threads.max(1));
    let device = Arc::new(Device::new(fd, threads, PAYLOAD_MAX));
    if transport_kind == TransportKind::Uring {
        match Uring::new(number, dir, device.clone(), PAYLOAD_MAX) {
            Ok(rings) => return (Arc::new(rings), TransportKind::Uring),
            Err(error) => tracing::warn!("requests use the FUSE device: cannot set up io_uring: {error}"),
        }
    }
    (device, TransportKind::Device)
}

/// Detaches a Weir mount from `dir` if the process of the mount was killed. As long as such a mount exists, every
/// request to the directory fails with ENOTCONN. Returns whether there was such a mount.
pub fn detach_dead(dir: &Path) -> io::Result<bool> {
    // Use statfs(2), because for other calls, such as stat(2), the kernel may return cached data without a request.
    match rustix::fs::statfs(dir) {
        // ECONNABORTED: the statfs request was in progress while the kernel ended the connection.
        Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED) => {}
        _ => return Ok(false),
    }
    let dir = place_of(dir)?;
    let dead = mounting::source_at(&dir)?.is_some();
    if dead {
        tracing::info!("unmounting {}: the process of this mount was killed", dir.display());
        mounting::unmount(&dir, true)?;
    }
    Ok(dead)
}

/// Returns the source of the topmost mount at `dir`, if it is a Weir mount ([`Config::source`]).
pub fn source_at(dir: &Path) -> io::Result<Option<String>> {
    mounting::source_at(&place_of(dir)?)
}

/// Returns the path of a directory in the form that `/proc/self/mounts` shows. Does not access the directory itself,
/// because the access could wait for servers that are down.
pub fn place_of(dir: &Path) -> io::Result<PathBuf> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match dir.file_name() {
        Some(name) => Ok(parent.canonicalize()?.join(name)),
        None => dir.canonicalize(),
    }
}

/// Changes the permissions of a mounted file system. Of the settings, only [`Config::read_only`] and
/// [`Config::privileges`] apply.
///
/// # Errors
/// No Weir file system is mounted at `dir`, or the mount should become read-only while files are open for writing.
/// Also any error of mount(2).
pub fn remount(dir: &Path, config: &Config) -> io::Result<()> {
    let dir = place_of(dir)?;
    mounting::source_at(&dir)?.ok_or_else(nothing_there)?;
    mounting::remount(&dir, config)
}

fn nothing_there() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no Weir file system is mounted there")
}

/// Unmounts the file system at `dir`, and returns its source ([`Config::source`]). With `lazy`, detaches the mount at
/// once; the file system ends after its last use.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<String> {
    let dir = place_of(dir)?;
    let source = mounting::source_at(&dir)?.ok_or_else(nothing_there)?;
    mounting::unmount(&dir, lazy)?;
    Ok(source)
}
