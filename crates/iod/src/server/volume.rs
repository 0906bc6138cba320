//! A volume: the objects of one file system on an iod, and everything that belongs to this file system alone.

use std::sync::Arc;

use wire::native::{Key, Local};

use super::capability_check::CapabilityCheck;
use super::file_sizes::FileSizes;
use super::incarnations::Incarnations;
use super::pull_slots::Pulls;
use super::write_reports::WriteReports;
use crate::buffers::Pool;
use crate::store::Store;

/// A store, and the secret that decides which requests for it are valid.
pub struct Volume {
    pub(super) store: Store,
    pub(super) judge: CapabilityCheck,
    /// The memory for payloads, which all volumes of a daemon share.
    pub(super) pool: Pool,
    pub(super) local: Option<Local>,
    pub(super) short_circuit: bool,
    pub(super) data_server: Vec<String>,
    pub(super) lines: Arc<Incarnations>,
    pub(super) news: WriteReports,
    pub(super) lengths: FileSizes,
    pub(super) pulls: Pulls,
}

impl Volume {
    /// Makes a volume of `store` that accepts clients with tickets from the mgr of the cluster with this secret.
    pub fn new(store: Store, key: &Key) -> Self {
        Volume {
            judge: CapabilityCheck::new(key, store.fsid(), store.iod()),
            store,
            pool: Pool::default(),
            local: None,
            short_circuit: true,
            data_server: Vec::new(),
            lines: Arc::default(),
            news: WriteReports::default(),
            lengths: FileSizes::default(),
            pulls: Pulls::default(),
        }
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }
}
