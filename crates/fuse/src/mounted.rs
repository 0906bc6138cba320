//! A file system that is mounted, until it is not.

use crate::config::{Carrier, Config};
use crate::crowd;
use crate::dispatch::Dispatcher;
use crate::fs::FileSystem;
use crate::guard::Guard;
use crate::mounting;
use crate::transport::Transport;
use crate::transports::device::Device;
use crate::transports::uring::{self, Uring};
use crate::write_back::WriteBack;
use client::{Mount, Node};
use rustix::fd::{AsRawFd, OwnedFd};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use types::limits::PAYLOAD_MAX;

/// How often it is looked whether files are still open.
const LOOK: Duration = Duration::from_millis(100);

/// A mounted file system.
pub struct Mounted {
    fs: Arc<FileSystem>,
    dir: PathBuf,
    carrier: Carrier,
    /// Told when nothing more comes from the kernel.
    served: oneshot::Receiver<io::Result<()>>,
    /// Until the kernel's side has ended.
    guard: Option<Guard>,
}

impl Mounted {
    /// Mounts what is below `root` at a directory, which must exist; a mount of ours there whose process was killed goes first. Must run inside a tokio runtime; requests are carried out in it.
    pub fn start(mount: Mount, root: Node, dir: &Path, config: Config) -> io::Result<Mounted> {
        detach_dead(dir)?;
        let dir = dir.canonicalize()?;
        let carrier = carrier(&config)?;
        if config.writeback
            && let Some(why) = WriteBack::unavailable()
        {
            return Err(why);
        }
        let fd = mounting::mount(&dir, &config)?;
        let (transport, carrier) = transport(fd, &dir, &config, carrier);
        let guard = guard(&config, &dir);
        let fs = FileSystem::new(mount, root, config).map_err(|e| io::Error::other(e.to_string()))?;
        fs.connect(&transport);
        tokio::spawn(crowd::watch(Arc::downgrade(&fs)));
        fs.read_ahead.mounted_at(&dir);
        fs.write_back.mounted_at(&dir);
        let dispatcher = Arc::new(Dispatcher::new(fs.clone(), transport.clone(), Handle::current()));
        let (ended, served) = oneshot::channel();
        let serve = move || {
            // Whoever waits may be gone.
            let _ = ended.send(transport.serve(dispatcher));
        };
        std::thread::Builder::new().name("fuse-0".into()).spawn(serve)?;
        Ok(Mounted { fs, dir, carrier, served, guard })
    }

    /// What carries its requests; never [`Carrier::Auto`].
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns when it is unmounted everywhere: by [`unmount`], `umount(8)` or whoever else may, and by the namespaces of
    /// mounts that were made while it was there. May be dropped and called again until it has returned.
    pub async fn unmounted(&mut self) -> io::Result<()> {
        let served = (&mut self.served).await;
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
        served.unwrap_or_else(|_| Err(io::Error::other("the threads that serve it died")))
    }

    /// As [`Mounted::unmounted`], also when no file of it is open.
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

    /// Ends it: closes what is open, so that all that was written is durable, or fails. Nobody is answered afterwards.
    pub async fn finish(self) -> io::Result<()> {
        self.fs.end().await.map_err(|e| io::Error::other(e.to_string()))
    }
}

/// What is to carry requests, as far as that can be said before anything is mounted.
fn carrier(config: &Config) -> io::Result<Carrier> {
    match (config.carrier, uring::unavailable()) {
        (Carrier::Device, _) => Ok(Carrier::Device),
        (_, None) => Ok(Carrier::Uring),
        (Carrier::Uring, Some(why)) => Err(io::Error::new(io::ErrorKind::Unsupported, format!("io_uring: {why}"))),
        (Carrier::Auto, Some(why)) => {
            tracing::info!("the device carries requests, not io_uring: {why}");
            Ok(Carrier::Device)
        }
    }
}

/// The guard over a mount, if there can be one.
fn guard(config: &Config, dir: &Path) -> Option<Guard> {
    if config.guard.is_empty() {
        return None;
    }
    let without = |error: io::Error| match config.writeback {
        // It is what writes back that may have others wait.
        true => tracing::warn!("nobody looks after the mount should this process be killed: {error}"),
        false => tracing::info!("nobody looks after the mount should this process be killed: {error}"),
    };
    Guard::stand(&config.guard, dir).map_err(without).ok()
}

/// What carries requests, and which it is.
fn transport(fd: OwnedFd, dir: &Path, config: &Config, carrier: Carrier) -> (Arc<dyn Transport>, Carrier) {
    let (number, threads) = (fd.as_raw_fd(), config.threads.max(1));
    let device = Arc::new(Device::new(fd, threads, PAYLOAD_MAX));
    if carrier == Carrier::Uring {
        match Uring::new(number, dir, device.clone(), PAYLOAD_MAX) {
            Ok(rings) => return (Arc::new(rings), Carrier::Uring),
            Err(error) => tracing::warn!("the device carries requests: the system allows no rings: {error}"),
        }
    }
    (device, Carrier::Device)
}

/// Takes a mount of ours whose process was killed away from a directory, where every request fails (ENOTCONN) until somebody does;
/// answers whether there was one.
pub fn detach_dead(dir: &Path) -> io::Result<bool> {
    // Attributes the kernel may still know, and be asked for nothing.
    match rustix::fs::statfs(dir) {
        // The second if it asked the kernel for this while that was ending it.
        Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED) => {}
        _ => return Ok(false),
    }
    let dir = place_of(dir)?;
    let dead = mounting::source_at(&dir)?.is_some();
    if dead {
        tracing::info!("what was mounted at {} is dead, and goes", dir.display());
        mounting::unmount(&dir, true)?;
    }
    Ok(dead)
}

/// The source of a Weir that is mounted at `dir`, over everything else there ([`Config::source`]).
pub fn source_at(dir: &Path) -> io::Result<Option<String>> {
    mounting::source_at(&place_of(dir)?)
}

/// A directory as `/proc/self/mounts` has it, without looking at the directory itself: that would ask a file system whose servers may be
/// gone.
pub fn place_of(dir: &Path) -> io::Result<PathBuf> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match dir.file_name() {
        Some(name) => Ok(parent.canonicalize()?.join(name)),
        None => dir.canonicalize(),
    }
}

/// Changes what is allowed where a file system is mounted already: of the settings, [`Config::read_only`] and [`Config::powers`] count.
///
/// # Errors
/// Nothing of ours is mounted there, files are open for writing that is not to be allowed any more, and whatever mount(2) says.
pub fn remount(dir: &Path, config: &Config) -> io::Result<()> {
    let dir = place_of(dir)?;
    mounting::source_at(&dir)?.ok_or_else(nothing_there)?;
    mounting::remount(&dir, config)
}

fn nothing_there() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no Weir is mounted there")
}

/// Unmounts what is mounted at `dir`, and answers what its source was ([`Config::source`]). With `lazy` it vanishes from there at once, and ends
/// when nobody uses it any more.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<String> {
    let dir = place_of(dir)?;
    let source = mounting::source_at(&dir)?.ok_or_else(nothing_there)?;
    mounting::unmount(&dir, lazy)?;
    Ok(source)
}
