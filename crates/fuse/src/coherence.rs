//! Page-cache coherence: keeps the kernel's cache of files (sizes, times, pages, mappings, attributes) in agreement
//! with the changes of other clients.
//!
//! [`Coherence`] is the interface of this module. The handlers of kernel requests report each open, read, write and
//! GETATTR to this type. The client reports recalls of its delegations. `Coherence` makes the kernel drop or correct
//! stale data.

mod changed_dirs;
mod close_to_open;
mod correction;
mod data;
mod getattr;
mod kernel_cache;
mod kernel_size;
mod mmap;
mod open_pages;
mod page_twins;
mod pages;
mod recall;
mod recent_attrs;
mod replies;
mod set_sizes;
mod sync_mount;
#[cfg(test)]
mod testing;
mod write_back;
mod writers;

pub(crate) use close_to_open::{Admission, Found};
pub(crate) use open_pages::PageUse;
pub(crate) use recent_attrs::Mark;

use crate::nodes::Nodes;
use crate::opens::Opens;
use crate::transport::Transport;
use changed_dirs::ChangedDirs;
use client::Mount;
use correction::CorrectionLocks;
use kernel_cache::KernelCache;
use kernel_size::KernelSizes;
use open_pages::OpenPages;
use recall::RecallHandler;
use recent_attrs::RecentAttrs;
use set_sizes::Resizing;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use sync_mount::SyncMount;
use types::FileId;
use write_back::WriteBack;

/// The record of the data that the kernel has cached of one mount, and the state that keeps this cache coherent with
/// other clients.
pub(crate) struct Coherence {
    /// The client mount with the credentials of the mount process.
    mount: Mount,
    nodes: Arc<Nodes>,
    opens: Arc<Opens>,
    /// How long the kernel may cache the attributes of a file that no other client uses.
    attrs_valid: Duration,
    cache: KernelCache,
    pages: Arc<OpenPages>,
    recent_attrs: RecentAttrs,
    changed_dirs: ChangedDirs,
    resizing: Resizing,
    write_back: WriteBack,
    kernel_sizes: KernelSizes,
    /// The locks that serialize corrections of the kernel's cached attributes.
    correction_locks: CorrectionLocks,
    sync: SyncMount,
    own: Weak<Coherence>,
    transport: OnceLock<Weak<dyn Transport>>,
}

/// Settings of the kernel's cache: how long attributes stay valid, and whether the kernel writes files through its
/// page cache (write-back).
#[derive(Clone, Copy)]
pub(crate) struct Caching {
    /// How long the kernel may cache the attributes of a file that no other client uses.
    pub(crate) attrs_valid: Duration,
    /// Whether the kernel writes files through its page cache (write-back).
    pub(crate) writeback: bool,
}

impl Coherence {
    /// Creates the coherence state of a mount. From then on the client reports recalls of its delegations to this
    /// state.
    ///
    /// # Errors
    /// Another cache, for example of another FUSE file system, already receives the recalls of this client mount.
    pub(crate) fn new(
        mount: Mount,
        nodes: Arc<Nodes>,
        opens: Arc<Opens>,
        caching: Caching,
    ) -> client::Result<Arc<Self>> {
        let coherence = Arc::new_cyclic(|own| Coherence {
            mount,
            nodes,
            opens,
            attrs_valid: caching.attrs_valid,
            cache: KernelCache::default(),
            pages: Arc::default(),
            recent_attrs: RecentAttrs::default(),
            changed_dirs: ChangedDirs::default(),
            resizing: Resizing::default(),
            write_back: WriteBack::new(caching.writeback),
            kernel_sizes: KernelSizes::default(),
            correction_locks: CorrectionLocks::default(),
            sync: SyncMount::default(),
            own: own.clone(),
            transport: OnceLock::new(),
        });
        coherence.mount.set_upper_cache(Arc::new(RecallHandler(coherence.own.clone())))?;
        Ok(coherence)
    }

    /// Returns the reason why this process cannot use write-back, or `None` if it can.
    pub(crate) fn write_back_unavailable() -> Option<io::Error> {
        WriteBack::unavailable()
    }

    /// Sets the transport that carries notifications to the kernel.
    pub(crate) fn connected(&self, transport: &Arc<dyn Transport>) {
        let _ = self.transport.set(Arc::downgrade(transport));
    }

    /// Returns the transport that carries notifications to the kernel, or `None` after the transport was dropped.
    fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.transport.get().and_then(Weak::upgrade)
    }

    /// Returns an [`Arc`] of this coherence state, or `None` while the state is being dropped.
    fn shared(&self) -> Option<Arc<Coherence>> {
        self.own.upgrade()
    }

    /// Records where the file system is mounted. With write-back, also raises the kernel's limit for dirty pages of
    /// this mount.
    pub(crate) fn mounted_at(&self, dir: &Path) {
        self.kernel_sizes.mounted_at(dir);
        if self.write_back.is_on() {
            self.sync.mounted_at(dir);
            write_back::raise_dirty_limit(dir);
        }
    }

    /// Returns whether write-back is on: the kernel writes files through its page cache.
    pub(crate) fn writes_back(&self) -> bool {
        self.write_back.is_on()
    }

    /// Turns write-back off, because the kernel does not support it.
    pub(crate) fn write_back_unsupported(&self) {
        self.write_back.switch_off();
    }

    /// Returns whether other clients may write a file that is open on this mount. The kernel then requests the file's
    /// attributes before each use of the file, and its cached data of the file may be stale.
    pub(crate) fn is_shared(&self, number: u64) -> bool {
        self.write_back.is_shared(number) || self.mount.is_shared(FileId(number))
    }

    /// Returns whether the kernel writes a file through its page cache. Then only the kernel knows the size of the
    /// file.
    pub(crate) fn is_written(&self, number: u64) -> bool {
        self.write_back.is_written(number)
    }

    /// Records that the kernel's cached size or times of a file have changed or are about to change in an unknown
    /// way.
    pub(crate) fn size_may_change(&self, number: u64) {
        self.cache.is_unknown(number);
    }

    /// Records that the kernel has dropped the inode of a file (FORGET).
    pub(crate) fn forgotten(&self, number: u64) {
        self.cache.forgotten(number);
    }
}
