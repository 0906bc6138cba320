//! The kernel's read-ahead limit of the mount, a setting in sysfs. The mount finds the sysfs file by the device number
//! of the mounted file system.

use client::Policy;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The sysfs file with the kernel's read-ahead limit of the mount, and whether the read-ahead setting of a policy was
/// applied.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    file: OnceLock<PathBuf>,
    begun: AtomicBool,
}

impl ReadAhead {
    /// Records where the file system is mounted.
    pub(crate) fn mounted_at(&self, dir: &Path) {
        // Do not use stat(2) on the directory, because stat(2) makes a request to this very mount.
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        if let Some(number) = crate::mounting::device_at(&mounts, dir) {
            let _ = self.file.set(Path::new("/sys/class/bdi").join(number).join("read_ahead_kb"));
        }
    }

    /// Applies the read-ahead setting of a policy at the first call, when a file first uses the page cache. Later calls
    /// do nothing.
    pub(crate) fn begin(&self, policy: impl FnOnce() -> Policy) {
        if !self.begun.swap(true, Relaxed) {
            self.apply(&policy());
        }
    }

    /// Sets the kernel's read-ahead limit to the value in a policy. Only root may set it; for other users, the
    /// kernel's limit stays.
    pub(crate) fn apply(&self, policy: &Policy) {
        let Some(file) = self.file.get() else { return };
        if let Err(error) = std::fs::write(file, (policy.read_ahead >> 10).to_string()) {
            tracing::debug!(file = %file.display(), "cannot set the read-ahead of the kernel: {error}");
        }
    }
}
