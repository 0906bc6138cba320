//! The daemon: the state that all volumes of an iod share, and the choice of the volume for a request.

use std::sync::{Arc, OnceLock};

use types::{Fsid, Status};
use wire::native::{Counter, DataHandle, volume_tag};

use super::volume::Volume;
use crate::buffers::Pool;
use crate::counters::Counters;

/// The service without threads and sockets: volumes of different file systems, and the memory that they share.
pub struct Daemon {
    pub(super) pool: Pool,
    /// Counters of connections, and of requests before HELLO has named a volume.
    pub(super) counters: Counters,
    first: Arc<Volume>,
    others: Vec<Arc<Volume>>,
    /// Counters of the other service for the same objects (`ds`).
    doors: OnceLock<Box<dyn Fn() -> Vec<Counter> + Send + Sync>>,
}

impl Daemon {
    /// Makes a service of volumes. If two belong to the same file system, only the first of them is served.
    pub fn new(first: Volume, others: Vec<Volume>) -> Self {
        let pool = Pool::default();
        let shared = |volume| Arc::new(Volume { pool: pool.clone(), ..volume });
        let (first, others) = (shared(first), others.into_iter().map(shared).collect());
        Daemon { pool, counters: Counters::default(), first, others, doors: OnceLock::new() }
    }

    /// Returns the first volume.
    pub fn first(&self) -> &Arc<Volume> {
        &self.first
    }

    /// Returns all volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Arc<Volume>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the volume of a file system.
    pub fn volume(&self, fsid: Fsid) -> Option<&Arc<Volume>> {
        self.volumes().find(|volume| volume.store.fsid() == fsid)
    }

    /// Checks that a filehandle is genuine, for this iod, and still valid; returns its volume.
    ///
    /// # Errors
    /// `BadHandle` if it is not genuine or not for a volume of this iod; `Fenced` if it is no longer valid.
    pub fn check_handle(&self, handle: &DataHandle) -> Result<&Arc<Volume>, Status> {
        let mut named = self.volumes().filter(|volume| volume_tag(volume.store.fsid()) == handle.volume);
        let found = named.find_map(|volume| match volume.check_handle(handle) {
            // Another file system may have the same tag.
            Err(Status::BadHandle) => None,
            checked => Some(checked.map(|()| volume)),
        });
        found.unwrap_or(Err(Status::BadHandle))
    }

    /// Adds the counters of another service for the same objects to those of every volume. Only the first call has an
    /// effect.
    pub fn count_also(&self, counters: impl Fn() -> Vec<Counter> + Send + Sync + 'static) {
        // Counters of a second service are not reported, which is harmless.
        let _ = self.doors.set(Box::new(counters));
    }

    /// Returns all counters of a volume: its own, with those of the connections of the daemon, and those of the other
    /// service.
    pub fn counters_of(&self, volume: &Volume) -> Vec<Counter> {
        let mut all = volume.store.snapshot();
        for (counter, shared) in all.iter_mut().zip(self.counters.snapshot()) {
            counter.value += shared.value;
        }
        all.extend(self.doors.get().into_iter().flat_map(|counters| counters()));
        all
    }
}
