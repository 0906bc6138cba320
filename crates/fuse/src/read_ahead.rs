//! How far the page cache of the mount reads ahead: a setting of the kernel, found by the number of the mount.

use client::Policy;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Where the kernel keeps it.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    file: OnceLock<PathBuf>,
    begun: AtomicBool,
}

impl ReadAhead {
    /// The mount is at this directory now.
    pub(crate) fn mounted_at(&self, dir: &Path) {
        // Asking for the attributes of the directory would ask ourselves.
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        if let Some(number) = crate::mounting::device_at(&mounts, dir) {
            let _ = self.file.set(Path::new("/sys/class/bdi").join(number).join("read_ahead_kb"));
        }
    }

    /// The page cache is about to be used, perhaps for the first time.
    pub(crate) fn begin(&self, policy: impl FnOnce() -> Policy) {
        if !self.begun.swap(true, Relaxed) {
            self.apply(&policy());
        }
    }

    /// Has the kernel read ahead as a policy says. Only root may; for others the kernel's own limit stays.
    pub(crate) fn apply(&self, policy: &Policy) {
        let Some(file) = self.file.get() else { return };
        if let Err(error) = std::fs::write(file, (policy.read_ahead >> 10).to_string()) {
            tracing::debug!(file = %file.display(), "the kernel reads ahead as it likes: {error}");
        }
    }
}
