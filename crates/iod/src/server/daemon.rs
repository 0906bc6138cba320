//! The daemon: the state that all volumes of an iod share, and the lookup of the volume for a request.

use std::sync::{Arc, OnceLock};

use types::{Fsid, Status};
use wire::native::{Counter, DataHandle, volume_tag};

use super::volume::Volume;
use crate::buffers::Pool;
use crate::counters::Counters;

/// The data service without its threads and sockets: volumes of different file systems, and the buffer pool that the
/// volumes share.
pub struct Daemon {
    pub(super) pool: Pool,
    /// Counters of connections, and of requests that arrive before PROVE opens a session with a volume.
    pub(super) counters: Counters,
    first: Arc<Volume>,
    others: Vec<Arc<Volume>>,
    /// The function that returns the counters of the NFS service (`ds`) for the same objects. Unset if the NFS service
    /// does not run.
    doors: OnceLock<Box<dyn Fn() -> Vec<Counter> + Send + Sync>>,
}

impl Daemon {
    /// Makes a daemon that serves these volumes. If two volumes belong to the same file system, the daemon serves only
    /// the first of them.
    pub fn new(first: Volume, others: Vec<Volume>) -> Self {
        let pool = Pool::default();
        let shared = |volume| Arc::new(Volume { pool: pool.clone(), ..volume });
        let (first, others) = (shared(first), others.into_iter().map(shared).collect());
        Daemon { pool, counters: Counters::default(), first, others, doors: OnceLock::new() }
    }

    /// Returns the volume of the first configured store.
    pub fn first(&self) -> &Arc<Volume> {
        &self.first
    }

    /// Returns all volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Arc<Volume>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the volume of this file system; `None` if the daemon serves no such volume.
    pub fn volume(&self, fsid: Fsid) -> Option<&Arc<Volume>> {
        self.volumes().find(|volume| volume.store.fsid() == fsid)
    }

    /// Checks that the mgr signed a filehandle for a volume of this iod, and that the handle is still valid. Returns
    /// the volume.
    ///
    /// # Errors
    /// `BadHandle` if the handle is forged or names no volume of this iod; `Fenced` if the handle is no longer valid.
    pub fn check_handle(&self, handle: &DataHandle) -> Result<&Arc<Volume>, Status> {
        let mut named = self.volumes().filter(|volume| volume_tag(volume.store.fsid()) == handle.volume);
        let found = named.find_map(|volume| match volume.check_handle(handle) {
            // A handle names its file system only by a short number (`volume_tag`), which two file systems may share.
            // So if this volume refuses the handle, try the next volume.
            Err(Status::BadHandle) => None,
            checked => Some(checked.map(|()| volume)),
        });
        found.unwrap_or(Err(Status::BadHandle))
    }

    /// Registers the counters of another server in this process that serves the same objects (the NFS data server).
    /// STATS then returns these counters for every volume. Only the first call of this function has an effect.
    pub fn count_also(&self, counters: impl Fn() -> Vec<Counter> + Send + Sync + 'static) {
        // Only the first call of `count_also` has an effect. Ignore the error of a later call: STATS then lacks the
        // counters of that call, which is harmless.
        let _ = self.doors.set(Box::new(counters));
    }

    /// Returns all counters of a volume: the volume's own counters plus those of the daemon's connections, then the
    /// counters of the service that called [`Daemon::count_also`].
    pub fn counters_of(&self, volume: &Volume) -> Vec<Counter> {
        let mut all = volume.store.snapshot();
        for (counter, shared) in all.iter_mut().zip(self.counters.snapshot()) {
            counter.value += shared.value;
        }
        all.extend(self.doors.get().into_iter().flat_map(|counters| counters()));
        all
    }
}
