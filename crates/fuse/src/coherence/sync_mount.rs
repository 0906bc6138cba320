//! Synchronous writes: while other clients use a file that the kernel writes back, the kernel writes back the pages
//! of each write(2) before the call returns.
//!
//! The kernel has no such setting for one file, only for a whole mount (`mount -o sync`, `SB_SYNCHRONOUS`). With this
//! setting, each write(2) ends with an fsync of its bytes. The mount turns the setting on before it returns the
//! delegation of such a file, and off when no such file is left. While the setting is on, each write(2) to a file under
//! a write delegation costs two requests.

use crate::mounting;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The setting of one mount that makes writes synchronous.
#[derive(Default)]
pub(super) struct SyncMount {
    /// The mount point, and the device number of the mounted file system.
    place: OnceLock<(PathBuf, (u32, u32))>,
    on: AtomicBool,
    /// A lock that a task holds while it turns synchronous writes on or off.
    switching: tokio::sync::Mutex<()>,
}

impl SyncMount {
    /// Records where the file system is mounted.
    pub(super) fn mounted_at(&self, dir: &Path) {
        if let Some(device) = mounting::device_numbers_at(dir) {
            let _ = self.place.set((dir.to_owned(), device));
        }
    }

    /// Returns whether the mount is synchronous: the kernel writes back each write(2) before the call returns.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }

    /// Waits until no other task turns synchronous writes on or off, and then turns them on if `wanted` returns true,
    /// and off otherwise. A change makes the kernel write back all dirty pages of the mount. So the handler of a
    /// request must not await this function if this write-back may wait for the handler.
    pub(super) async fn settle(&self, wanted: impl Fn() -> bool) {
        let _turn = self.switching.lock().await;
        let wanted = wanted();
        if wanted == self.is_on() {
            return;
        }
        let Some(place) = self.place.get().cloned() else { return };
        if wanted {
            // Set `on` before the kernel's synchronous flag: the change of this flag causes requests, and their
            // handlers check `on`.
            self.on.store(true, SeqCst);
        }
        let switched = tokio::task::spawn_blocking(move || switch(&place, wanted)).await;
        match switched {
            Ok(Ok(())) => self.on.store(wanted, SeqCst),
            Ok(Err(error)) => {
                tracing::warn!(%error, wanted, "cannot switch synchronous writes of this mount; shared files are written 50 ms late");
                self.on.store(false, SeqCst);
            }
            Err(error) => tracing::warn!(%error, "cannot switch synchronous writes of this mount"),
        }
    }
}

/// Changes the synchronous flag of the file system itself, without changing the flags of its mount points.
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
