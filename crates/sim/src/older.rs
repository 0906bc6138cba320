//! Older copies of disks, and putting them in the place of the right ones: nobody may answer with what they have.

use crate::cluster::Cluster;
use crate::hosts::{IOD, IOD_PORT, name};
use crate::storage::Image;
use iod::{Disk, Memory};
use wire::admin::{Group, Value};

/// The file of an iod that says by which mark the mgr knows it.
const STORE: &str = "STORE";

/// What the disks had when the mgr last died: since then it has left another mark with the iods, if it serves again.
#[derive(Default)]
pub struct Older {
    mgr: Option<Image>,
    iods: Vec<Memory>,
    /// The right disk of the mgr while an older copy of it is in use.
    right: Option<Image>,
}

/// The mark on a disk, as bytes; none if it was never claimed.
fn mark(disk: &Memory) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 64];
    let len = disk.open(STORE).ok()?.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(len);
    Some(bytes)
}

/// Whether the mgr says that an iod is up: then it has taken the newest mark.
fn is_used(cluster: &Cluster, iod: usize) -> bool {
    let address = Value::Text(format!("{}:{IOD_PORT}", name(IOD + iod as u64)));
    let up = Value::Text("up".into());
    let is_up = |group: &Group| group.get("address") == Some(&address) && group.get("state") == Some(&up);
    cluster.mgr.status().is_some_and(|status| status.groups.iter().any(is_up))
}

/// A disk of the same content, whole.
fn copy(disk: &Memory) -> Memory {
    let copy = disk.copy();
    copy.power_cut(&mut |_| 1);
    copy
}

impl Older {
    /// Keeps copies of all disks; the mgr is down.
    pub fn keep(&mut self, cluster: &Cluster) {
        if self.right.is_none() && cluster.iods.iter().all(|iod| !iod.is_older()) {
            self.mgr = Some(cluster.mgr.disk().image());
            self.iods = cluster.iods.iter().map(|iod| copy(iod.disk())).collect();
        }
    }

    /// The older copy of an iod's disk, if the mgr uses the iod, and has left a mark with it since.
    pub fn of_iod(&self, cluster: &Cluster, iod: usize) -> Option<Memory> {
        let (older, now) = (self.iods.get(iod)?, &cluster.iods[iod]);
        if now.is_older() || now.is_dying() || !is_used(cluster, iod) {
            return None;
        }
        let marks = (mark(&copy(older))?, mark(&copy(now.disk()))?);
        (marks.0 != marks.1).then(|| copy(older))
    }

    /// The older copy of the mgr's disk, if every iod has a mark of since then.
    pub fn of_mgr(&self, cluster: &Cluster) -> Option<Image> {
        let knows = |iod: usize| cluster.iods[iod].is_up() && self.of_iod(cluster, iod).is_some();
        let older = self.mgr.as_ref().filter(|_| self.right.is_none())?;
        (0..cluster.iods.len()).all(knows).then(|| older.clone())
    }

    /// Puts it in the place of the right one. The mgr is down.
    pub fn load_mgr(&mut self, cluster: &Cluster, older: &Image) {
        self.right = Some(cluster.mgr.disk().image());
        cluster.mgr.disk().load(older);
    }

    /// Puts the right disk of the mgr back; whether an older one was in its place. The mgr is down.
    pub fn put_back_mgr(&mut self, cluster: &Cluster) -> bool {
        let right = self.right.take();
        right.iter().for_each(|right| cluster.mgr.disk().load(right));
        right.is_some()
    }

    /// Whether the mgr has an older copy of its disk.
    pub fn is_mgr_older(&self) -> bool {
        self.right.is_some()
    }
}
