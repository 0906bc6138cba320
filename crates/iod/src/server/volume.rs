//! A volume: the objects of one file system on an iod, with the secret, sessions and reports of this file system.

use std::sync::Arc;

use wire::native::{Key, Local};

use super::capability_check::CapabilityCheck;
use super::file_sizes::FileSizes;
use super::incarnations::Incarnations;
use super::pull_slots::Pulls;
use super::write_reports::WriteReports;
use crate::buffers::Pool;
use crate::store::Store;

/// The store of one file system on an iod, and the secret by which the iod checks requests to this store.
pub struct Volume {
    pub(super) store: Store,
    pub(super) judge: CapabilityCheck,
    /// The pool of payload buffers, which all volumes of a daemon share.
    pub(super) pool: Pool,
    pub(super) local: Option<Local>,
    pub(super) short_circuit: bool,
    pub(super) data_server: Vec<String>,
    pub(super) lines: Arc<Incarnations>,
    pub(super) write_reports: WriteReports,
    pub(super) lengths: FileSizes,
    pub(super) pulls: Pulls,
}

impl Volume {
    /// Makes a volume that serves `store` to clients whose tickets the mgr signed with the cluster's secret `key`.
    pub fn new(store: Store, key: &Key) -> Self {
        Volume {
            judge: CapabilityCheck::new(key, store.fsid(), store.iod()),
            store,
            pool: Pool::default(),
            local: None,
            short_circuit: true,
            data_server: Vec::new(),
            lines: Arc::default(),
            write_reports: WriteReports::default(),
            lengths: FileSizes::default(),
            pulls: Pulls::default(),
        }
    }

    /// Returns the object store of the volume.
    pub fn store(&self) -> &Store {
        &self.store
    }
}
