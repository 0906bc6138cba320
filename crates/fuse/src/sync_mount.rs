//! Synchronous writes: as long as other clients use a file that the kernel writes back, each write(2) of the mount has its pages written before it returns.
//!
//! The kernel has no such switch for a file, only for a whole mount (`mount -o sync`, `SB_SYNCHRONOUS`): then each write ends with an fsync of the bytes
//! that it wrote. It is switched on before the delegation of such a file goes back, and off when no file of this kind is left. Files that this mount has
//! alone pay for that meanwhile with two requests for each write.

use crate::mounting;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The switch of one mount.
#[derive(Default)]
pub(crate) struct SyncMount {
    /// Where the mount is, and its device there.
    place: OnceLock<(PathBuf, (u32, u32))>,
    on: AtomicBool,
    /// Held while it is switched.
    switching: tokio::sync::Mutex<()>,
}

impl SyncMount {
    /// The mount is at this directory now.
    pub(crate) fn mounted_at(&self, dir: &Path) {
        if let Some(device) = mounting::device_numbers_at(dir) {
            let _ = self.place.set((dir.to_owned(), device));
        }
    }

    /// Whether each write is written before it returns.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }

    /// Switches it as `wanted` says by the time when nobody else does. Must not be awaited by a request that a switch may wait for: it has the kernel
    /// write all dirty pages of the mount.
    pub(crate) async fn settle(&self, wanted: impl Fn() -> bool) {
        let _turn = self.switching.lock().await;
        let wanted = wanted();
        if wanted == self.is_on() {
            return;
        }
        let Some(place) = self.place.get().cloned() else { return };
        if wanted {
            // Requests that come of it know it already.
            self.on.store(true, SeqCst);
        }
        let switched = tokio::task::spawn_blocking(move || switch(&place, wanted)).await;
        match switched {
            Ok(Ok(())) => self.on.store(wanted, SeqCst),
            Ok(Err(error)) => {
                tracing::warn!(%error, wanted, "cannot switch synchronous writes of this mount; shared files are written 50 ms late");
                self.on.store(false, SeqCst);
            }
            Err(error) => tracing::warn!(%error, "switching synchronous writes"),
        }
    }
}

/// Changes the flag of the file system, and none of the flags of any mount of it.
fn switch((dir, device): &(PathBuf, (u32, u32)), on: bool) -> io::Result<()> {
    let root = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::statx(&root, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)?;
    if (found.stx_dev_major, found.stx_dev_minor) != *device {
        return Err(io::Error::other("something else is mounted there"));
    }
    let here = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&root));
    let context = fspick(CWD, here, FsPickFlags::FSPICK_CLOEXEC)?;
    fsconfig_set_flag(&context, if on { c"sync" } else { c"async" })?;
    Ok(fsconfig_reconfigure(&context)?)
}
