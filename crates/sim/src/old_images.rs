//! Images of the disks of the mgr and the iods from an earlier time of the run, which the simulator uses in place of
//! the current disks. The daemons must detect an older image, and must not serve data from it.

use crate::cluster::Cluster;
use crate::hosts::{IOD, IOD_PORT, address};
use crate::storage::Image;
use iod::{Disk, Memory};
use wire::admin::{Group, Value};

/// The file on an iod that contains the mark of the mgr, which changes at every start of the mgr. With this mark, the
/// mgr detects an older copy of the iod's disk.
const STORE: &str = "STORE";

/// Images of all disks, saved at the last death of the mgr. If the mgr has started since then, the iods have a newer
/// mark than the images of their disks.
#[derive(Default)]
pub struct OldImages {
    mgr: Option<Image>,
    iods: Vec<Memory>,
    /// The mgr's current disk while the mgr uses an older copy of it; `None` while the mgr uses the current disk.
    right: Option<Image>,
}

/// Returns the content of [`STORE`] on a disk, which contains the mark; `None` if the disk has no such file.
fn mark(disk: &Memory) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 64];
    let len = disk.open(STORE).ok()?.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(len);
    Some(bytes)
}

/// Returns whether the mgr reports the iod as up. The mgr has then stored its newest mark on the iod.
fn is_used(cluster: &Cluster, iod: usize) -> bool {
    let address = Value::Text(format!("{}:{IOD_PORT}", address(IOD + iod as u64)));
    let up = Value::Text("up".into());
    let is_up = |group: &Group| group.get("address") == Some(&address) && group.get("state") == Some(&up);
    cluster.mgr.status().is_some_and(|status| status.groups.iter().any(is_up))
}

/// Returns a copy of a disk. The whole content of the copy is durable.
fn copy(disk: &Memory) -> Memory {
    let copy = disk.copy();
    copy.power_cut(&mut |_| 1);
    copy
}

impl OldImages {
    /// Saves copies of all disks. The caller ensures that the mgr is down.
    pub fn keep(&mut self, cluster: &Cluster) {
        if self.right.is_none() && cluster.iods.iter().all(|iod| !iod.is_older()) {
            self.mgr = Some(cluster.mgr.disk().image());
            self.iods = cluster.iods.iter().map(|iod| copy(iod.disk())).collect();
        }
    }

    /// Returns the older copy of an iod's disk, if the mgr uses the iod and the iod's mark differs from the mark in the
    /// copy.
    pub fn of_iod(&self, cluster: &Cluster, iod: usize) -> Option<Memory> {
        let (older, now) = (self.iods.get(iod)?, &cluster.iods[iod]);
        if now.is_older() || now.is_dying() || !is_used(cluster, iod) {
            return None;
        }
        let marks = (mark(&copy(older))?, mark(&copy(now.disk()))?);
        (marks.0 != marks.1).then(|| copy(older))
    }

    /// Returns the older copy of the mgr's disk, if the mark on every iod differs from the mark in the iod's older
    /// copy.
    pub fn of_mgr(&self, cluster: &Cluster) -> Option<Image> {
        let knows = |iod: usize| cluster.iods[iod].is_up() && self.of_iod(cluster, iod).is_some();
        let older = self.mgr.as_ref().filter(|_| self.right.is_none())?;
        (0..cluster.iods.len()).all(knows).then(|| older.clone())
    }

    /// Replaces the mgr's disk by the older copy. The caller ensures that the mgr is down.
    pub fn load_mgr(&mut self, cluster: &Cluster, older: &Image) {
        self.right = Some(cluster.mgr.disk().image());
        cluster.mgr.disk().load(older);
    }

    /// Restores the mgr's current disk. Returns whether the mgr used an older copy. The caller ensures that the mgr is
    /// down.
    pub fn put_back_mgr(&mut self, cluster: &Cluster) -> bool {
        let right = self.right.take();
        right.iter().for_each(|right| cluster.mgr.disk().load(right));
        right.is_some()
    }

    /// Returns whether the mgr uses an older copy of its disk.
    pub fn is_mgr_older(&self) -> bool {
        self.right.is_some()
    }
}
